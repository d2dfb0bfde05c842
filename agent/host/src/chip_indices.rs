//! The index of each chip by its PCI address, kept in the state directory: a chip that is removed leaves a gap, and does
//! not rename the others.
//!
//! All calls block. Must never fail: what cannot be read or written is logged, and the indices are kept in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use model::device::{Chip, ChipIndex};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::regular_file;

/// The file in the state directory.
const FILE: &str = "chips.toml";
/// Maximum size of the file.
const MAX_BYTES: u64 = 64 * 1024;
/// Maximum number of addresses that are remembered: more than any host has.
const MAX_CHIPS: usize = 256;

/// The indices of all chips that this host has had.
#[derive(Debug, Default)]
pub(crate) struct ChipIndices {
    /// The state directory; `None` keeps the indices in memory only.
    folder: Option<PathBuf>,
    by_pci: BTreeMap<String, u32>,
}

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexFile {
    /// Index by PCI address.
    index: BTreeMap<String, u32>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IndexFileError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is no TOML of this form.
    #[error("it cannot be parsed: {}", .0.message().lines().next().unwrap_or_default())]
    Text(#[from] toml::de::Error),
    /// Two chips have the same index.
    #[error("two chips have the same index")]
    Duplicate,
    /// It lists more chips than a host has.
    #[error("it lists more than {MAX_CHIPS} chips")]
    TooMany,
}

impl ChipIndices {
    /// The indices that the state directory has.
    pub(crate) fn load(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let by_pci = match read(&path) {
            Ok(by_pci) => by_pci,
            Err(IndexFileError::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => {
                BTreeMap::new()
            }
            Err(error) => {
                warn!("{}", counted_anew(&path, &error));
                BTreeMap::new()
            }
        };
        Self { folder: Some(folder.to_owned()), by_pci }
    }

    /// Gives each chip the index that it had; a new one gets the lowest that no chip has had. The order of `chips`
    /// stays.
    pub(crate) fn assign(&mut self, chips: &mut [Chip]) {
        let before = self.by_pci.clone();
        // Another machine with this state directory, such as one made of an image.
        if !chips.is_empty() && !chips.iter().any(|chip| self.by_pci.contains_key(&chip.pci)) {
            self.by_pci.clear();
        }
        if self.by_pci.len() + chips.len() > MAX_CHIPS {
            self.by_pci.retain(|pci, _| chips.iter().any(|chip| chip.pci == *pci));
        }
        let mut used: BTreeSet<u32> = self.by_pci.values().copied().collect();
        for chip in chips {
            let index = *self.by_pci.entry(chip.pci.clone()).or_insert_with(|| {
                let free = (0..).find(|index| !used.contains(index)).unwrap_or(u32::MAX);
                used.insert(free);
                free
            });
            chip.index = ChipIndex(index);
        }
        if before != self.by_pci {
            self.save();
        }
    }

    /// The chips that this host has had and that are not among `chips`, by index.
    pub(crate) fn gone(&self, chips: &[Chip]) -> BTreeMap<ChipIndex, String> {
        let gone = self.by_pci.iter().filter(|(pci, _)| !chips.iter().any(|chip| chip.pci == **pci));
        gone.map(|(pci, index)| (ChipIndex(*index), pci.clone())).collect()
    }

    fn save(&self) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, &self.by_pci) {
            let file = folder.join(FILE);
            warn!("cannot write {} ({error}): a restart counts the chips anew", file.display());
        }
    }
}

/// The line of the log about a file of no use.
fn counted_anew(path: &Path, error: &IndexFileError) -> String {
    format!("{} has no use: {error}; the chips are counted anew, in PCI order", path.display())
}

fn read(path: &Path) -> Result<BTreeMap<String, u32>, IndexFileError> {
    let mut text = String::new();
    regular_file::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    parse(&text)
}

/// The index of each PCI address in the text of the file: at most 256, each once.
///
/// # Errors
/// Why the text cannot be used.
pub fn parse(text: &str) -> Result<BTreeMap<String, u32>, IndexFileError> {
    let IndexFile { index } = toml::from_str(text)?;
    if index.len() > MAX_CHIPS {
        return Err(IndexFileError::TooMany);
    }
    if index.values().collect::<BTreeSet<_>>().len() < index.len() {
        return Err(IndexFileError::Duplicate);
    }
    Ok(index)
}

/// Replaces the file as a whole: a crash leaves the old one or the new one.
fn write(folder: &Path, by_pci: &BTreeMap<String, u32>) -> io::Result<()> {
    let text = toml::to_string(&IndexFile { index: by_pci.clone() }).map_err(io::Error::other)?;
    let partial = folder.join("chips.toml.partial");
    let mut file = File::create(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&partial, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chips(addresses: &[&str]) -> Vec<Chip> {
        addresses.iter().map(|pci| Chip { pci: (*pci).to_owned(), ..Chip::default() }).collect()
    }

    fn assigned(indices: &mut ChipIndices, addresses: &[&str]) -> Vec<u32> {
        let mut chips = chips(addresses);
        indices.assign(&mut chips);
        chips.iter().map(|chip| chip.index.0).collect()
    }

    #[test]
    fn a_removed_chip_leaves_a_gap_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["a", "b", "d", "e"]), [0, 1, 2, 3]);
        assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["a", "d", "e"]), [0, 2, 3]);
        // One comes back, and a new one lies between the others.
        assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["a", "b", "c", "d"]), [0, 1, 4, 2]);
        assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &[]), Vec::<u32>::new());
        assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["e"]), [3]);
    }

    #[test]
    fn another_machine_counts_anew() {
        let folder = tempfile::tempdir().unwrap();
        assigned(&mut ChipIndices::load(folder.path()), &["a", "b"]);
        assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["x", "y"]), [0, 1]);
    }

    #[test]
    fn a_bad_file_is_replaced_and_a_missing_folder_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let many: String = (0..=MAX_CHIPS).map(|at| format!("c{at} = {at}\n")).collect();
        for bad in
            ["", "nonsense", "[index]\na = 1\nb = 1\n", "[index]\na = -1\n", &format!("[index]\n{many}")]
        {
            fs::write(folder.path().join(FILE), bad).unwrap();
            assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["a", "b"]), [0, 1], "{bad}");
            assert_eq!(assigned(&mut ChipIndices::load(folder.path()), &["b"]), [1], "{bad}");
        }
        let mut nowhere = ChipIndices::load(&folder.path().join("none"));
        assert_eq!(assigned(&mut nowhere, &["a", "b"]), [0, 1]);
        assert_eq!(assigned(&mut nowhere, &["b"]), [1]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut indices = ChipIndices::default();
        for at in 0..3 * MAX_CHIPS {
            // One chip stays, so that it is the same machine.
            assigned(&mut indices, &["stays", &format!("c{at}")]);
        }
        assert!(indices.by_pci.len() <= MAX_CHIPS);
        assert_eq!(assigned(&mut indices, &["stays"]), [0]);
    }

    #[test]
    fn a_damaged_file_is_one_line_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        for text in
            ["[index]\n\"0000:00:04.0\" = = 1\n", "[index]\na = 'x'\n", "[[[", "[index]\na = 1\nb = 1\n"]
        {
            fs::write(&path, text).unwrap();
            let line = counted_anew(&path, &read(&path).unwrap_err());
            assert_eq!(line.lines().count(), 1, "{line}");
            assert!(line.starts_with(&format!("{} has no use: ", path.display())), "{line}");
        }
    }
}
