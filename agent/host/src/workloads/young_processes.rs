//! The processes of the last minute: one that opens a chip is found at the next tick, without a scan of all processes.
//!
//! Must never list the descriptors of more than [`MAX_LOOKS`] processes in one tick.

use std::{collections::VecDeque, time::Duration};

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

/// The young processes of a host.
#[derive(Debug, Default)]
pub(super) struct YoungProcesses {
    /// All processes at the last tick, ascending; `None` before the first.
    all: Option<Vec<u32>>,
    /// Pid and first sight of each young process; the next to look at is first.
    young: VecDeque<(u32, Timestamp)>,
}

impl YoungProcesses {
    /// Takes all pids of this tick, ascending. Those of the first tick are not young: it scans all processes.
    pub(super) fn update(&mut self, pids: Vec<u32>, now: Timestamp) {
        if let Some(before) = &self.all {
            let new = pids.iter().filter(|pid| before.binary_search(pid).is_err());
            self.young.extend(new.map(|pid| (*pid, now)));
        }
        // The clock may have been set back.
        self.young.retain(|(pid, since)| {
            *since <= now && since.age(now) < YOUNG && pids.binary_search(pid).is_ok()
        });
        let excess = self.young.len().saturating_sub(MAX_YOUNG);
        self.young.drain(..excess);
        self.all = Some(pids);
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
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn pids(young: &YoungProcesses) -> Vec<u32> {
        young.young.iter().map(|(pid, _)| *pid).collect()
    }

    #[test]
    fn a_process_is_young_for_a_minute_after_it_came() {
        let mut young = YoungProcesses::default();
        young.update(vec![1, 2], at(0));
        assert!(pids(&young).is_empty(), "the first tick scans all");
        young.update(vec![1, 2, 9], at(1));
        young.update(vec![1, 2, 9, 12], at(30));
        assert_eq!(pids(&young), [9, 12]);
        young.update(vec![1, 2, 9, 12], at(61));
        assert_eq!(pids(&young), [12], "one is a minute old");
        young.update(vec![1, 2, 9], at(62));
        assert!(pids(&young).is_empty(), "one has ended");
        young.update(vec![1, 2, 9, 12], at(63));
        assert_eq!(pids(&young), [12], "its number is used again");
    }

    #[test]
    fn a_storm_of_processes_is_bounded() {
        let mut young = YoungProcesses::default();
        young.update(Vec::new(), at(0));
        young.update((1..100_000).collect(), at(1));
        assert_eq!(pids(&young).len(), MAX_YOUNG);
        assert_eq!(young.young.back().unwrap().0, 99_999);
    }
}
