//! The parts of a session of the agent, read over its socket: the files of its store are closed to other users.
//!
//! Memory is one block for each open file. Every call has a deadline and the rights of its caller. A call that fails is
//! kept, so that the command ends with the agent's reason and not with that of the reader.

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use proto::tpuscope::v1::{
    ListSessionsRequest, ReadSessionRequest, ShowSessionReply, ShowSessionRequest,
    sessions_client::SessionsClient,
};
use server::protocol;
use tokio::runtime::{self, Runtime};
use tonic::transport::Channel;
use xprof::{
    input::{Input, ReadSeek},
    session::{PartFile, SessionName},
};

use super::load::file_name;
use crate::{client, exit::Exit, failure::Failure, remedies};

/// The size of the ranges: the largest that the agent reads in one call.
const BLOCK: u32 = 1 << 20;

/// A session of the agent.
#[derive(Debug, Clone)]
pub(super) struct AgentSession(Arc<Calls>);

/// The calls about one session.
#[derive(Debug)]
struct Calls {
    session: SessionName,
    client: SessionsClient<Channel>,
    failed: Mutex<Option<Failure>>,
    /// Its thread answers the agent's pings while the command computes. Dropped last.
    runtime: Runtime,
}

impl AgentSession {
    /// The session of this name, and what the agent says of it.
    pub(super) fn open(
        agent: &client::SocketArgs,
        session: &SessionName,
    ) -> Result<(Self, ShowSessionReply), Failure> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(Failure::internal)?;
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
        let calls = Calls { session: session.clone(), client, failed: Mutex::default(), runtime };
        Ok((Self(Arc::new(calls)), reply))
    }

    /// Opens a part.
    pub(super) fn file(&self, part: &PartFile) -> AgentFile {
        AgentFile {
            calls: Arc::clone(&self.0),
            file: file_name(&part.path),
            size: part.size,
            position: 0,
            block: Vec::new(),
            block_at: 0,
        }
    }

    /// The failure of the first call that failed.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
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

impl Calls {
    fn read(&self, file: &str, offset: u64) -> io::Result<Vec<u8>> {
        let request = ReadSessionRequest {
            peer: Some(protocol::own()),
            id: self.session.to_string(),
            file: file.to_owned(),
            offset,
            length: BLOCK,
        };
        let mut client = self.client.clone();
        let read = async { client::within(client::CALL_TIMEOUT, client.read(request)).await };
        self.runtime.block_on(read).map(|reply| reply.into_inner().data).map_err(|failure| {
            let error = io::Error::other(failure.what.clone());
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            error
        })
    }
}

/// An open part of a session of the agent.
#[derive(Debug)]
pub(super) struct AgentFile {
    calls: Arc<Calls>,
    file: String,
    size: u64,
    position: u64,
    block: Vec<u8>,
    block_at: u64,
}

impl AgentFile {
    /// What is held from the current position on.
    fn held(&self) -> &[u8] {
        let from = self.position.checked_sub(self.block_at).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.block.get(from..)).unwrap_or_default()
    }
}

impl Read for AgentFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.size || into.is_empty() {
            return Ok(0);
        }
        if self.held().is_empty() {
            self.block = self.calls.read(&self.file, self.position)?;
            self.block_at = self.position;
            if self.block.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let held = self.held();
        let length = held.len().min(into.len());
        into[..length].copy_from_slice(&held[..length]);
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for AgentFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// A part of a session of the agent, to be opened more than once.
#[derive(Debug)]
pub(super) struct AgentInput<'p> {
    session: AgentSession,
    part: &'p PartFile,
}

impl<'p> AgentInput<'p> {
    pub(super) fn new(session: AgentSession, part: &'p PartFile) -> Self {
        Self { session, part }
    }
}

impl Input for AgentInput<'_> {
    fn name(&self) -> String {
        Path::new(self.session.0.session.as_str()).join(file_name(&self.part.path)).display().to_string()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(self.session.file(self.part)))
    }
}
