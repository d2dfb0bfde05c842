//! A disk on which chosen changes fail, or kill the program that makes them: a folder, and the library below a program that
//! makes its calls fail there.

use std::{
    fmt::Write,
    fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use nix::errno::Errno;
use tempfile::TempDir;

use crate::harness::artifact;

/// The folder, without faults at first.
#[derive(Debug)]
pub struct FaultDisk(TempDir);

impl FaultDisk {
    /// An empty one.
    ///
    /// # Panics
    /// If there is no room for it.
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        let disk = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(disk.path()).expect("ours");
        disk
    }

    /// The folder in which changes fail.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn rule(&self) -> PathBuf {
        self.0.path().join("rule")
    }

    fn record(&self) -> PathBuf {
        self.0.path().join("rule.failed")
    }

    /// The variables of a program that has this disk.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![("LD_PRELOAD", text(&artifact("libfault_disk.so"))), ("FAULT_DISK", text(&self.rule()))]
    }

    /// From now on the changes with these numbers fail, counted from 1.
    ///
    /// # Panics
    /// If the rule cannot be written.
    pub fn fail(&self, changes: RangeInclusive<u64>, error: Errno) {
        self.set_rule(&changes, error as i32);
    }

    /// The next program is killed before it makes the change with this number, counted from 1.
    ///
    /// # Panics
    /// If the rule cannot be written.
    pub fn kill(&self, change: u64) {
        self.set_rule(&(change..=change), 0);
    }

    fn set_rule(&self, changes: &RangeInclusive<u64>, error: i32) {
        self.clear();
        let mut rule = format!("{} {} {error} ", changes.start(), changes.end());
        writeln!(rule, "{}", self.path().display()).expect("a string");
        // In one step: a program reads it at any time.
        let aside = self.0.path().join("rule.new");
        fs::write(&aside, rule).expect("a rule");
        fs::rename(aside, self.rule()).expect("a rule");
    }

    /// The disk works again.
    ///
    /// # Panics
    /// If the rule cannot be removed.
    pub fn clear(&self) {
        for file in [self.rule(), self.record()] {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            }
        }
    }

    /// The changes that failed or killed, such as `fsync /…/state.db`.
    pub fn failed(&self) -> Vec<String> {
        let record = fs::read_to_string(self.record()).unwrap_or_default();
        record.lines().map(ToOwned::to_owned).collect()
    }
}
