//! How many chips this host should have: as its `tpu-env` file says, else the most that were seen since the start.
//!
//! Must never use a file that another user could have written, or wait for it.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    libc::{O_NOFOLLOW, O_NONBLOCK},
    unistd::geteuid,
};

use crate::tpu_env::{StatedChips, TpuEnvError, stated_chips};

/// Maximum size of the file.
const MAX_BYTES: u64 = 64 * 1024;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
enum TpuEnvFileError {
    /// It is absent, or closed to the agent.
    #[error("cannot be read ({0})")]
    Unreadable(#[from] io::Error),
    /// A link was refused when it was opened.
    #[error("is not a regular file")]
    NotAFile,
    /// Somebody else could have written it.
    #[error(
        "is ignored: it belongs to user {uid} and has mode {mode:03o}, so other users than root and the agent's can write it"
    )]
    Untrusted { uid: u32, mode: u32 },
    /// It does not state the number.
    #[error(transparent)]
    Text(#[from] TpuEnvError),
}

impl TpuEnvFileError {
    /// Whether there is no such file: a host need not have one.
    fn is_absent(&self) -> bool {
        matches!(self, Self::Unreadable(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The number, and what it is derived from.
#[derive(Debug)]
pub(crate) struct ExpectedChips {
    file: PathBuf,
    most_seen: u32,
    /// What the log said last.
    told: String,
}

impl ExpectedChips {
    /// With this `tpu-env` file.
    pub(crate) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), most_seen: 0, told: String::new() }
    }

    /// The number of chips that are expected when `seen` are there; `None` while no chip has ever been seen or named. And
    /// what is wrong with the file, if it is there. Logs where the number is from when that changes. Blocks.
    pub(crate) fn after(&mut self, seen: usize) -> (Option<u32>, Option<String>) {
        self.most_seen = self.most_seen.max(u32::try_from(seen).unwrap_or(u32::MAX));
        let most_seen = Some(self.most_seen).filter(|most| *most > 0);
        let file = self.file.display().to_string();
        match text(&self.file).and_then(|text| Ok(stated_chips(&text)?)) {
            Ok(StatedChips { chips, key }) => {
                let noun = if chips == 1 { "chip" } else { "chips" };
                self.tell(&format!("{file} says that this host has {chips} {noun} ({key})"), false);
                (Some(chips), None)
            }
            Err(error) => {
                let why = format!("{file} {error}: the most chips seen since the start are expected");
                let is_absent = error.is_absent();
                // A host without chips need not explain what it does not expect.
                if most_seen.is_some() || !is_absent {
                    self.tell(&why, !is_absent);
                }
                (most_seen, (!is_absent).then_some(why))
            }
        }
    }

    /// Where the number is from, in words; empty before there is one.
    pub(crate) fn reason(&self) -> &str {
        &self.told
    }

    fn tell(&mut self, what: &str, is_bad: bool) {
        if self.told == what {
            return;
        }
        what.clone_into(&mut self.told);
        if is_bad {
            tracing::warn!("{what}");
        } else {
            tracing::info!("{what}");
        }
    }
}

/// The text of a regular file that only root or the agent's user can have written.
fn text(path: &Path) -> Result<String, TpuEnvFileError> {
    let file: File = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(TpuEnvFileError::NotAFile);
    }
    if !is_trusted(about.uid(), about.mode(), geteuid().as_raw()) {
        return Err(TpuEnvFileError::Untrusted { uid: about.uid(), mode: about.mode() & 0o777 });
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether only root or `ours` can have written it.
fn is_trusted(uid: u32, mode: u32, ours: u32) -> bool {
    [0, ours].contains(&uid) && mode & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn without_a_file_it_is_the_most_that_were_seen() {
        let folder = tempfile::tempdir().unwrap();
        let mut expected = ExpectedChips::new(&folder.path().join("none"));
        let numbers: Vec<_> = [0, 3, 4, 2].into_iter().map(|seen| expected.after(seen).0).collect();
        assert_eq!(numbers, [None, Some(3), Some(4), Some(4)]);
        assert_eq!(expected.after(4).1, None, "a host need not have the file");
        assert!(expected.told.contains("none cannot be read (No such file"), "{}", expected.told);
    }

    #[test]
    fn what_is_wrong_with_a_file_that_is_there_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tpu-env");
        let mut expected = ExpectedChips::new(&file);
        let set_mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let mut after = |text: &str| {
            std::fs::write(&file, text).unwrap();
            set_mode(0o644);
            expected.after(2)
        };
        assert_eq!(
            after("TPU_CHIPS_PER_HOST_BOUNDS: '1,1,1'\nTPU_ACCELERATOR_TYPE: 'v6e-1'\n"),
            (Some(1), None)
        );
        // A chip that was missing since the boot is missed.
        assert_eq!(after("ACCELERATOR_TYPE: 'v6e-8'\nWORKER_ID: '0'\n"), (Some(8), None));
        let (number, why) = after("TPU_ACCELERATOR_TYPE: 'v6e-16'\n");
        assert_eq!(number, Some(2));
        let why = why.unwrap();
        assert!(
            why.contains("tpu-env has no CHIPS_PER_HOST_BOUNDS, and TPU_ACCELERATOR_TYPE `v6e-16`"),
            "{why}"
        );
        assert!(why.ends_with("the most chips seen since the start are expected"), "{why}");
        set_mode(0o666);
        let why = expected.after(2).1.unwrap();
        assert!(why.contains("is ignored: it belongs to") && why.contains("mode 666"), "{why}");
    }

    #[test]
    fn a_file_that_another_user_can_write_is_ignored() {
        assert!(is_trusted(0, 0o100_644, 990) && is_trusted(990, 0o100_600, 990));
        for (uid, mode) in [(1000, 0o100_644), (0, 0o100_666), (0, 0o100_664)] {
            assert!(!is_trusted(uid, mode, 990), "{uid} {mode:o}");
        }
        // Neither a link nor a folder is read.
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(text(&link).is_err());
        assert!(matches!(text(folder.path()), Err(TpuEnvFileError::NotAFile)));
    }
}
