//! The parts of a session of the agent, read over its socket: the files of its store are closed to other users.
//!
//! Every call has a deadline and the rights of its caller.

use std::sync::Arc;

use proto::tpuscope::v1::{
    ListSessionsRequest, ReadSessionRequest, ShowSessionReply, ShowSessionRequest,
    sessions_client::SessionsClient,
};
use server::protocol;
use tonic::transport::Channel;
use xprof::session::SessionName;

use super::remote_files::{RangeSource, RemoteSession};
use crate::{client, exit::Exit, failure::Failure, remedies, runtime_thread::RuntimeThread};

/// The size of the ranges: the largest that the agent reads in one call.
const BLOCK: u32 = 1 << 20;

/// The calls about one session.
#[derive(Debug)]
struct Calls {
    session: SessionName,
    client: SessionsClient<Channel>,
    /// Its thread answers the agent's pings while the command computes. Dropped last.
    runtime: Arc<RuntimeThread>,
}

/// The session of this name, and what the agent says of it.
pub(super) fn open(
    agent: &client::SocketArgs,
    session: &SessionName,
) -> Result<(RemoteSession, ShowSessionReply), Failure> {
    let runtime = RuntimeThread::start().map_err(Failure::internal)?;
    let (client, reply) = runtime.block_on(async {
        let channel = agent.connect().await.map_err(|failure| remedies::no_store(failure, session))?;
        let mut client = SessionsClient::new(channel);
        let request = ShowSessionRequest { peer: Some(protocol::own()), id: session.to_string() };
        let reply = match client::within(client::CALL_TIMEOUT, client.show(request)).await {
            Err(failure) if failure.exit == Exit::NotFound => {
                return Err(not_found(&mut client, session).await);
            }
            reply => reply?.into_inner(),
        };
        Ok((client, reply))
    })?;
    if let Some(older) = older_agent(session, &reply) {
        return Err(older);
    }
    let calls = Calls { session: session.clone(), client, runtime: Arc::new(runtime) };
    Ok((RemoteSession::new(session.as_str(), calls), reply))
}

/// The session of this name of the agent behind `channel`, which `runtime` keeps.
pub(super) fn remote(session: &SessionName, channel: Channel, runtime: Arc<RuntimeThread>) -> RemoteSession {
    let client = SessionsClient::new(channel);
    RemoteSession::new(session.as_str(), Calls { session: session.clone(), client, runtime })
}

/// An agent of 0.1 names no files: it cannot read a part for us.
fn older_agent(session: &SessionName, reply: &ShowSessionReply) -> Option<Failure> {
    let parts = reply.session.as_ref().map_or(0, |summary| summary.parts);
    let names_none = parts > 0 && reply.files.is_empty() && reply.faults.is_empty();
    names_none.then(|| remedies::no_files_of_older_agent(session))
}

/// There is no such session, or none that the caller may read: names those that are like it.
async fn not_found(client: &mut SessionsClient<Channel>, session: &SessionName) -> Failure {
    let request = ListSessionsRequest { peer: Some(protocol::own()), limit: 0 };
    let listed = client::within(client::CALL_TIMEOUT, client.list(request)).await;
    let names: Vec<String> = listed
        .map(|reply| reply.into_inner().sessions.into_iter().map(|session| session.id).collect())
        .unwrap_or_default();
    remedies::no_stored_session(session, &names)
}

impl RangeSource for Calls {
    fn block(&self) -> u32 {
        BLOCK
    }

    fn read(&self, file: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let request = ReadSessionRequest {
            peer: Some(protocol::own()),
            id: self.session.to_string(),
            file: file.to_owned(),
            offset,
            length,
        };
        let mut client = self.client.clone();
        let read = async { client::within(client::CALL_TIMEOUT, client.read(request)).await };
        Ok(self.runtime.block_on(read)?.into_inner().data)
    }
}
