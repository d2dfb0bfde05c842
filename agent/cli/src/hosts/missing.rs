//! Hosts that are missing in a capture, as those without an answer.

use sessions::{FailureKind, coordinator::HostFault};

use super::{NoHostAnswer, ask::kind};
use crate::{failure::Failure, remedies};

impl From<&HostFault> for NoHostAnswer {
    fn from(fault: &HostFault) -> Self {
        let Failure { what, remedy, .. } = remedies::missing_host(fault);
        Self { kind: kind_of(fault), reason: what, remedy }
    }
}

fn kind_of(fault: &HostFault) -> &'static str {
    match fault {
        HostFault::Dial(error) => kind(error.fault),
        HostFault::Refused(_) => "refused",
        HostFault::Capture(failure) => FailureKind::named(&failure.kind).as_str(),
        HostFault::Stopped => "agent_stopped",
        HostFault::Protocol { .. } | HostFault::Incapable { .. } => "old_agent",
        HostFault::Late { .. } => "no_answer",
        HostFault::LateRecording | HostFault::LateSnapshot | HostFault::Overall => "timeout",
        HostFault::NotKept(_) => "not_kept",
        HostFault::SameAgent(_) => "same_agent",
        HostFault::SameName(_) => "same_name",
        HostFault::OtherDestination { .. } => "other_destination",
        HostFault::Clock(_) => "clock",
        HostFault::BadAnswer(_) => "bad_answer",
        HostFault::DamagedPart(_) | HostFault::MissingPart(_) => "damaged",
        HostFault::Copy(_) => "not_copied",
        HostFault::Upload(_) | HostFault::UploadGone(_) => "not_uploaded",
        HostFault::Paused(_) => "lost",
        HostFault::Kept { fault, .. } | HostFault::MayKeep { fault, .. } => kind_of(fault),
    }
}
