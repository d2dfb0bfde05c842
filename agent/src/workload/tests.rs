//! Discovery on the real procfs: children of this test hold plain files in a folder that stands for `/dev`.

use std::{
    fs::{self, File},
    process::{Child, Command, Stdio},
};

use super::*;
use crate::model::device::ChipIndex;

struct Holding(Child);

impl Drop for Holding {
    fn drop(&mut self) {
        // Already dead is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Host {
    dev: tempfile::TempDir,
    chips: Arc<[Chip]>,
}

impl Host {
    fn new() -> Self {
        let dev = tempfile::tempdir().unwrap();
        fs::create_dir(dev.path().join("vfio")).unwrap();
        let chips = (0..2).map(|index| {
            let node = dev.path().join("vfio").join((10 + index).to_string());
            fs::write(&node, "").unwrap();
            Chip { index: ChipIndex(index), nodes: vec![node], ..Chip::default() }
        });
        let chips = chips.collect();
        Self { dev, chips }
    }

    fn discovery(&self) -> Discovery {
        let paths = Paths { dev: self.dev.path().to_owned(), ..Paths::default() };
        Discovery::new(paths, Settings::default(), Arc::clone(&self.chips))
    }

    /// A process that holds the node of a chip as its standard input.
    fn hold(&self, chip: usize, variables: &[(&str, &str)]) -> Holding {
        let node = File::open(&self.chips[chip].nodes[0]).unwrap();
        let mut command = Command::new("sleep");
        command.arg("600").envs(variables.iter().copied()).stdin(node).stdout(Stdio::null());
        Holding(command.spawn().unwrap())
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

#[test]
fn owners_come_and_go() {
    let host = Host::new();
    let mut discovery = host.discovery();
    assert!(discovery.tick(at(0)).owners.is_empty());
    assert!(discovery.was_full_scan());
    let one = host.hold(1, &[("TPU_WORKER_ID", "3"), ("SECRET", "x")]);
    assert!(discovery.tick(at(1)).owners.is_empty(), "no full look is due");
    assert!(!discovery.was_full_scan());
    let seen = discovery.tick(at(10));
    let [owner] = &seen.owners[..] else { panic!("{seen:?}") };
    assert_eq!(
        (owner.process.pid, &owner.chips[..], owner.command.as_str()),
        (one.0.id(), &[ChipIndex(1)][..], "sleep")
    );
    let kept: Vec<_> =
        owner.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(kept.contains(&("TPU_WORKER_ID", "3")) && !owner.environment.contains_key("SECRET"), "{kept:?}");
    assert_eq!((owner.job.rank, owner.shares_our_network), (Some(3), true));
    assert!(Arc::ptr_eq(&seen, &discovery.tick(at(11))), "nothing changed");
    let _two = host.hold(1, &[]);
    drop(one);
    let seen = discovery.tick(at(12));
    assert!(discovery.was_full_scan(), "a change brings the full look forward");
    assert_eq!(seen.owners.len(), 1);
    assert_ne!(seen.owners[0].process, owner.process);
    // A clock that was set back does not stop the looking.
    discovery.tick(at(5));
    assert!(discovery.was_full_scan());
}

#[test]
fn a_flapping_owner_does_not_cause_a_full_look_each_time() {
    let host = Host::new();
    let mut discovery = host.discovery();
    let one = host.hold(0, &[]);
    assert_eq!(discovery.tick(at(0)).owners.len(), 1);
    drop(one);
    let soon = Timestamp(at(0).0 + 500_000_000);
    assert!(discovery.tick(soon).owners.is_empty());
    assert!(!discovery.was_full_scan());
    discovery.tick(at(1));
    assert!(discovery.was_full_scan());
}

#[test]
fn several_owners_of_one_chip_and_one_that_wants_no_part() {
    let host = Host::new();
    let mut discovery = host.discovery();
    let _owners = [host.hold(0, &[]), host.hold(0, &[]), host.hold(1, &[("TPUSCOPE_IGNORE", "1")])];
    let seen = discovery.tick(at(0));
    assert_eq!(seen.owners.len(), 2);
    assert!(seen.owners.iter().all(|owner| owner.chips == [ChipIndex(0)]));
    assert!(
        seen.notes.iter().any(|note| note.contains("1 owners asked to be left alone")),
        "{:?}",
        seen.notes
    );
}

#[test]
fn without_procfs_it_says_so_and_recovers() {
    let host = Host::new();
    let root = tempfile::tempdir().unwrap();
    let paths = Paths { procfs: root.path().join("proc"), dev: host.dev.path().into(), ..Paths::default() };
    let mut discovery = Discovery::new(paths, Settings::default(), Arc::clone(&host.chips));
    assert!(discovery.tick(at(0)).notes[0].contains("paths.procfs"));
    std::os::unix::fs::symlink("/proc", root.path().join("proc")).unwrap();
    let _one = host.hold(0, &[]);
    assert_eq!(discovery.tick(at(1)).owners.len(), 1);
}
