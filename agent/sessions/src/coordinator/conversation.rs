//! One host's side of a capture: dials it, and does in order what it is told. It reports what happened, and decides nothing.
//!
//! Every wait has a limit. Once it is left, its calls end and the connection is closed: the agent frees its profilers.

use std::{sync::Arc, time::Duration};

use cluster::{
    clock_offset::{OffsetEstimate, RoundTrip, clock_offset},
    dial::Dialer,
    hosts::HostAddress,
};
use model::time::{Clock, Timestamp};
use proto::tpuscope::v1::{
    CaptureFailure, CaptureFinished, ClockRequest, Peer, RemoveSessionRequest, StatusRequest,
    host_client::HostClient, sessions_client::SessionsClient,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, transport::Channel};
use xprof::session::{PartWriter, SessionId, SessionName};

use super::{
    HostsRequest,
    collect::{self, Collection, PartsProgress},
    fault::HostFault,
    machine::{HostNumber, ReservedHost},
};
use crate::{FailureReason, fetch::HostPart};

/// What an agent must be able to do.
const CAPABILITIES: [&str; 2] = ["clock", "host_capture"];
/// For a snapshot.
const SNAPSHOT_CAPABILITIES: [&str; 2] = ["clock", "host_snapshot"];
/// And to upload its parts alone.
const PARTS_ONLY: &str = "parts_only";
/// Round trips to each clock.
const ROUND_TRIPS: usize = 8;
/// The clocks that are measured at a time: more would wait for each other here, which looks like a slow network.
pub(super) const CLOCKS_AT_A_TIME: usize = 128;

/// What identifies the session on all hosts.
#[derive(Debug, Clone)]
pub(super) struct SessionIdentity {
    pub(super) name: SessionName,
    pub(super) id: SessionId,
}

/// What all hosts of a capture have in common.
pub(super) struct Common {
    pub(super) dialer: Arc<Dialer>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) peer: Peer,
    pub(super) request: HostsRequest,
    pub(super) identity: SessionIdentity,
    /// The longest wait for an answer.
    pub(super) limit: Duration,
    pub(super) collection: Collection,
    pub(super) clocks: Semaphore,
}

/// What a host is told to do.
#[derive(Debug)]
pub(super) enum HostCommand {
    /// Measure the clock, and reserve.
    Reserve,
    /// Start then, in the host's clock.
    Start(Timestamp),
    Renew,
    /// Free the profilers and keep nothing; another reservation follows.
    Release,
    /// These parts are the session.
    Collect(Vec<HostPart>),
    /// The session is not kept.
    Remove,
    /// Put the manifest of the whole session beside the parts.
    PutManifest(Box<proto::tpuscope::v1::SessionManifest>),
}

/// What happened on a host.
#[derive(Debug)]
pub(super) enum Happened {
    Reached {
        instance: String,
    },
    Ready {
        host: ReservedHost,
        targets: usize,
    },
    /// This many bytes of one target were received by the agent.
    Received {
        target: u32,
        bytes: u64,
    },
    Recorded(Box<CaptureFinished>),
    /// This is known of the parts.
    Parts(PartsProgress),
    Stored(Vec<PartWriter>),
    Failed(HostFault),
    /// The session was removed, or could not be.
    Removed,
    ManifestPut(Result<String, HostFault>),
}

/// The conversation with one host.
pub(super) struct Conversation {
    pub(super) number: HostNumber,
    pub(super) host: HostAddress,
    pub(super) common: Arc<Common>,
    pub(super) commands: mpsc::Receiver<HostCommand>,
    pub(super) events: mpsc::Sender<(HostNumber, Happened)>,
    /// Ends it.
    pub(super) leave: CancellationToken,
}

/// How a reservation ended without a fault.
pub(super) enum ReservationEnd {
    /// The host has recorded.
    Recorded,
    /// The profilers are free again.
    Released,
}

/// A fault, or the end of the commands: the capture is over.
pub(super) enum ConversationEnd {
    Fault(HostFault),
    Over,
}

impl From<HostFault> for ConversationEnd {
    fn from(fault: HostFault) -> Self {
        Self::Fault(fault)
    }
}

impl Conversation {
    /// Goes on until the host failed, the commands end or it is left.
    pub(super) async fn run(mut self) {
        let leave = self.leave.clone();
        let common = Arc::clone(&self.common);
        let dialed = tokio::select! {
            dialed = common.dialer.dial(&self.host, common.limit) => dialed,
            () = leave.cancelled() => return,
        };
        let dialed = match dialed {
            Ok(dialed) => dialed,
            Err(error) => return self.tell(Happened::Failed(error.into())).await,
        };
        let ended = tokio::select! {
            ended = self.converse(dialed.channel(), dialed.time_left()) => ended,
            () = leave.cancelled() => ConversationEnd::Over,
        };
        let ConversationEnd::Fault(fault) = ended else { return dialed.close().await };
        match fault.lost() {
            Some(status) => {
                let why = tokio::select! {
                    why = dialed.lost(status) => HostFault::Dial(why),
                    // What the command still says is not worth a longer wait.
                    () = leave.cancelled() => return,
                };
                self.tell(Happened::Failed(why)).await;
            }
            None => {
                self.tell(Happened::Failed(fault)).await;
                dialed.close().await;
            }
        }
    }

    /// The driver may be gone.
    pub(super) async fn tell(&self, happened: Happened) {
        let _ = self.events.send((self.number, happened)).await;
    }

    async fn command(&mut self) -> Result<HostCommand, ConversationEnd> {
        self.commands.recv().await.ok_or(ConversationEnd::Over)
    }

    /// `first`: the longest wait for the first answer.
    async fn converse(&mut self, channel: Channel, first: Duration) -> ConversationEnd {
        match self.stages(channel, first).await {
            Ok(()) => ConversationEnd::Over,
            Err(ended) => ended,
        }
    }

    async fn stages(&mut self, channel: Channel, first: Duration) -> Result<(), ConversationEnd> {
        let instance = self.reach(channel.clone(), first).await?;
        self.tell(Happened::Reached { instance }).await;
        self.record(&channel).await?;
        loop {
            match self.command().await? {
                HostCommand::Collect(parts) => {
                    if !self.collect(&channel, parts).await? {
                        return Ok(());
                    }
                }
                HostCommand::Remove => {
                    self.remove(channel).await;
                    self.tell(Happened::Removed).await;
                    return Ok(());
                }
                // It had just recorded.
                HostCommand::Release => {
                    self.remove(channel.clone()).await;
                    self.record(&channel).await?;
                }
                HostCommand::PutManifest(manifest) => {
                    let put = collect::put_manifest(&self.common, channel.clone(), *manifest).await;
                    match put {
                        Err(fault) if fault.lost().is_some() => return Err(fault.into()),
                        put => self.tell(Happened::ManifestPut(put)).await,
                    }
                }
                HostCommand::Reserve | HostCommand::Start(_) | HostCommand::Renew => {}
            }
        }
    }

    /// Who answers, and whether it can take part.
    async fn reach(&self, channel: Channel, within: Duration) -> Result<String, HostFault> {
        let request = StatusRequest { peer: Some(self.common.peer.clone()) };
        let mut client = HostClient::new(channel);
        let reply = match timeout(within, client.status(request)).await {
            Ok(reply) => reply.map_err(|status| HostFault::Refused(Box::new(status)))?.into_inner(),
            Err(_) => {
                return Err(HostFault::Late { asked: "asked for its status", limit: self.common.limit });
            }
        };
        let peer = reply.peer.ok_or(HostFault::BadAnswer("an answer that does not say who it is"))?;
        let (there, here) = (peer.protocol, self.common.peer.protocol);
        if there != here {
            return Err(HostFault::Protocol { there, here });
        }
        let uploads = matches!(self.common.collection, Collection::Uploaded { .. });
        let (needed, unknown) = match self.common.request {
            HostsRequest::Capture(_) => (CAPABILITIES, "captures over several hosts"),
            HostsRequest::Snapshot(_) => (SNAPSHOT_CAPABILITIES, "snapshots over several hosts"),
        };
        let needed = needed.into_iter().chain(uploads.then_some(PARTS_ONLY));
        match needed.into_iter().find(|needed| !peer.capabilities.iter().any(|has| has == needed)) {
            Some(lacks) => Err(HostFault::Incapable { unknown, version: peer.version, lacks }),
            None => Ok(peer.instance),
        }
    }

    /// Waits for an answer within the limit. `asked` is what the host was asked to do.
    pub(super) async fn within<T>(
        &self,
        asked: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Response<T>, HostFault> {
        let limit = self.common.limit;
        match timeout(limit, answer).await {
            Ok(answer) => answer.map_err(|status| HostFault::Refused(Box::new(status))),
            Err(_) => Err(HostFault::Late { asked, limit }),
        }
    }

    /// Until the host has recorded. A busy host may be told to reserve again.
    async fn record(&mut self, channel: &Channel) -> Result<(), ConversationEnd> {
        loop {
            while !matches!(self.command().await?, HostCommand::Reserve) {}
            let ended = match self.common.request.clone() {
                HostsRequest::Capture(capture) => self.record_window(channel, capture).await,
                HostsRequest::Snapshot(past) => self.make_snapshot(channel, past).await,
            };
            match ended {
                Err(ConversationEnd::Fault(fault)) if fault.is_busy() => {
                    self.tell(Happened::Failed(fault)).await;
                }
                Ok(ReservationEnd::Released) => {}
                Ok(ReservationEnd::Recorded) => return Ok(()),
                Err(ended) => return Err(ended),
            }
        }
    }

    /// How far the host's clock is from this one. The time limit begins when it is the host's turn.
    pub(super) async fn measured_clock(&self, channel: Channel) -> Result<OffsetEstimate, HostFault> {
        // It is never closed.
        let _permit = self.common.clocks.acquire().await;
        let limit = self.common.limit;
        let trips = timeout(limit, self.round_trips(channel)).await;
        let trips = trips.map_err(|_| HostFault::Late { asked: "asked for its time", limit })??;
        Ok(clock_offset(&trips)?)
    }

    async fn round_trips(&self, channel: Channel) -> Result<Vec<RoundTrip>, HostFault> {
        let mut client = HostClient::new(channel);
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for number in 0..=ROUND_TRIPS {
            let peer = (number == 0).then(|| self.common.peer.clone());
            let sent = self.common.clock.now().0;
            let reply = self.within("asked for its time", client.clock(ClockRequest { peer })).await?;
            let returned = self.common.clock.now().0;
            let reply = reply.into_inner();
            // The first one has more to send.
            if number > 0 {
                let (received, replied) = (reply.received_unix_ns, reply.replied_unix_ns);
                trips.push(RoundTrip { sent, received, replied, returned });
            }
        }
        Ok(trips)
    }

    /// Whether it went on to its end: a command to remove the session ends it.
    async fn collect(&mut self, channel: &Channel, parts: Vec<HostPart>) -> Result<bool, ConversationEnd> {
        let common = Arc::clone(&self.common);
        let (number, events) = (self.number, self.events.clone());
        // What finds no room is followed by more.
        let told = move |progress| drop(events.try_send((number, Happened::Parts(progress))));
        let collected = collect::collect(&common, channel.clone(), parts, told);
        let removed = tokio::select! {
            collected = collected => {
                let parts = collected?;
                self.tell(Happened::Stored(parts)).await;
                false
            }
            removed = removal(&mut self.commands) => removed?,
        };
        if removed {
            self.remove(channel.clone()).await;
            self.tell(Happened::Removed).await;
        }
        Ok(!removed)
    }

    /// Removes the session from the store of the agent.
    pub(super) async fn remove(&self, channel: Channel) {
        let id = self.common.identity.name.to_string();
        let request = RemoveSessionRequest { peer: Some(self.common.peer.clone()), id };
        let mut client = SessionsClient::new(channel);
        // What cannot be removed goes by the limits of the store.
        let _ = self.within("asked to remove its session", client.remove(request)).await;
    }
}

/// The session that the agent kept.
pub(super) fn kept(
    finished: CaptureFinished,
    identity: &SessionIdentity,
) -> Result<CaptureFinished, HostFault> {
    match (&finished.session, finished.failure.clone()) {
        (Some(session), _) if session.id == identity.name.as_str() => Ok(finished),
        (Some(_), _) => Err(HostFault::BadAnswer("a session of another name")),
        (None, Some(failure)) => Err(of_failure(failure)),
        (None, None) => Err(HostFault::BadAnswer("neither a session nor a reason")),
    }
}

/// A capture that failed over there. This side did not cancel it: then nobody would ask.
pub(super) fn of_failure(failure: CaptureFailure) -> HostFault {
    match FailureReason::named(&failure.reason) {
        FailureReason::Cancelled | FailureReason::Stopping => HostFault::Stopped,
        _ => HostFault::Capture(Box::new(failure)),
    }
}

/// Waits for the command to remove the session.
async fn removal(commands: &mut mpsc::Receiver<HostCommand>) -> Result<bool, ConversationEnd> {
    loop {
        match commands.recv().await {
            None => return Err(ConversationEnd::Over),
            Some(HostCommand::Remove) => return Ok(true),
            Some(_) => {}
        }
    }
}
