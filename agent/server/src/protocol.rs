//! Protocol, version and capabilities: a field of every request and of every reply.

use std::sync::LazyLock;

use proto::tpuscope::v1::Peer;
use tonic::Status;

/// The protocol of this build.
pub const PROTOCOL: u32 = 1;

/// What an agent of this build can do beyond the first version of the protocol.
const CAPABILITIES: [&str; 9] =
    ["clock", "goodput", "host_capture", "host_snapshot", "jobs", "marks", "parts_only", "recorder", "steps"];

/// Of this process: one agent under two names has one of these.
static INSTANCE: LazyLock<String> = LazyLock::new(|| format!("{:032x}", fastrand::u128(..)));

/// The protocol and version of this build, as an agent answers.
pub fn agent() -> Peer {
    let capabilities = CAPABILITIES.map(str::to_owned).to_vec();
    Peer { capabilities, instance: INSTANCE.clone(), ..own() }
}

/// The protocol and version of this build, as a caller asks.
pub fn own() -> Peer {
    Peer { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").into(), ..Default::default() }
}

/// Refuses a caller without a protocol number or with a later one than [`PROTOCOL`].
///
/// # Errors
/// `INVALID_ARGUMENT` without a number, `FAILED_PRECONDITION` for a later one.
pub fn check(caller: Option<&Peer>) -> Result<(), Status> {
    match caller.map_or(0, |peer| peer.protocol) {
        0 => Err(Status::invalid_argument(format!(
            "the request has no protocol number; set peer.protocol to {PROTOCOL}"
        ))),
        protocol if protocol > PROTOCOL => Err(Status::failed_precondition(format!(
            "the caller uses protocol {protocol}, this agent only {PROTOCOL}; update the agent"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn an_agent_is_told_apart_from_others_and_a_caller_is_not() {
        assert_eq!((agent().instance.len(), agent().instance), (32, INSTANCE.clone()));
        assert_eq!((own().instance.as_str(), own().capabilities.len()), ("", 0));
    }

    #[test]
    fn only_a_known_protocol_is_answered() {
        let code = |peer: Option<Peer>| check(peer.as_ref()).map_err(|status| status.code());
        assert_eq!(code(Some(own())), Ok(()));
        assert_eq!(code(None), Err(Code::InvalidArgument));
        assert_eq!(code(Some(Peer::default())), Err(Code::InvalidArgument));
        assert_eq!(code(Some(Peer { protocol: 2, ..own() })), Err(Code::FailedPrecondition));
    }
}
