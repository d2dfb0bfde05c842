//! The table of generations: what a PCI id says about a chip. The built-in rows are in `chips.toml`, and the
//! configuration may add rows.

use std::sync::OnceLock;

use model::device::{DutyCyclePer, Generation, Peak};
use serde::Deserialize;

use crate::settings::device::{ExtraChip, NodeKind};

/// One row of the table: a kind of chip.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChipKind {
    pub(super) generation: Generation,
    /// Its name, when that is not the generation's.
    #[serde(skip)]
    pub(super) name: Option<String>,
    device: u16,
    subsystem: Option<u16>,
    /// `None` when it is not known: both kinds are tried.
    pub(super) node: Option<NodeKind>,
    #[serde(default = "one")]
    pub(super) functions: u32,
    pub(super) cores: Option<u32>,
    hbm_gib: Option<u32>,
    pub(super) duty_cycle_per: Option<DutyCyclePer>,
    pub(super) peak: Option<Peak>,
    /// Where the peak numbers are from, and when they were read.
    peak_source: Option<String>,
}

fn one() -> u32 {
    1
}

impl ChipKind {
    /// A TPU that is not in the table.
    pub(super) fn unnamed() -> Self {
        Self {
            generation: Generation::Unknown,
            name: None,
            device: 0,
            subsystem: None,
            node: None,
            functions: 1,
            cores: None,
            hbm_gib: None,
            duty_cycle_per: None,
            peak: None,
            peak_source: None,
        }
    }

    pub(super) fn hbm_bytes(&self) -> Option<u64> {
        self.hbm_gib.map(|gib| u64::from(gib) << 30)
    }
}

impl From<&ExtraChip> for ChipKind {
    fn from(chip: &ExtraChip) -> Self {
        Self {
            generation: Generation::Unknown,
            name: Some(chip.name.clone()),
            device: chip.device,
            subsystem: None,
            node: Some(chip.node),
            functions: chip.functions.max(1),
            cores: chip.cores,
            hbm_gib: chip.hbm_gib,
            duty_cycle_per: None,
            peak: None,
            peak_source: None,
        }
    }
}

#[derive(Deserialize)]
struct ChipTable {
    chip: Vec<ChipKind>,
    other: Vec<OtherDevice>,
}

/// A device of Google's that is not a TPU.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherDevice {
    device: u16,
    /// What it is; for the reader of the table.
    #[serde(rename = "name")]
    _name: String,
}

fn built_in() -> &'static ChipTable {
    static TABLE: OnceLock<ChipTable> = OnceLock::new();
    TABLE.get_or_init(|| {
        toml::from_str(include_str!("chips.toml")).expect("a unit test reads the built-in table")
    })
}

/// What the table says about a PCI id.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// This kind of chip.
    Kind(ChipKind),
    /// A TPU, but one of several kinds: the subsystem id could not be read or is new.
    Ambiguous(ChipKind),
    /// A network card, a disk or the like.
    Other,
    /// Not in the table: it may be a TPU that is newer than the table.
    Unlisted,
}

/// Looks up a device id of Google's.
pub(super) fn find(device: u16, subsystem: Option<u16>, extra: &[ExtraChip]) -> Match {
    if let Some(chip) = extra.iter().find(|chip| chip.device == device) {
        return Match::Kind(chip.into());
    }
    if built_in().other.iter().any(|other| other.device == device) {
        return Match::Other;
    }
    let mut same_id = built_in().chip.iter().filter(|row| row.device == device);
    let Some(first) = same_id.clone().next() else { return Match::Unlisted };
    match same_id.find(|row| row.subsystem.is_none() || row.subsystem == subsystem) {
        Some(row) => Match::Kind(row.clone()),
        None => Match::Ambiguous(ChipKind {
            generation: Generation::Unknown,
            subsystem: None,
            cores: None,
            hbm_gib: None,
            peak: None,
            duty_cycle_per: None,
            ..first.clone()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_reads_and_says_where_its_numbers_are_from() {
        assert_eq!(built_in().chip.len(), 8);
        for row in built_in().chip.iter().filter(|row| row.generation != Generation::Unknown) {
            assert!(row.cores.is_some() && row.hbm_gib.is_some() && row.node.is_some(), "{row:?}");
            let source = format!("{row:?}");
            assert!(row.peak.is_some() && source.contains("2026-11"), "{row:?}");
        }
    }

    #[test]
    fn v2_and_v3_differ_by_subsystem_alone() {
        let generation = |subsystem| match find(0x27, subsystem, &[]) {
            Match::Kind(row) => Some(row.generation),
            Match::Ambiguous(row) => {
                assert_eq!(
                    (row.generation, row.hbm_gib, row.node),
                    (Generation::Unknown, None, Some(NodeKind::Accel))
                );
                None
            }
            Match::Other | Match::Unlisted => panic!("0x27 is a TPU"),
        };
        assert_eq!(generation(Some(0x4e)), Some(Generation::V2));
        assert_eq!(generation(Some(0x4f)), Some(Generation::V3));
        assert_eq!(generation(Some(0x50)), None);
        assert_eq!(generation(None), None);
    }

    #[test]
    fn other_devices_of_google_are_known_by_id() {
        for other in [0x42, 0x1f, 0xabcd] {
            assert_eq!(find(other, None, &[]), Match::Other, "{other:#x}");
        }
        assert_eq!(find(0x99, None, &[]), Match::Unlisted);
    }
}
