//! The version of a libtpu, read from its wheel's metadata before it is loaded, and the metric names that are
//! safe to ask it for.
//!
//! A libtpu below 0.0.24 aborts the process when it is asked for a name that it does not know, so the list of
//! each version matters.

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

    fn at_least(&self, patch: u32) -> bool {
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

/// Names in the order in which libtpu gained them.
const NAMES: [&str; 32] = [
    // 0.0.13
    "tensorcore_util",
    // 0.0.15
    "duty_cycle_pct",
    "buffer_transfer_latency",
    "hbm_capacity_total",
    "hbm_capacity_usage",
    // 0.0.17
    "hlo_execution_timing",
    "hlo_queue_size",
    // 0.0.19
    "collective_e2e_latency",
    // 0.0.24
    "ici_link_health",
    "tpu_throttle_score",
    // 0.0.30
    "tcp_min_rtt",
    "tcp_delivery_rate",
    // 0.0.32
    "host_to_device_transfer_latency",
    "device_to_host_transfer_latency",
    // 0.0.38
    "inbound_buffer_transfer_latency",
    "host_compute_latency",
    // 0.0.42
    "runtime_hbm_utilization",
    "idle_duration",
    // 0.0.50
    "hbm_util",
    "orbax_write_size",
    "orbax_write_throughput",
    "checkpoint_write_async_blocking_duration",
    "checkpoint_write_async_total_duration",
    "orbax_read_total_duration",
    "orbax_read_blocking_duration",
    "orbax_write_async_start_count",
    "orbax_read_async_start_count",
    "pygrain_data_sources_read_size",
    "pygrain_dataset_source_read_duration",
    "pygrain_dataset_next_duration",
    "pygrain_dataset_prefetch_buffer_ready_count",
    "pygrain_dataloader_iterator_get_next_duration",
];

/// `(0.0.patch, how many of NAMES it has)`, rising.
const HISTORY: [(u32, usize); 9] =
    [(13, 1), (15, 5), (17, 7), (19, 8), (24, 10), (30, 12), (32, 14), (38, 16), (42, 18)];
/// From here on all names are there.
const COMPLETE: u32 = 50;

/// The metric names that a libtpu of this version, with this many SDK functions, may be asked for.
/// Without a version it is what every libtpu with that table has; from 17 functions on an unknown name does no harm.
pub fn metric_names(version: Option<&Version>, sdk_slots: usize) -> &'static [&'static str] {
    let count = match (version, sdk_slots) {
        (_, 0..12) => 0,
        (Some(version), _) if version.at_least(COMPLETE) => NAMES.len(),
        (Some(version), _) => {
            HISTORY.iter().rev().find(|(patch, _)| version.at_least(*patch)).map_or(0, |(_, count)| *count)
        }
        // 0.0.12 has none of them for sure.
        (None, 12..15) => 0,
        // 0.0.22 is the oldest with this table.
        (None, 15..17) => 8,
        (None, _) => NAMES.len(),
    };
    &NAMES[..count]
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
    fn each_version_has_its_names() {
        let counts = [
            ("0.0.5", 9, 0),
            ("0.0.11", 9, 0),
            ("0.0.12", 12, 0),
            ("0.0.13", 12, 1),
            ("0.0.15", 12, 5),
            ("0.0.17", 12, 7),
            ("0.0.19", 12, 8),
            ("0.0.21", 12, 8),
            ("0.0.22", 15, 8),
            ("0.0.23", 15, 8),
            ("0.0.24", 15, 10),
            ("0.0.30", 15, 12),
            ("0.0.31", 17, 12),
            ("0.0.34", 17, 14),
            ("0.0.40", 17, 16),
            ("0.0.43.2", 17, 18),
            ("0.0.45", 17, 18),
            ("0.0.50", 17, 32),
            ("0.0.52", 17, 32),
            ("0.1.0", 17, 32),
        ];
        for (text, slots, count) in counts {
            assert_eq!(metric_names(Some(&version(text)), slots).len(), count, "{text}");
        }
    }

    #[test]
    fn without_a_version_only_what_is_safe_is_asked() {
        for (slots, count) in [(0, 0), (9, 0), (12, 0), (15, 8), (17, 32)] {
            assert_eq!(metric_names(None, slots).len(), count, "{slots}");
        }
        // Metadata that does not fit the library must not make it abort.
        assert_eq!(metric_names(Some(&version("0.0.52")), 9).len(), 0);
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
