//! Versions of jaxlib that stop the process for ever when it is profiled from outside. Must never let a capture or the
//! recorder ask such a process by itself.

use std::collections::BTreeMap;

use xprof::client::Target;

/// The version of a process' jaxlib if that takes Python's lock twice at the begin of a profile, and so never goes on: where
/// TensorFlow cannot be imported, 0.7.0, 0.7.2, 0.8.0 and 0.8.2 were seen to, 0.9.2 was not. `versions` are those of its
/// libraries.
pub(crate) fn that_hangs(versions: &BTreeMap<String, String>) -> Option<&str> {
    let version = versions.get("jaxlib").filter(|_| !versions.contains_key("tensorflow"))?;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    ((major, minor) < (0, 9)).then_some(version.as_str())
}

/// Why a process with this version is left out.
pub(crate) fn reason(version: &str) -> String {
    format!(
        "its jaxlib {version} stops for ever when it is profiled from outside and Python finds no TensorFlow, and none was found \
         beside it: update jaxlib"
    )
}

/// The same for a capture, with the way to make it all the same: no capture of many hosts names a profiler.
pub(crate) fn left_out(version: &str, at: &Target) -> String {
    format!(
        "{}, or, if Python finds TensorFlow elsewhere, run `tpuscope capture --target {at} --allow-old-jaxlib` on \
         this host",
        reason(version)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ones_without_tensorflow_hang() {
        let of = |versions: &[(&str, &str)]| {
            let versions = versions.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
            that_hangs(&versions.collect()).map(str::to_owned)
        };
        for old in ["0.4.38", "0.7.2", "0.8.2.dev3"] {
            assert_eq!(of(&[("jaxlib", old)]).as_deref(), Some(old));
            assert_eq!(of(&[("jaxlib", old), ("tensorflow", "2.18.0")]), None);
        }
        for fine in ["0.9.0", "0.10.2", "1.0.0", "unknown", ""] {
            assert_eq!(of(&[("jaxlib", fine)]), None);
        }
        assert_eq!(of(&[]), None);
    }
}
