//! The metrics that may be requested from a libtpu.
//!
//! A libtpu below 0.0.24 aborts its process when a name is requested that it does not have. Each name is therefore
//! requested only from the version that the catalog has for it.

use model::{catalog, sample::Origin};
use tpu_sys::version::Version;

/// From this many functions in the SDK table on, an unknown name does no harm.
const HARMLESS_SLOTS: usize = 17;
/// The oldest libtpu with a table of 15 functions is 0.0.22.
const OLDEST_WITH_15: u32 = 22;

/// The names that a libtpu of this version, with this many SDK functions, has, oldest first. Without a
/// version it is what every libtpu with that table has.
pub(super) fn metric_names(version: Option<&Version>, sdk_slots: usize) -> Vec<&'static str> {
    let knows = |since: u32| match (version, sdk_slots) {
        // These have no metrics.
        (_, 0..12) => false,
        (Some(version), _) => version.at_least(since),
        // 0.0.12 has none of them for sure.
        (None, 12..15) => false,
        (None, 15..HARMLESS_SLOTS) => since <= OLDEST_WITH_15,
        (None, _) => true,
    };
    let mut names: Vec<(u32, &str)> = catalog::of_origin(Origin::Libtpu)
        .map(|(_, named)| (named.since, named.name))
        .filter(|(since, _)| knows(*since))
        .collect();
    names.sort_by_key(|(since, _)| *since);
    names.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(version: Option<&str>, slots: usize) -> usize {
        let version = version.map(|text| text.parse().unwrap());
        metric_names(version.as_ref(), slots).len()
    }

    /// Number of names that libtpu 0.0.`patch` knows.
    fn known(patch: u32) -> usize {
        catalog::of_origin(Origin::Libtpu).filter(|(_, named)| named.since <= patch).count()
    }

    #[test]
    fn each_version_has_its_names() {
        for (version, slots, patch) in [
            ("0.0.12", 12, 12),
            ("0.0.13", 12, 13),
            ("0.0.15", 12, 15),
            ("0.0.21", 12, 21),
            ("0.0.22", 15, 22),
            ("0.0.23", 15, 23),
            ("0.0.24", 15, 24),
            ("0.0.30", 15, 30),
            ("0.0.31", 17, 31),
            ("0.0.43.2", 17, 43),
            ("0.0.50", 17, 50),
            ("0.0.52", 17, 52),
        ] {
            assert_eq!(count(Some(version), slots), known(patch), "{version}");
        }
        assert_eq!(metric_names("0.0.13".parse().ok().as_ref(), 12), ["tensorcore_util"]);
        assert!(known(12) == 0 && known(23) < known(24) && known(43) < known(50));
    }

    #[test]
    fn without_a_version_only_what_is_safe_is_asked() {
        let all = catalog::of_origin(Origin::Libtpu).count();
        for (slots, names) in [(0, 0), (9, 0), (12, 0), (15, known(22)), (17, all)] {
            assert_eq!(count(None, slots), names, "{slots}");
        }
        // Metadata that does not fit the library must not make it abort.
        assert_eq!(count(Some("0.0.52"), 9), 0);
        assert_eq!(count(Some("0.0.11"), 9), 0);
        assert_eq!(count(Some("0.1.0"), 17), all);
    }
}
