//! The chips of this host over time: the last listing with the chips' indices, how many are expected, and which are gone.
//!
//! Must never take a listing that failed for a host without chips: the chips of before stay, in an unknown state.

use std::{path::PathBuf, sync::Arc};

use model::device::{Chip, ChipState};

use crate::{chip_indices::ChipIndices, chips::ChipScan, expected_chips::ExpectedChips};

/// What is known of the chips.
pub(crate) struct ChipList {
    state_dir: PathBuf,
    /// `None` before the first listing.
    indices: Option<ChipIndices>,
    expected: ExpectedChips,
    /// The chips of the last listing.
    listed: Vec<Chip>,
}

/// The chips after a scan.
#[derive(Debug)]
pub(crate) struct KnownChips {
    /// Those of the scan, else those of before.
    pub(crate) chips: Vec<Chip>,
    /// Why they are those of before.
    pub(crate) unknown: Option<Arc<str>>,
    /// How many there should be.
    pub(crate) expected: Option<u32>,
    /// For a person.
    pub(crate) notes: Vec<String>,
}

impl ChipList {
    /// A list without chips. The indices are kept in `state_dir`.
    pub(crate) fn new(state_dir: PathBuf, expected: ExpectedChips) -> Self {
        Self { state_dir, indices: None, expected, listed: Vec::new() }
    }

    /// The chips after this scan. Blocks.
    pub(crate) fn after(&mut self, scan: ChipScan) -> KnownChips {
        let ChipScan { mut chips, unknown, mut notes, .. } = scan;
        let (expected, bad_file) = self.expected.after(chips.len());
        notes.extend(bad_file);
        if let Some(why) = unknown {
            let unknown = |chip: &Chip| Chip {
                state: ChipState::Unknown,
                faults: vec!["it was there before; now the PCI functions cannot be listed".to_owned()],
                ..chip.clone()
            };
            let chips = self.listed.iter().map(unknown).collect();
            return KnownChips { chips, unknown: Some(why.into()), expected, notes };
        }
        let indices = self.indices.get_or_insert_with(|| ChipIndices::load(&self.state_dir));
        indices.assign(&mut chips);
        let are_too_few = expected.filter(|expected| chips.len() < *expected as usize);
        if let Some(expected) = are_too_few {
            let why = self.expected.reason();
            notes.push(format!("{} of {expected} expected chips found ({why})", chips.len()));
        }
        let last = chips.iter().map(|chip| chip.index).max();
        for (index, pci) in indices.gone(&chips) {
            // Without a gap the machine may have become a smaller one.
            if are_too_few.is_some() || Some(index) < last {
                notes.push(format!("chip {} is gone: it was at PCI address {pci}", index.0));
            }
        }
        self.listed.clone_from(&chips);
        KnownChips { chips, unknown: None, expected, notes }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn scan(addresses: &[&str]) -> ChipScan {
        let chip = |pci: &&str| Chip { pci: (*pci).to_owned(), ..Chip::default() };
        ChipScan { chips: addresses.iter().map(chip).collect(), ..ChipScan::default() }
    }

    fn list(folder: &Path) -> ChipList {
        ChipList::new(folder.to_owned(), ExpectedChips::new(&folder.join("tpu-env")))
    }

    #[test]
    fn a_listing_that_fails_leaves_the_chips_of_before_in_an_unknown_state() {
        let folder = tempfile::tempdir().unwrap();
        let mut list = list(folder.path());
        let failed = || ChipScan { unknown: Some("no sysfs".to_owned()), ..ChipScan::default() };
        let first = list.after(failed());
        assert_eq!(
            (first.chips.len(), first.unknown.as_deref(), first.expected),
            (0, Some("no sysfs"), None)
        );
        assert_eq!(list.after(scan(&["a", "b"])).unknown, None);
        let known = list.after(failed());
        let shown: Vec<_> =
            known.chips.iter().map(|chip| (chip.index.0, chip.pci.as_str(), chip.state)).collect();
        assert_eq!(shown, [(0, "a", ChipState::Unknown), (1, "b", ChipState::Unknown)]);
        assert!(known.chips.iter().all(|chip| chip.faults.len() == 1), "{known:?}");
        assert_eq!((known.unknown.as_deref(), known.expected), (Some("no sysfs"), Some(2)));
        assert_eq!(known.notes, [""; 0], "nothing is missing or gone");
        let back = list.after(scan(&["a", "b"]));
        assert!(back.unknown.is_none() && back.chips.iter().all(|chip| chip.state == ChipState::Ok));
    }

    #[test]
    fn chips_that_are_missing_or_gone_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(list(folder.path()).after(scan(&["a", "b", "c"])).notes, [""; 0]);
        let mut restarted = list(folder.path());
        // Nothing says that there should be more: a gap is explained, a smaller machine is none.
        assert_eq!(restarted.after(scan(&["a", "c"])).notes, ["chip 1 is gone: it was at PCI address b"]);
        assert_eq!(list(folder.path()).after(scan(&["a", "b"])).notes, [""; 0]);
        let notes = restarted.after(scan(&["a"])).notes;
        assert!(notes[0].starts_with("1 of 2 expected chips found ("), "{notes:?}");
        assert!(notes[0].contains("the most chips seen since the start are expected"), "{notes:?}");
        let gone =
            [1, 2].map(|chip| format!("chip {chip} is gone: it was at PCI address {}", ["b", "c"][chip - 1]));
        assert_eq!(notes[1..], gone);
        std::fs::write(folder.path().join("tpu-env"), "CHIPS_PER_HOST_BOUNDS: '2,2,1'\n").unwrap();
        let notes = list(folder.path()).after(scan(&["a", "b", "c"])).notes;
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].starts_with("3 of 4 expected chips found (") && notes[0].contains("tpu-env says"),
            "{notes:?}"
        );
    }
}
