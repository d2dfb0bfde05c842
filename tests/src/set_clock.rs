//! A wall clock of its own for the programs of a test, which the test sets: a file, and the library below a program that reads
//! it.

use std::{fs, path::PathBuf, time::Duration};

use tempfile::TempDir;

use crate::harness::artifact;

/// The clock. It goes as the machine's until it is set.
#[derive(Debug)]
pub struct SetClock {
    folder: TempDir,
    offset_ns: i64,
}

impl SetClock {
    /// One that nobody has set.
    ///
    /// # Panics
    /// If there is no room for its file.
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a folder"), offset_ns: 0 };
        clock.write();
        clock
    }

    /// The variables of a program that has this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let text = |path: PathBuf| path.display().to_string();
        vec![("LD_PRELOAD", text(artifact("libset_clock.so"))), ("SET_CLOCK", text(self.file()))]
    }

    /// Sets it back, for all its programs at once.
    ///
    /// # Panics
    /// If its file cannot be written.
    pub fn set_back(&mut self, by: Duration) {
        self.offset_ns -= i64::try_from(by.as_nanos()).expect("less than centuries");
        self.write();
    }

    /// What it says.
    pub fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now() + jiff::SignedDuration::from_nanos(self.offset_ns)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    fn write(&self) {
        // In place: the programs have mapped it. Eight bytes are written at once.
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().create(true).truncate(false).write(true).open(self.file());
        file.and_then(|file| file.write_all_at(&self.offset_ns.to_ne_bytes(), 0))
            .expect("the offset is written");
    }
}
