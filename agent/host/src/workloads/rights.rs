//! What this agent may see of other users' processes, and what would let it see more.

use caps::{CapSet, Capability};

/// What it takes to list and read the descriptors and variables of other users' processes: the folder is closed to
/// others (CAP_DAC_READ_SEARCH), and each link in it asks for the right to trace (CAP_SYS_PTRACE).
const NEEDED: [Capability; 2] = [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];

/// Those of the needed capabilities that this process lacks; all, when the kernel does not say.
fn missing() -> Vec<String> {
    let lacks =
        |capability: &Capability| !caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false);
    NEEDED.iter().filter(|capability| lacks(capability)).map(ToString::to_string).collect()
}

/// What would change a refusal.
pub(super) fn remedy() -> String {
    let missing = missing();
    if missing.is_empty() {
        return "although the agent has the capabilities: another user namespace, or a security module, is in the way"
            .to_owned();
    }
    format!("the agent needs {}", missing.join(" and "))
}
