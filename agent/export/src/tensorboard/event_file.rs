//! Event files on the disk: each has a name of its own, is only ever appended to, and is whole up to its last write.
//!
//! All calls block. No link is followed below the folder that was named, and no file is opened that is there already.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use model::time::Timestamp;
use nix::{
    fcntl::{AT_FDCWD, AtFlags, OFlag},
    unistd::{AccessFlags, faccessat},
};
use store::open_folder::{IfMissing, OpenFolder};

use super::{event, job_folder::file_name, scalars::ScalarGroup};

/// A file of this size is followed by a new one.
pub(super) const MAX_FILE: u64 = 4 << 20;
/// What the names of the files end in: others in the folder are somebody else's.
pub(super) const SUFFIX: &str = ".tpuscope";
/// What they begin with.
pub(super) const PREFIX: &str = "events.out.tfevents.";
/// Names that are tried for one file.
const ATTEMPTS: u32 = 100;

/// The folder that TensorBoard is started for, and who writes there.
#[derive(Debug, Clone)]
pub struct EventFolder {
    path: PathBuf,
    host: String,
    pid: u32,
}

/// The event files of one run: what TensorBoard shows under one name.
#[derive(Debug)]
pub struct RunWriter {
    run: PathBuf,
    file: Option<OpenEventFile>,
}

/// The file that is appended to.
#[derive(Debug)]
struct OpenEventFile {
    file: File,
    name: String,
    bytes: u64,
}

impl EventFolder {
    /// The folder at `path`, which may have links in it, for this process on this host. Nothing is opened yet.
    pub fn new(path: &Path, host: &str, pid: u32) -> Self {
        Self { path: path.to_owned(), host: file_name(host), pid }
    }

    /// The folder.
    ///
    /// # Errors
    /// If it is not there.
    pub(super) fn open(&self) -> io::Result<OpenFolder> {
        OpenFolder::at(&self.path)
    }

    /// Whether files can be made in it.
    ///
    /// # Errors
    /// If it is not there, or this process may not write to it.
    pub(super) fn check(&self) -> io::Result<()> {
        self.open()?;
        let access = AccessFlags::W_OK | AccessFlags::X_OK;
        Ok(faccessat(AT_FDCWD, &self.path, access, AtFlags::AT_EACCESS)?)
    }

    /// The host as runs are named after it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// A new file of a run, with these records.
    fn create(&self, run: &Path, now: Timestamp, records: &[u8]) -> io::Result<OpenEventFile> {
        let folder = self.open()?.below(run, IfMissing::Made)?;
        let second = now.0.div_euclid(1_000_000_000);
        let mut number = 0;
        loop {
            let name = format!("{PREFIX}{second:010}.{}.{}.{number}{SUFFIX}", self.host, self.pid);
            let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_EXCL;
            match folder.file(Path::new(&name), flags) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < ATTEMPTS => {
                    number += 1;
                }
                opened => return OpenEventFile { file: opened?, name, bytes: 0 }.begun(&folder, records),
            }
        }
    }
}

impl OpenEventFile {
    /// The file with its first records. Without them, as on a full disk, none is left.
    fn begun(mut self, folder: &OpenFolder, records: &[u8]) -> io::Result<Self> {
        match self.append(records) {
            Ok(()) => Ok(self),
            Err(error) => {
                // The error that led here is reported.
                let _ = folder.remove(Path::new(&self.name));
                Err(error)
            }
        }
    }

    /// Appends records, all of them or none.
    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(records) {
            // What is torn at the end is read as the end too, if it cannot be taken back.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += records.len() as u64;
        Ok(())
    }

    /// Whether the file has no name any more: somebody removed it.
    fn is_removed(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }
}

impl RunWriter {
    /// A run in the folder with this relative path. Nothing is opened yet.
    pub fn new(run: impl Into<PathBuf>) -> Self {
        Self { run: run.into(), file: None }
    }

    /// Appends scalars that were computed `now`. A file that is full, or was removed, is followed by a new one.
    ///
    /// # Errors
    /// If the disk refuses. The next call begins a new file.
    pub fn write(&mut self, folder: &EventFolder, groups: &[ScalarGroup], now: Timestamp) -> io::Result<()> {
        let wall_time = seconds(now);
        let records = event::records(groups, wall_time);
        if records.is_empty() {
            return Ok(());
        }
        // Kept again only if all goes well.
        let kept = match self.file.take() {
            Some(file) if file.bytes < MAX_FILE && !file.is_removed()? => Some(file),
            _ => None,
        };
        self.file = Some(match kept {
            Some(mut file) => {
                file.append(&records)?;
                file
            }
            None => {
                let first = [event::first_record(wall_time), records].concat();
                folder.create(&self.run, now, &first)?
            }
        });
        Ok(())
    }

    /// The path of the file that was written last, below the folder.
    pub fn file(&self) -> Option<PathBuf> {
        self.file.as_ref().map(|file| self.run.join(&file.name))
    }

    /// Whether the next write begins a new file.
    pub(super) fn begins_file(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.bytes >= MAX_FILE)
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds since the epoch")]
fn seconds(at: Timestamp) -> f64 {
    at.0 as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const NOW: Timestamp = Timestamp(1_772_323_200_500_000_000);

    fn group(step: i64) -> [ScalarGroup; 1] {
        [ScalarGroup { step, values: vec![("goodput/goodput".into(), 50.0)] }]
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn one_file_grows_and_another_process_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let folder = EventFolder::new(dir.path(), "host 1", 7);
        let mut run = RunWriter::new("train-u0/goodput");
        for step in 0..3 {
            run.write(&folder, &group(step), NOW).unwrap();
        }
        run.write(&folder, &[], NOW).unwrap();
        let runs = dir.path().join("train-u0/goodput");
        let [name] = &names(&runs)[..] else { panic!("one file") };
        let host = file_name("host 1");
        assert_eq!(name, &format!("events.out.tfevents.1772323200.{host}.7.0.tpuscope"));
        assert_eq!(run.file(), Some(Path::new("train-u0/goodput").join(name)));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&runs.join(name)), mode(&runs)), (0o640, 0o750));
        let one = event::records(&group(0), 1.0).len();
        let size = std::fs::metadata(runs.join(name)).unwrap().len();
        // Step 0 is the default, and not written.
        assert_eq!(size, (event::first_record(1.0).len() + 3 * one + 2 * 2) as u64);
        RunWriter::new("train-u0/goodput").write(&folder, &group(0), NOW).unwrap();
        assert_eq!(names(&runs).len(), 2);
    }

    #[test]
    fn a_full_file_is_followed_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = EventFolder::new(dir.path(), "h", 7);
        let mut run = RunWriter::new("j/goodput");
        let many = ScalarGroup { step: 1, values: vec![("goodput/goodput".into(), 50.0); 200_000] };
        assert!(run.begins_file());
        run.write(&folder, &[many], NOW).unwrap();
        assert!(run.begins_file());
        run.write(&folder, &group(2), NOW).unwrap();
        assert!(!run.begins_file());
        let names = names(&dir.path().join("j/goodput"));
        assert_eq!(names.iter().map(|name| name.ends_with(".0.tpuscope")).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_file_that_does_not_take_its_first_records_is_not_left() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OpenFolder::at(dir.path()).unwrap();
        let name = "events".to_owned();
        std::fs::write(dir.path().join(&name), "").unwrap();
        // A file that is open to be read alone takes nothing, as one on a full disk.
        let file = folder.file(Path::new(&name), OFlag::O_RDONLY).unwrap();
        OpenEventFile { file, name, bytes: 0 }.begun(&folder, b"records").unwrap_err();
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn a_file_that_was_removed_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = EventFolder::new(dir.path(), "h", 7);
        let mut run = RunWriter::new("j/goodput");
        run.write(&folder, &group(0), NOW).unwrap();
        std::fs::remove_dir_all(dir.path().join("j")).unwrap();
        run.write(&folder, &group(1), NOW).unwrap();
        assert_eq!(names(&dir.path().join("j/goodput")).len(), 1);
    }

    #[test]
    fn a_link_is_not_followed_and_a_missing_folder_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), dir.path().join("j")).unwrap();
        let folder = EventFolder::new(dir.path(), "h", 7);
        let error = RunWriter::new("j/goodput").write(&folder, &group(0), NOW).unwrap_err();
        assert!(error.to_string().contains("j is a link"), "{error}");
        assert_eq!(names(elsewhere.path()), [""; 0]);
        assert!(folder.check().is_ok());
        let missing = EventFolder::new(&dir.path().join("none"), "h", 7);
        assert_eq!(missing.check().unwrap_err().kind(), io::ErrorKind::NotFound);
        let error = RunWriter::new("k/goodput").write(&missing, &group(0), NOW).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
