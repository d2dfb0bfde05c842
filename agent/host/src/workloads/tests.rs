//! OwnerScanner on the real procfs: children of this test hold plain files in a folder that stands for `/dev`.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use model::{device::ChipIndex, workload::EndpointKind};

use super::*;
use crate::settings::workload::StaticEndpoint;

/// Held while this process has a node open or starts a child. A child has the descriptors of all threads until its program
/// runs: the child of one test would hold the node of another.
static NODES_AND_CHILDREN: Mutex<()> = Mutex::new(());

/// Starts a program. Its standard input may be a node. Returns when the program runs and the node is closed here.
pub(super) fn spawn(mut command: Command, node: Option<&Path>) -> Child {
    let _alone = NODES_AND_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = node {
        command.stdin(File::open(node).unwrap());
    }
    let child = command.spawn().unwrap();
    // `spawn` may return while the kernel still starts the program: until that is done the child has this process's
    // descriptors and no environment.
    let program = command.get_program().as_encoded_bytes();
    let line = format!("/proc/{}/cmdline", child.id());
    while !fs::read(&line).unwrap().starts_with(program) {
        std::thread::yield_now();
    }
    drop(command);
    child
}

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

    fn discovery(&self) -> OwnerScanner {
        let paths = Paths { dev: self.dev.path().to_owned(), ..Paths::default() };
        OwnerScanner::new(paths, Settings::default(), Arc::clone(&self.chips))
    }

    /// A process that holds the node of a chip as its standard input.
    fn hold(&self, chip: usize, variables: &[(&str, &str)]) -> Holding {
        let mut command = Command::new("sleep");
        command.arg("600").envs(variables.iter().copied()).stdout(Stdio::null());
        Holding(spawn(command, Some(&self.chips[chip].nodes[0])))
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
    let seen = discovery.tick(at(1));
    assert!(discovery.was_full_scan(), "the chip was opened");
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
fn several_owners_of_one_chip_and_one_that_is_to_be_ignored() {
    let host = Host::new();
    let mut discovery = host.discovery();
    let _owners = [host.hold(0, &[]), host.hold(0, &[]), host.hold(1, &[("TPUSCOPE_IGNORE", "1")])];
    let seen = discovery.tick(at(0));
    assert_eq!(seen.owners.len(), 2);
    assert!(seen.owners.iter().all(|owner| owner.chips == [ChipIndex(0)]));
    assert!(seen.notes.iter().any(|note| note.contains("1 owner is ignored: it sets")), "{:?}", seen.notes);
    assert_eq!(seen.ignored, [ChipIndex(1)]);
}

#[test]
fn without_chips_processes_are_looked_at_seldom() {
    let host = Host::new();
    let due = |chips: Arc<[Chip]>, settings: Settings, seconds: i64| {
        let paths = Paths { dev: host.dev.path().to_owned(), ..Paths::default() };
        let mut discovery = OwnerScanner::new(paths, settings, chips);
        discovery.tick(at(0));
        assert!(discovery.was_full_scan());
        let idle = discovery.is_idle(at(seconds));
        discovery.tick(at(seconds));
        assert_eq!(discovery.was_full_scan(), !idle);
        discovery.was_full_scan()
    };
    let settings = Settings::default;
    assert!(!due(Arc::default(), settings(), 299));
    assert!(due(Arc::default(), settings(), 301));
    assert!(due(Arc::clone(&host.chips), settings(), 10));
    assert!(due(Arc::default(), Settings { discover: Discover::Any, ..settings() }, 10));
    let address = "127.0.0.1:9012".parse().unwrap();
    let named = StaticEndpoint { kind: EndpointKind::Profiler, address };
    assert!(due(Arc::default(), Settings { endpoints: vec![named], ..settings() }, 10));
}

#[test]
fn without_procfs_it_says_so_and_recovers() {
    let host = Host::new();
    let root = tempfile::tempdir().unwrap();
    let paths = Paths { procfs: root.path().join("proc"), dev: host.dev.path().into(), ..Paths::default() };
    let mut discovery = OwnerScanner::new(paths, Settings::default(), Arc::clone(&host.chips));
    assert!(discovery.tick(at(0)).notes[0].contains("paths.procfs"));
    std::os::unix::fs::symlink("/proc", root.path().join("proc")).unwrap();
    let _one = host.hold(0, &[]);
    assert_eq!(discovery.tick(at(1)).owners.len(), 1);
}

/// A shell that opens what it is told to.
struct Opener {
    process: Holding,
    orders: std::process::ChildStdin,
    done: std::io::BufReader<std::process::ChildStdout>,
}

impl Opener {
    fn start() -> Self {
        let script = "while read -r line; do eval \"$line\"; echo done; done";
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(shell, None);
        let (orders, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { process: Holding(child), orders, done: std::io::BufReader::new(out) }
    }

    fn run(&mut self, order: &str) {
        use std::io::{BufRead, Write};
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        self.done.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

#[test]
fn a_process_that_opens_a_chip_later_is_found() {
    let host = Host::new();
    let (mut opener, mut swapper) = (Opener::start(), Opener::start());
    swapper.run("exec 7</dev/null");
    let mut discovery = host.discovery();
    assert!(discovery.tick(at(0)).owners.is_empty());
    let node = |chip: usize| host.chips[chip].nodes[0].display().to_string();
    opener.run(&format!("exec 7<{}", node(0)));
    let owners = |workloads: &Workloads| -> Vec<u32> {
        workloads.owners.iter().map(|owner| owner.process.pid).collect()
    };
    assert_eq!(owners(&discovery.tick(at(10))), [opener.process.0.id()], "one descriptor more");
    let mut both = [opener.process.0.id(), swapper.process.0.id()];
    both.sort_unstable();
    // One descriptor for another: their number does not tell, the kernel's report of the use of the node does.
    swapper.run(&format!("exec 7<{}", node(1)));
    assert_eq!(owners(&discovery.tick(at(12))), both);
    swapper.run("exec 7</dev/null");
    assert_eq!(owners(&discovery.tick(at(14))), [opener.process.0.id()]);
    // Without such reports it is found in one of the next twelve scans.
    discovery.watch = NodeWatch::default();
    swapper.run(&format!("exec 7<{}", node(1)));
    let last = (1..=12).map(|look| discovery.tick(at(14 + 60 * look))).last().unwrap();
    assert_eq!(owners(&last), both);
    opener.run("exec 7<&-");
    assert_eq!(owners(&discovery.tick(at(736))), [swapper.process.0.id()]);
    assert!(discovery.was_full_scan(), "a change makes a full scan due");
    discovery.tick(at(737));
    assert!(!discovery.was_full_scan(), "{:?}", discovery.current);
}

#[test]
fn two_holders_of_a_chip_and_a_stopped_one_are_marked() {
    let host = Host::new();
    let (one, two) = (host.hold(0, &[]), host.hold(0, &[]));
    let other_chip = host.hold(1, &[]);
    let pid = rustix::process::Pid::from_raw(i32::try_from(two.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    rustix::process::waitid(
        rustix::process::WaitId::Pid(pid),
        rustix::process::WaitIdOptions::STOPPED | rustix::process::WaitIdOptions::NOWAIT,
    )
    .unwrap();
    let seen = host.discovery().tick(at(0));
    let notes = |pid: u32| {
        let owner = seen.owners.iter().find(|owner| owner.process.pid == pid).unwrap();
        owner
            .notes
            .iter()
            .filter(|note| note.contains("also holds") || note.contains("is stopped"))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(notes(one.0.id()), [format!("process {} also holds chip 0", two.0.id())]);
    let of_two = notes(two.0.id());
    assert!(of_two[0].contains("is stopped") && of_two[1].contains(&one.0.id().to_string()), "{of_two:?}");
    assert!(notes(other_chip.0.id()).is_empty());
}

#[test]
fn a_node_without_a_known_chip_has_its_holder_listed() {
    let host = Host::new();
    let _holding = host.hold(1, &[]);
    let mut discovery = host.discovery();
    let known: Arc<[Chip]> = Arc::from(&host.chips[..1]);
    discovery.set_chips(Arc::clone(&known), BTreeSet::new());
    let seen = discovery.tick(at(0));
    let [owner] = &seen.owners[..] else { panic!("{seen:?}") };
    assert!(
        owner.chips.is_empty() && owner.notes.iter().any(|note| note.contains("/dev/vfio/11")),
        "{owner:?}"
    );
    // Sysfs shows that the group is another device's: a virtual machine may hold it.
    discovery.set_chips(known, BTreeSet::from([11]));
    assert!(discovery.tick(at(1)).owners.is_empty());
}

#[test]
fn a_procfs_that_hides_processes_is_told_from_one_that_does_not() {
    let root = tempfile::tempdir().unwrap();
    let hidden = |files: &[(&str, &str)]| {
        let proc = tempfile::tempdir_in(root.path()).unwrap();
        for (name, text) in files {
            let file = proc.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let paths = Paths { procfs: proc.path().to_owned(), ..Paths::default() };
        OwnerScanner::new(paths, Settings::default(), Host::new().chips).tick(at(0)).hidden.clone()
    };
    let init = ("1/fdinfo/0", "");
    assert_eq!(hidden(&[init, ("2/comm", "kthreadd\n")]), None);
    assert!(hidden(&[init, ("2/comm", "python\n")]).unwrap().contains("namespace"));
    assert!(hidden(&[init]).unwrap().contains("namespace"));
    assert!(hidden(&[("7/comm", "python\n")]).unwrap().contains("hides"));
}

#[test]
fn a_new_owner_is_seen_at_the_next_tick_and_a_scan_in_vain_is_not_repeated() {
    let host = Host::new();
    let mut discovery = host.discovery();
    // As for a container with nodes of its own: the kernel reports nothing.
    discovery.watch = NodeWatch::default();
    discovery.tick(at(0));
    discovery.tick(at(1));
    assert!(!discovery.was_full_scan(), "nothing has changed");
    let _young = host.hold(0, &[]);
    assert_eq!(discovery.tick(at(2)).owners.len(), 1);
    discovery.tick(at(3));
    assert!(!discovery.was_full_scan(), "a holder is told once");

    // Who opens and closes a node again and again causes one scan in an interval.
    discovery.watch = NodeWatch::of(&host.chips, host.dev.path());
    let mut scans = 0;
    for second in 4..12 {
        let alone = NODES_AND_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
        drop(File::open(&host.chips[1].nodes[0]).unwrap());
        drop(alone);
        discovery.tick(at(second));
        scans += u32::from(discovery.was_full_scan());
    }
    assert_eq!(scans, 1);
}

#[test]
fn a_host_whose_owners_are_known_is_scanned_less_often() {
    let host = Host::new();
    let mut discovery = host.discovery();
    let scans = |discovery: &mut OwnerScanner, seconds: std::ops::Range<i64>| {
        seconds
            .filter(|second| {
                discovery.tick(at(*second));
                discovery.was_full_scan()
            })
            .collect::<Vec<i64>>()
    };
    assert_eq!(scans(&mut discovery, 0..25), [0, 10, 20], "no owner");
    let _one = host.hold(0, &[]);
    assert_eq!(scans(&mut discovery, 25..270), [25, 35, 45, 65, 105, 165, 225]);
    let _two = host.hold(1, &[]);
    assert_eq!(scans(&mut discovery, 270..300), [270, 280, 290], "a new owner");
}

#[test]
fn new_processes_are_looked_at_while_a_chip_is_free() {
    let host = Host::new();
    let mut discovery = host.discovery();
    // As for a container with nodes of its own: the kernel reports nothing.
    discovery.watch = NodeWatch::default();
    let owners = |discovery: &mut OwnerScanner, second| discovery.tick(at(second)).owners.len();
    let _one = host.hold(0, &[]);
    (0..=70).for_each(|second| assert_eq!(owners(&mut discovery, second), 1));
    let two = host.hold(1, &[]);
    assert_eq!(owners(&mut discovery, 71), 2, "chip 1 was free");
    (72..=140).for_each(|second| assert_eq!(owners(&mut discovery, second), 2));
    let shared = host.hold(1, &[]);
    assert_eq!(owners(&mut discovery, 141), 2, "both have owners: this waits for the next scan");
    assert_eq!(owners(&mut discovery, 200), 3);
    drop(shared);
    (201..=270).for_each(|second| assert_eq!(owners(&mut discovery, second), 2));
    drop(two);
    assert_eq!(owners(&mut discovery, 271), 1);
    let _next = host.hold(1, &[]);
    assert_eq!(owners(&mut discovery, 272), 2, "chip 1 has become free");
}

#[test]
fn what_tells_of_no_change_is_not_read() {
    let host = Host::new();
    let mut discovery = host.discovery();
    let _one = host.hold(0, &[]);
    let unchanged = |discovery: &mut OwnerScanner, second: i64| discovery.is_unchanged(at(second));
    assert!(!unchanged(&mut discovery, 0), "no scan yet");
    discovery.tick(at(0));
    assert!(!unchanged(&mut discovery, 1), "chip 1 is free");
    let two = host.hold(1, &[]);
    assert_eq!(discovery.tick(at(1)).owners.len(), 2);
    discovery.watch.was_used();
    assert!((2..=5).all(|second| unchanged(&mut discovery, second)));
    assert!(!unchanged(&mut discovery, 6), "a check is due");
    discovery.tick(at(6));
    assert!(!discovery.was_full_scan());
    assert!(unchanged(&mut discovery, 7));
    discovery.request_full_scan();
    assert!(!unchanged(&mut discovery, 7), "a scan is requested");
    discovery.tick(at(7));
    assert!(discovery.was_full_scan());
    assert!(unchanged(&mut discovery, 8));
    drop(File::open(&host.chips[0].nodes[0]).unwrap());
    assert!(!unchanged(&mut discovery, 8), "a node was used");
    discovery.tick(at(8));
    discovery.watch = NodeWatch::default();
    assert!(unchanged(&mut discovery, 9));
    drop(two);
    assert!(!unchanged(&mut discovery, 9), "an owner has ended");
    assert_eq!(discovery.tick(at(9)).owners.len(), 1);
    // The clock was set back.
    let _two = host.hold(1, &[]);
    assert_eq!(discovery.tick(at(20)).owners.len(), 2);
    assert!(unchanged(&mut discovery, 21));
    assert!(!unchanged(&mut discovery, 19));
}

#[test]
fn a_holder_that_is_stopped_is_marked_before_the_next_scan_is_due() {
    let host = Host::new();
    let holding = host.hold(0, &[]);
    let mut discovery = host.discovery();
    discovery.tick(at(0));
    let pid = rustix::process::Pid::from_raw(i32::try_from(holding.0.id()).unwrap()).unwrap();
    let mut stopped_after = |signal, wanted, second| {
        rustix::process::kill_process(pid, signal).unwrap();
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), wanted).unwrap();
        let seen = discovery.tick(at(second));
        seen.owners[0].notes.iter().any(|note| note.contains("is stopped"))
    };
    use rustix::process::{Signal, WaitIdOptions};
    assert!(stopped_after(Signal::STOP, WaitIdOptions::STOPPED, 2));
    assert!(!stopped_after(Signal::CONT, WaitIdOptions::CONTINUED, 4));
}
