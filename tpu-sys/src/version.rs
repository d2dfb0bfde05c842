//! The version of a libtpu, read from its wheel's metadata before it is loaded.
//!
//! A libtpu below 0.0.24 aborts the process when it is asked for a metric that it does not know, so the version
//! matters before the first call.

use std::{
    cmp::Ordering,
    fmt, fs,
    io::{self, Read},
    path::Path,
    str::FromStr,
};

/// A released version: `0.0.43.2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    numbers: Vec<u32>,
    text: String,
}

/// The text is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a version of libtpu")]
pub struct NotAVersion;

impl FromStr for Version {
    type Err = NotAVersion;

    /// Leading numbers count; what follows them (`.dev20250101`, `rc1`, `+nightly`) does not.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let text = text.trim();
        if text.len() > 64 || !text.chars().all(|c| c.is_ascii_alphanumeric() || ".+-_".contains(c)) {
            return Err(NotAVersion);
        }
        let numbers: Vec<u32> = text.split('.').map_while(|part| part.parse().ok()).collect();
        if numbers.len() < 2 {
            return Err(NotAVersion);
        }
        Ok(Self { numbers, text: text.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Version {
    /// Compares with `0.0.patch`.
    fn compare(&self, patch: u32) -> Ordering {
        self.numbers.as_slice().cmp([0, 0, patch].as_slice())
    }

    /// Whether it is 0.0.`patch` or later.
    pub fn at_least(&self, patch: u32) -> bool {
        self.compare(patch) != Ordering::Less
    }

    /// The version of the library at `path`: from `METADATA` of the `libtpu*.dist-info` beside its package folder.
    /// `None` where there is none, or where several disagree.
    pub fn of_library(path: &Path) -> Option<Self> {
        let packages = path.parent()?.parent()?;
        let mut found: Option<Self> = None;
        for entry in fs::read_dir(packages).ok()?.take(MAX_ENTRIES).flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !(name.starts_with("libtpu-") || name.starts_with("libtpu_nightly-"))
                || !name.ends_with(".dist-info")
            {
                continue;
            }
            let Ok(Some(version)) = read_metadata(&entry.path().join("METADATA")) else { continue };
            if found.as_ref().is_some_and(|earlier| *earlier != version) {
                return None;
            }
            found = Some(version);
        }
        found
    }
}

/// Most entries of a site-packages folder that are looked at.
const MAX_ENTRIES: usize = 65_536;
/// Most bytes of a METADATA file that are read; the version stands in its first lines.
const MAX_METADATA: u64 = 64 << 10;

fn read_metadata(path: &Path) -> io::Result<Option<Version>> {
    // A FIFO by this name must not block.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut head = Vec::new();
    fs::File::open(path)?.take(MAX_METADATA).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let headers = head.lines().take_while(|line| !line.is_empty());
    Ok(headers.filter_map(|line| line.strip_prefix("Version:")).find_map(|version| version.parse().ok()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> Version {
        text.parse().expect("a version")
    }

    #[test]
    fn versions_order_by_number() {
        assert!(version("0.0.43.2").at_least(43));
        assert!(!version("0.0.9").at_least(10));
        assert!(version("0.1.0").at_least(52));
        assert!(version("0.0.24.dev20251001+nightly").at_least(24));
        for bad in ["", "x", "1", "0.0.1\n0", "0 .1", &"0.".repeat(50)] {
            assert_eq!(bad.parse::<Version>(), Err(NotAVersion), "{bad:?}");
        }
    }

    #[test]
    fn the_wheel_tells_the_version() {
        let site = tempfile::tempdir().unwrap();
        let library = site.path().join("libtpu/libtpu.so");
        assert_eq!(Version::of_library(&library), None);
        let info = site.path().join("libtpu-0.0.30.dist-info");
        fs::create_dir(&info).unwrap();
        fs::write(
            info.join("METADATA"),
            "Metadata-Version: 2.4\nName: libtpu\nVersion: 0.0.30\n\nVersion: 9.9\n",
        )
        .unwrap();
        assert_eq!(Version::of_library(&library), Some(version("0.0.30")));
        let other = site.path().join("libtpu_nightly-0.1.dist-info");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("METADATA"), "Version: 0.1.dev1\n").unwrap();
        assert_eq!(Version::of_library(&library), None, "two wheels disagree");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_not_but_never_panics(text in ".{0,80}") {
            let _ = text.parse::<Version>();
        }
    }
}
