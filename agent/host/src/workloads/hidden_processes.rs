//! Processes that a scan cannot see, and why. Must never take a process that was not seen for one that is not there.

use super::{capabilities, process_scan::ProcessScan, procfs::Procfs};

/// Why a chip may be held by a process that the scan did not see; and a note for each reason, with what would change
/// it.
pub(super) fn hidden_processes(proc: &Procfs, scan: &ProcessScan) -> (Option<String>, Vec<String>) {
    let mut hidden = None;
    let mut notes = Vec::new();
    if let Some(pid) = scan.denied {
        hidden = Some(format!("the descriptors of some processes, such as {pid}, cannot be read"));
        notes.push(format!(
            "the descriptors of some processes, such as {pid}, cannot be read: a chip that they hold has no known \
             owner; {}",
            capabilities::remedy()
        ));
    }
    if scan.pids.first() != Some(&1) {
        let at = proc.path().display();
        hidden = Some(format!("{at} hides the processes of other users"));
        notes.push(format!(
            "{at} does not show process 1: it is mounted with hidepid, which hides the processes of other users; add \
             the agent's user to the group of the mount option gid="
        ));
    } else if !shows_all_namespaces(proc) {
        hidden = Some("processes outside this pid namespace are invisible".to_owned());
        notes.push(
            "processes outside this pid namespace are invisible, and may hold a chip: a sidecar that shares the \
             workload's namespace (shareProcessNamespace: true) sees that workload alone, which is enough for it; to \
             see the whole host, use its namespace (hostPID: true)"
                .to_owned(),
        );
    }
    (hidden, notes)
}

/// Whether this procfs shows the processes of the first pid namespace, and so all of them. There process 2 is a thread
/// of the kernel.
fn shows_all_namespaces(proc: &Procfs) -> bool {
    // The first pid namespace of a machine has this fixed number.
    const FIRST_PID_NAMESPACE: u64 = 4_026_531_836;
    let mut name = Vec::new();
    ["1", "self"].iter().any(|process| proc.namespace(process, "pid") == Some(FIRST_PID_NAMESPACE))
        || (proc.read("2", "comm", 64, &mut name).is_ok() && name == b"kthreadd\n")
}
