//! What a capture asks of an agent of 0.1 in another way, or cannot ask of it.

use proto::tpuscope::v1::{
    ClockRequest, ShowSessionRequest, host_client::HostClient, sessions_client::SessionsClient,
};
use server::protocol;
use tonic::transport::Channel;
use xprof::session::{Manifest, SessionName};

use super::agent::bad_answer;
use crate::{client, failure::Failure};

/// The manifest of a session. Agents of 0.1 do not send it with the end of the capture.
pub(super) async fn manifest(channel: Channel, session: &SessionName) -> Result<Manifest, Failure> {
    let request = ShowSessionRequest { peer: Some(protocol::own()), id: session.to_string() };
    let mut sessions = SessionsClient::new(channel);
    let reply = client::within(client::CALL_TIMEOUT, sessions.show(request)).await?.into_inner();
    serde_json::from_str(&reply.manifest_json).map_err(|error| bad_answer(&error))
}

/// Refuses an agent of 0.1 before it captures: it would not see that the request names a destination. The small call is one
/// that it does not know either.
pub(super) async fn takes_destinations(channel: Channel) -> Result<(), Failure> {
    let mut host = HostClient::new(channel);
    let request = ClockRequest { peer: Some(protocol::own()) };
    client::within(client::CALL_TIMEOUT, host.clock(request)).await.map(drop)
}
