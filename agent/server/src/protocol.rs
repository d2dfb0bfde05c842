//! Protocol, version and capabilities: a field of every request and of every reply.

use proto::tpuscope::v1::Peer;
use tonic::Status;

/// The protocol of this build.
pub const PROTOCOL: u32 = 1;

/// The protocol, version and capabilities of this build.
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
    fn only_a_known_protocol_is_answered() {
        let code = |peer: Option<Peer>| check(peer.as_ref()).map_err(|status| status.code());
        assert_eq!(code(Some(own())), Ok(()));
        assert_eq!(code(None), Err(Code::InvalidArgument));
        assert_eq!(code(Some(Peer::default())), Err(Code::InvalidArgument));
        assert_eq!(code(Some(Peer { protocol: 2, ..own() })), Err(Code::FailedPrecondition));
    }
}
