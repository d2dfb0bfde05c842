//! One host's side of a window to come: its clock is measured, its profilers are reserved, and it records from the start that it
//! is given.

use std::time::Duration;

use cluster::clock_offset::OffsetEstimate;
use proto::tpuscope::v1::{
    CaptureEvent, CaptureFinished, CaptureRequest, HostCaptureEvent, HostCaptureRequest, HostReady,
    RenewLease, ReserveHost, StartHost, capture_event, captures_client::CapturesClient, host_capture_event,
    host_capture_request::Request as Ask, target_event,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use super::{
    collect::Collection,
    conversation::{Conversation, ConversationEnd, Happened, HostCommand, ReservationEnd, kept, of_failure},
    fault::HostFault,
    machine::ReservedHost,
};

/// The longest time for which an agent reserves without hearing from us.
const LEASE: Duration = Duration::from_secs(10);
/// The requests that wait to be sent.
const REQUESTS: usize = 8;
/// What a host is asked until it is ready.
const RESERVE: &str = "asked to reserve its profilers";

type ReservationRequests = mpsc::Sender<HostCaptureRequest>;
type ReservationEvents = Streaming<HostCaptureEvent>;

impl Conversation {
    /// Until the host has recorded, or is released.
    pub(super) async fn record_window(
        &mut self,
        channel: &Channel,
        capture: CaptureRequest,
    ) -> Result<ReservationEnd, ConversationEnd> {
        let clock = self.measured_clock(channel.clone()).await?;
        let (requests, mut events) = self.reserve(channel.clone(), capture).await?;
        let limit = self.common.limit;
        let ready = timeout(limit, first(&mut events)).await;
        let ready = ready.map_err(|_| HostFault::Late { asked: RESERVE, limit })??;
        let targets = ready.targets.len();
        self.tell(Happened::Ready { host: reserved_host(ready, clock)?, targets }).await;
        loop {
            tokio::select! {
                command = self.commands.recv() => match command.ok_or(ConversationEnd::Over)? {
                    HostCommand::Start(at) => ask(&requests, Ask::Start(StartHost { start_unix_ns: at.0 })),
                    HostCommand::Renew => ask(&requests, Ask::Renew(RenewLease {})),
                    HostCommand::Release => {
                        self.release(requests, events, channel).await;
                        return Ok(ReservationEnd::Released);
                    }
                    HostCommand::Remove => {
                        self.release(requests, events, channel).await;
                        self.tell(Happened::Removed).await;
                        return Err(ConversationEnd::Over);
                    }
                    HostCommand::Reserve | HostCommand::Collect(_) | HostCommand::PutManifest(_) => {}
                },
                event = next(&mut events) => {
                    if let Some(finished) = self.shown(event?).await {
                        let finished = kept(finished, &self.common.identity)?;
                        self.tell(Happened::Recorded(Box::new(finished))).await;
                        return Ok(ReservationEnd::Recorded);
                    }
                }
            }
        }
    }

    async fn reserve(
        &self,
        channel: Channel,
        capture: CaptureRequest,
    ) -> Result<(ReservationRequests, ReservationEvents), HostFault> {
        let (requests, queue) = mpsc::channel(REQUESTS);
        let reserve = ReserveHost {
            capture: Some(capture),
            lease_ns: u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX),
            session_id: self.common.identity.id.to_string(),
            parts_only: matches!(self.common.collection, Collection::Uploaded { .. }),
        };
        ask(&requests, Ask::Reserve(reserve));
        let mut client = CapturesClient::new(channel);
        let events = self.within(RESERVE, client.capture_on_host(ReceiverStream::new(queue))).await?;
        Ok((requests, events.into_inner()))
    }

    /// Ends a capture, and waits for its end: then the profilers are free. What it recorded nevertheless is removed.
    async fn release(&self, requests: ReservationRequests, mut events: ReservationEvents, channel: &Channel) {
        drop(requests);
        let last = async {
            while let Ok(event) = next(&mut events).await {
                if let Some(finished) = self.shown(event).await {
                    return finished.session.is_some();
                }
            }
            false
        };
        // One that does not end is busy with this capture when it is asked again.
        if timeout(self.common.limit, last).await == Ok(true) {
            self.remove(channel.clone()).await;
        }
    }

    /// Shows an event of the capture; the last one is returned.
    async fn shown(&self, event: host_capture_event::Event) -> Option<CaptureFinished> {
        let host_capture_event::Event::Capture(event) = event else { return None };
        match event.event? {
            capture_event::Event::Finished(finished) => return Some(finished),
            capture_event::Event::Target(target) => {
                if let target_event::Event::ReceivedBytes(bytes) = target.event? {
                    self.tell(Happened::Received { target: target.index, bytes }).await;
                }
            }
            capture_event::Event::Started(_) => {}
        }
        None
    }
}

/// Sends a request. One that finds no room, or nobody, is not missed: the answers say more.
fn ask(requests: &ReservationRequests, request: Ask) {
    let _ = requests.try_send(HostCaptureRequest { request: Some(request) });
}

async fn next(events: &mut ReservationEvents) -> Result<host_capture_event::Event, HostFault> {
    loop {
        let event = events.message().await.map_err(|status| HostFault::Refused(Box::new(status)))?;
        let event = event.ok_or(HostFault::BadAnswer("no end of its capture"))?;
        // What a later agent sends besides is nothing that is needed.
        if let Some(event) = event.event {
            return Ok(event);
        }
    }
}

/// Until the host is ready, or its capture has failed before that.
async fn first(events: &mut ReservationEvents) -> Result<HostReady, HostFault> {
    loop {
        match next(events).await? {
            host_capture_event::Event::Ready(ready) => return Ok(ready),
            host_capture_event::Event::Capture(CaptureEvent {
                event: Some(capture_event::Event::Finished(finished)),
            }) => {
                let failure = finished.failure.ok_or(HostFault::BadAnswer("a capture that never started"))?;
                return Err(of_failure(failure));
            }
            host_capture_event::Event::Capture(_) => {}
        }
    }
}

fn reserved_host(ready: HostReady, clock: OffsetEstimate) -> Result<ReservedHost, HostFault> {
    let name = ready.host.parse().map_err(|_| HostFault::BadAnswer("a host name that is none"))?;
    let lead = Duration::from_nanos(ready.lead_ns);
    // It would make all others wait.
    if lead > LEASE {
        return Err(HostFault::BadAnswer("a lead time that is longer than its lease"));
    }
    Ok(ReservedHost { name, clock, lead, destination: ready.destination_url })
}
