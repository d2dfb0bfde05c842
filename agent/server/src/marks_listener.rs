//! The marks socket: one connection of packets for each program that marks.
//!
//! The kernel names the user once, when a connection is made. A user who sends faster than `marks.max_rate` is read more
//! slowly, so that the marks wait in the program. Must never wait for a program: an answer that does not fit is left out.

use std::{collections::BTreeMap, io, os::unix::net, sync::Arc, time::Duration};

use marks::{
    attribution::{MarkingWorkload, attributed},
    inbox::{Acknowledgement, Inbox},
    mark_line::{MarkFault, MarkLine},
    own_metrics,
    packet::{AgentAnswer, PACKET_BYTES, Packet, PacketError, RecorderId},
    quota::Quotas,
};
use model::snapshot::HostSnapshot;
use nix::unistd::Uid;
use rustix::net::{RecvFlags, SendFlags};
use store::marks::MarkBatch;
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    connection_limits::{ConnectionLimits, ConnectionSlot, LimitPolicy},
    peer::UnixPeer,
    refusals::{RefusalReason, Refusals, RefusedPeer},
};
use crate::ServeResult;

/// The wait after a failed accept, for example when no file descriptors are left.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Where marks go, and what is known of who sends them.
#[derive(Debug, Clone)]
pub struct MarkIntake {
    /// The queue to the disk.
    pub inbox: Inbox,
    /// How fast each user may send.
    pub quotas: Arc<Quotas>,
    /// The workloads of this host.
    pub workloads: watch::Receiver<HostSnapshot>,
}

/// The listener of the marks socket.
#[derive(Debug)]
pub struct MarksListener {
    listener: UnixListener,
    intake: MarkIntake,
    connection_limits: ConnectionLimits,
    overflow_uid: Option<u32>,
    refusals: Refusals,
}

impl MarksListener {
    /// Serves a socket of packets, which listens and does not block. `overflow_uid` is the result of
    /// [`overflow_uid`](crate::peer::overflow_uid).
    ///
    /// # Errors
    /// If the runtime cannot watch it.
    pub fn new(
        listener: net::UnixListener,
        intake: MarkIntake,
        max_connections: u16,
        overflow_uid: Option<u32>,
    ) -> io::Result<Self> {
        let policy = LimitPolicy::ByUser(Uid::effective().as_raw());
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            intake,
            connection_limits: ConnectionLimits::new(max_connections, policy),
            overflow_uid,
            refusals: Refusals::of("marks"),
        })
    }

    /// Accepts programs until `stop`.
    ///
    /// # Errors
    /// None: a failed accept is tried again.
    pub async fn serve(&self, stop: CancellationToken) -> ServeResult {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((socket, _)) => {
                        if let Some(connection) = self.admit(socket) {
                            connections.spawn(connection.run());
                        }
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept a connection for marks");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
        self.refusals.flush();
        Ok(())
    }

    /// The connection of a program, if there is room for its user.
    fn admit(&self, socket: UnixStream) -> Option<MarksConnection> {
        let refuse = |reason, uid, detail| {
            self.refusals.add(reason, RefusedPeer { uid, address: None }, detail);
            None
        };
        let peer = match UnixPeer::of(&socket) {
            Ok(peer) => peer,
            Err(error) => return refuse(RefusalReason::UnknownPeer, None, Some(error.to_string())),
        };
        let uid = peer.uid();
        // The id of many users is nobody's.
        if Some(uid) == self.overflow_uid {
            return refuse(RefusalReason::UnknownPeer, Some(uid), None);
        }
        let Some(slot) = self.connection_limits.take(Some(uid)) else {
            say(&socket, AgentAnswer::NoConnection);
            return refuse(RefusalReason::NoSlot, Some(uid), None);
        };
        let intake = self.intake.clone();
        Some(MarksConnection { socket, uid, pid: peer.pid(), intake, recorder: None, _slot: slot })
    }
}

/// Sends an answer if the program has room for it, and is still there: what it sent before it ended is read all the same.
fn say(socket: &UnixStream, answer: AgentAnswer) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // The end of the program is seen by reading.
    let _ = rustix::net::send(socket, answer.to_string().as_bytes(), flags);
}

/// The connection of one program.
#[derive(Debug)]
struct MarksConnection {
    /// Of packets, which only the calls for packets keep apart.
    socket: UnixStream,
    uid: u32,
    pid: Option<u32>,
    intake: MarkIntake,
    recorder: Option<RecorderId>,
    _slot: ConnectionSlot,
}

impl MarksConnection {
    /// Reads packets and acknowledges what is stored, until either side closes.
    async fn run(mut self) {
        let (acknowledgements, mut latest) = watch::channel(Acknowledgement::Nothing);
        let acknowledgements = Arc::new(acknowledgements);
        // One byte more than a packet may have.
        let mut buffer = vec![0; PACKET_BYTES + 1];
        let mut resume = Instant::now();
        let mut was_reset = false;
        loop {
            tokio::select! {
                changed = latest.changed() => {
                    let acknowledged = *latest.borrow_and_update();
                    if changed.is_err() || !self.acknowledge(acknowledged) {
                        return;
                    }
                }
                received = self.receive(&mut buffer, resume) => {
                    let bytes = match received {
                        Ok(bytes) if bytes > 0 => bytes,
                        // The program ended and left an answer unread. What it sent before comes after this error.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !was_reset => {
                            was_reset = true;
                            continue;
                        }
                        // 0: the program closed, or sent a packet without content.
                        _ => return,
                    };
                    let Some(batch) = self.take(&buffer, bytes) else { return };
                    let marks = batch.marks.len();
                    let now = Instant::now();
                    let wait = self.intake.quotas.charge(self.uid, marks, bytes, now);
                    if !wait.is_zero() {
                        own_metrics::held_back();
                    }
                    resume = now + wait;
                    if self.intake.inbox.submit(batch, Arc::clone(&acknowledgements)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// The next packet, not before `resume`. The result is its length, which may be more than the buffer has.
    async fn receive(&self, buffer: &mut [u8], resume: Instant) -> io::Result<usize> {
        tokio::time::sleep_until(resume).await;
        let receive = || {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let (_, bytes) = rustix::net::recv(&self.socket, &mut *buffer, flags)?;
            Ok(bytes)
        };
        self.socket.async_io(Interest::READABLE, receive).await
    }

    /// Tells the program how far its marks are stored. Returns whether the connection goes on.
    fn acknowledge(&self, acknowledged: Acknowledgement) -> bool {
        match acknowledged {
            Acknowledgement::Nothing => true,
            Acknowledgement::Stored(number) => {
                self.say(AgentAnswer::Stored(number));
                true
            }
            Acknowledgement::Failed => {
                self.say(AgentAnswer::NotStored);
                false
            }
        }
    }

    fn say(&self, answer: AgentAnswer) {
        say(&self.socket, answer);
    }

    /// The marks of a packet. `None`: it cannot be used, and the program was told why.
    fn take(&mut self, buffer: &[u8], bytes: usize) -> Option<MarkBatch> {
        let packet = buffer.get(..bytes).ok_or(PacketError::TooLarge).and_then(Packet::parse);
        let packet = packet.and_then(|packet| match &self.recorder {
            Some(recorder) if *recorder != packet.recorder => Err(PacketError::OtherRecorder),
            _ => Ok(packet),
        });
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => {
                debug!(uid = self.uid, pid = self.pid, %error, "a packet of marks cannot be used");
                own_metrics::bad_packet();
                self.say(AgentAnswer::Unusable(error));
                return None;
            }
        };
        self.recorder.get_or_insert_with(|| packet.recorder.clone());
        let workload = MarkingWorkload::of(&self.intake.workloads.borrow(), self.uid, self.pid);
        let mut faults = BTreeMap::<MarkFault, usize>::new();
        let marks = packet.lines().map(|line| {
            let mark = MarkLine::parse(line).and_then(|line| attributed(line, workload.as_ref()));
            mark.inspect_err(|fault| *faults.entry(*fault).or_default() += 1).ok()
        });
        let marks = marks.collect();
        for (fault, count) in faults {
            own_metrics::refused(fault, count);
            self.say(AgentAnswer::Refused(count, fault));
        }
        Some(MarkBatch {
            uid: self.uid,
            numbered: Some((packet.recorder.into_string(), packet.first)),
            marks,
            refused_of: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
