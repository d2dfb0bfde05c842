//! The processes of the last minute: one that opens a chip is found at the next tick, without a scan of all processes.
//!
//! Listing all processes is what costs. So only the ids are looked at that the kernel has given out since the last tick.
//! Must never list the descriptors of more than [`MAX_LOOKS`] processes in one tick.

use std::{collections::VecDeque, io, ops::RangeInclusive, time::Duration};

use model::time::Timestamp;

use super::{
    process_scan::{DeviceNodes, ProcessScanner},
    procfs::Procfs,
};

/// How long a process is young.
const YOUNG: Duration = Duration::from_secs(60);
/// Maximum number of processes that are looked at in one tick; the others follow in the next ticks.
const MAX_LOOKS: usize = 64;
/// Maximum number of young processes that are kept; the oldest are left to the next scan.
const MAX_YOUNG: usize = 1024;

/// Maximum number of new ids that are looked at each; for more it is cheaper to list all processes.
const MAX_NEW_IDS: u32 = 256;

/// The young processes of a host.
#[derive(Debug, Default)]
pub(super) struct YoungProcesses {
    /// All processes when they were listed last, ascending; `None` before the first time.
    listed: Option<Vec<u32>>,
    newest: NewestPid,
    /// Pid and first sight of each young process; the next to look at is first.
    young: VecDeque<(u32, Timestamp)>,
}

/// The id that the kernel gave out last, of a process or a thread.
#[derive(Debug, Default)]
struct NewestPid {
    /// Whether the kernel tells this agent about the processes of the procfs: it tells the ids of the reader's own pid
    /// namespace, and a container may read the procfs of its host. `None` before the first look.
    is_told: Option<bool>,
    last: Option<u32>,
}

impl NewestPid {
    /// The ids that the kernel has given out since the last call; `None` where that is not known, or where they are
    /// too many to look at each.
    fn since_last(&mut self, proc: &Procfs) -> Option<RangeInclusive<u32>> {
        let is_told = *self.is_told.get_or_insert_with(|| proc.is_of_our_namespace());
        let now = if is_told { proc.newest_pid() } else { None };
        let before = std::mem::replace(&mut self.last, now);
        let (before, now) = (before?, now?);
        // Smaller: the ids have started again from the lowest that is free.
        let count = now.checked_sub(before)?;
        (count <= MAX_NEW_IDS).then_some(before.saturating_add(1)..=now)
    }
}

impl YoungProcesses {
    /// Finds the processes that have started since the last call. Those of the first call are not young: that tick
    /// scans all processes.
    pub(super) fn look(&mut self, proc: &mut Procfs, now: Timestamp) -> io::Result<()> {
        // Read before a list: a process that starts in between is in the next range too.
        let range = self.newest.since_last(proc);
        // The clock may have been set back.
        self.young.retain(|(_, since)| *since <= now && since.age(now) < YOUNG);
        match (range, &self.listed) {
            (Some(range), Some(_)) => {
                let new: Vec<u32> = range.filter(|id| proc.is_process(*id)).collect();
                self.add(&new, now);
            }
            (_, before) => {
                let pids = proc.pids()?;
                self.young.retain(|(pid, _)| pids.binary_search(pid).is_ok());
                if let Some(before) = before {
                    let new = pids.iter().copied().filter(|pid| before.binary_search(pid).is_err());
                    self.add(&new.collect::<Vec<u32>>(), now);
                }
                self.listed = Some(pids);
            }
        }
        Ok(())
    }

    /// Takes the processes that a scan has listed and read, ascending.
    pub(super) fn scanned(&mut self, pids: &[u32]) {
        if let Some(listed) = &mut self.listed {
            pids.clone_into(listed);
        }
        self.young.retain(|(pid, _)| pids.binary_search(pid).is_ok());
    }

    fn add(&mut self, new: &[u32], now: Timestamp) {
        for pid in new {
            if self.young.iter().all(|(known, _)| known != pid) {
                self.young.push_back((*pid, now));
            }
        }
        let excess = self.young.len().saturating_sub(MAX_YOUNG);
        self.young.drain(..excess);
    }

    /// Whether one of them holds a chip; each is told once.
    pub(super) fn any_holds(
        &mut self,
        proc: &mut Procfs,
        nodes: &DeviceNodes,
        scanner: &mut ProcessScanner,
    ) -> bool {
        let mut found = false;
        for _ in 0..self.young.len().min(MAX_LOOKS) {
            let Some((pid, since)) = self.young.pop_front() else { break };
            if scanner.holds(proc, nodes, pid) {
                found = true;
            } else {
                self.young.push_back((pid, since));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// A host: its processes, and the id that the kernel has given out last.
    struct Host {
        root: tempfile::TempDir,
        young: YoungProcesses,
        /// The ids of the agent's process, the outermost first.
        agent_ids: &'static str,
    }

    impl Host {
        fn new(agent_ids: &'static str) -> Self {
            Self { root: tempfile::tempdir().unwrap(), young: YoungProcesses::default(), agent_ids }
        }

        fn write(&self, id: u32, group: u32) {
            let folder = self.root.path().join(id.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("status"), format!("Name:\tx\nTgid:\t{group}\nPid:\t{id}\n")).unwrap();
        }

        /// Starts these processes and looks; the young ones.
        fn look(&mut self, started: &[u32], newest: u32, now: Timestamp) -> Vec<u32> {
            started.iter().for_each(|pid| self.write(*pid, *pid));
            let root = self.root.path();
            fs::create_dir_all(root.join("self")).unwrap();
            let ids = format!("Name:\tx\nUid:\t0\nGid:\t0\nNSpid:\t{}\n", self.agent_ids);
            fs::write(root.join("self/status"), ids).unwrap();
            fs::write(root.join("loadavg"), format!("0.10 0.20 0.30 1/90 {newest}\n")).unwrap();
            self.young.look(&mut Procfs::open(root).unwrap(), now).unwrap();
            self.young.young.iter().map(|(pid, _)| *pid).collect()
        }

        fn end(&self, pid: u32) {
            fs::remove_dir_all(self.root.path().join(pid.to_string())).unwrap();
        }
    }

    #[test]
    fn a_process_is_young_for_a_minute_after_it_came() {
        // With a list of all processes, and with the new ids alone.
        for agent_ids in ["7033\t5", "5"] {
            let mut host = Host::new(agent_ids);
            assert!(host.look(&[1, 2], 2, at(0)).is_empty(), "the first tick scans all");
            assert_eq!(host.look(&[9], 9, at(1)), [9]);
            assert_eq!(host.look(&[12], 12, at(30)), [9, 12]);
            assert_eq!(host.look(&[], 12, at(61)), [12], "one is a minute old");
            [9, 12].iter().for_each(|pid| host.end(*pid));
            host.young.scanned(&[1, 2]);
            assert!(host.look(&[], 12, at(62)).is_empty(), "both have ended");
            // The ids have started again.
            assert_eq!(host.look(&[4], 4, at(63)), [4]);
            assert_eq!(host.look(&[12], 12, at(63)), [4, 12], "its number is used again");
        }
    }

    #[test]
    fn only_the_new_ids_are_looked_at() {
        let mut host = Host::new("5");
        host.look(&[1], 5, at(0));
        // A list of all processes would have it.
        assert!(host.look(&[3], 6, at(1)).is_empty());
        assert_eq!(host.look(&[], 6 + MAX_NEW_IDS + 1, at(2)), [3], "too many: they are listed");
    }

    #[test]
    fn a_thread_is_no_process() {
        let mut host = Host::new("5");
        host.look(&[1], 5, at(0));
        host.write(6, 1);
        assert_eq!(host.look(&[7], 7, at(1)), [7]);
    }

    #[test]
    fn a_process_between_id_and_list_is_young_once() {
        let mut host = Host::new("5");
        host.look(&[1], 5, at(0));
        // Listed at this tick, while the id that was read before is older.
        assert_eq!(host.look(&[300], 299, at(1)), [300]);
        assert_eq!(host.look(&[], 300, at(2)), [300]);
        assert_eq!(host.look(&[], 301, at(61)), [0; 0]);
    }

    #[test]
    fn a_storm_of_processes_is_bounded() {
        let mut young = YoungProcesses::default();
        young.add(&(1..5000).collect::<Vec<u32>>(), at(1));
        assert_eq!(young.young.len(), MAX_YOUNG);
        assert_eq!(young.young.back().unwrap().0, 4999);
    }
}
