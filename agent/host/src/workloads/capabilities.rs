//! The capabilities that reading other users' processes needs, and which of them this agent lacks.

use caps::{CapSet, Capability};

/// Listing the descriptors of other users' processes needs CAP_DAC_READ_SEARCH; reading their links and variables
/// needs CAP_SYS_PTRACE.
const NEEDED: [Capability; 2] = [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];

/// The needed capabilities that this process lacks; all of them when the kernel does not list its own.
fn missing() -> Vec<String> {
    let lacks =
        |capability: &Capability| !caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false);
    NEEDED.iter().filter(|capability| lacks(capability)).map(ToString::to_string).collect()
}

/// What makes a refused read possible.
pub(super) fn remedy() -> String {
    let missing = missing();
    if missing.is_empty() {
        return "the agent has the capabilities, so a user namespace or a security module refuses it"
            .to_owned();
    }
    format!("the agent needs {}", missing.join(" and "))
}
