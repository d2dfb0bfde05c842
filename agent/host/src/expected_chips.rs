//! How many chips this host should have: as its `tpu-env` file says, else the most that were seen since the start.
//!
//! Must never believe a file that another user could have written, or wait for it.

use std::{
    fs::{File, OpenOptions},
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    libc::{O_NOFOLLOW, O_NONBLOCK},
    unistd::geteuid,
};

/// Maximum size of the file.
const MAX_BYTES: u64 = 64 * 1024;
/// A host that claims more chips is not believed.
const MAX_CHIPS: u32 = 256;
/// The chips of a host as a grid, such as `2,2,1`; made by the TPU API, and by Compute Engine.
const KEYS: [&str; 2] = ["CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"];

/// The number, and what it is derived from.
#[derive(Debug)]
pub(crate) struct ExpectedChips {
    file: PathBuf,
    most_seen: u32,
}

impl ExpectedChips {
    /// With this `tpu-env` file.
    pub(crate) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), most_seen: 0 }
    }

    /// The number of chips that are expected when `seen` are there; `None` while no chip has ever been seen or named.
    /// Blocks.
    pub(crate) fn after(&mut self, seen: usize) -> Option<u32> {
        self.most_seen = self.most_seen.max(u32::try_from(seen).unwrap_or(u32::MAX));
        text(&self.file).as_deref().and_then(chips).or(Some(self.most_seen).filter(|most| *most > 0))
    }
}

/// The text of a regular file that only root or the agent's user can have written.
fn text(path: &Path) -> Option<String> {
    let file: File = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || !is_trusted(about.uid(), about.mode(), geteuid().as_raw()) {
        return None;
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Whether only root or `ours` can have written it.
fn is_trusted(uid: u32, mode: u32, ours: u32) -> bool {
    [0, ours].contains(&uid) && mode & 0o022 == 0
}

/// The number of chips in lines such as `CHIPS_PER_HOST_BOUNDS: '2,2,1'`.
fn chips(text: &str) -> Option<u32> {
    let bounds = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        KEYS.contains(&key.trim()).then_some(value)
    })?;
    let sides = bounds.trim().trim_matches(['\'', '"']).split(',');
    let product = sides.map(|side| side.trim().parse::<u32>().ok()).reduce(|a, b| a?.checked_mul(b?))??;
    (1..=MAX_CHIPS).contains(&product).then_some(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chips_of_a_host_are_a_grid() {
        assert_eq!(
            chips("ACCELERATOR_TYPE: 'v4-256'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\nHOST_BOUNDS: '2,2,8'\n"),
            Some(4)
        );
        assert_eq!(chips("TPU_CHIPS_PER_HOST_BOUNDS: '1,1,1'\n"), Some(1));
        assert_eq!(chips("CHIPS_PER_HOST_BOUNDS: \"2, 4\"\n"), Some(8));
        for bad in [
            "",
            "HOST_BOUNDS: '2,2,8'\n",
            "CHIPS_PER_HOST_BOUNDS: ''",
            "CHIPS_PER_HOST_BOUNDS: '0,1,1'",
            "CHIPS_PER_HOST_BOUNDS: '65536,65536'",
            "CHIPS_PER_HOST_BOUNDS: '2,x,1'",
            "CHIPS_PER_HOST_BOUNDS",
        ] {
            assert_eq!(chips(bad), None, "{bad}");
        }
    }

    #[test]
    fn without_a_file_it_is_the_most_that_were_seen() {
        let folder = tempfile::tempdir().unwrap();
        let mut expected = ExpectedChips::new(&folder.path().join("none"));
        let numbers: Vec<_> = [0, 3, 4, 2].into_iter().map(|seen| expected.after(seen)).collect();
        assert_eq!(numbers, [None, Some(3), Some(4), Some(4)]);
    }

    #[test]
    fn a_file_of_somebody_else_is_not_believed() {
        assert!(is_trusted(0, 0o100_644, 990) && is_trusted(990, 0o100_600, 990));
        for (uid, mode) in [(1000, 0o100_644), (0, 0o100_666), (0, 0o100_664)] {
            assert!(!is_trusted(uid, mode, 990), "{uid} {mode:o}");
        }
        // Neither a link nor a folder is read.
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!((text(&link), text(folder.path())), (None, None));
    }
}
