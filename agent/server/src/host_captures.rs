//! `Captures.CaptureOnHost`: this host in a capture over several hosts.
//!
//! A task for each call carries messages between the caller, its [`HostReservation`] and the capture. Must never leave a
//! capture behind that has no caller, nor wait for one without a limit.

use std::time::Duration;

use ::sessions::{
    CaptureError,
    capture::{HostShare, ReadyHost},
    capture_runner::{Caller, CaptureJob, RunningCapture, SessionUse, StoredCapture},
    recorder::JobAndUser,
    reservation::{DEFAULT_LEASE, HostReservation, MAX_LEASE, ReservationEvent},
    target::CaptureTarget,
};
use model::time::Timestamp;
use proto::tpuscope::v1::{
    CaptureEvent, CaptureRequest, HostCaptureEvent, HostCaptureRequest, HostReady, ReserveHost,
    host_capture_event, host_capture_request::Request,
};
use store::{destinations::NO_DESTINATION, uploads::UploadChoice};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::info;
use xprof::session::{SessionId, SessionName};

use super::{
    access::Scope,
    capture_events::{self, listener, of_target},
    grpc_captures::{GrpcCaptures, params},
    parts_upload::{check_name, parts_upload},
    protocol, session_messages,
};

/// The longest wait for the first message, and for a caller that does not read the last event.
const PATIENCE: Duration = Duration::from_secs(10);

/// One call.
pub(crate) struct HostCall {
    service: GrpcCaptures,
    requests: Streaming<HostCaptureRequest>,
    events: mpsc::Sender<Result<HostCaptureEvent, Status>>,
    scope: Scope,
    caller: Caller,
}

/// What the caller reserves, checked.
#[derive(Debug)]
struct HostOrder {
    capture: CaptureRequest,
    session: SessionName,
    id: SessionId,
    lease: Duration,
}

/// The ends of a reservation that the capture does not have.
struct ReservationControl {
    ready: oneshot::Receiver<()>,
    start: oneshot::Sender<Timestamp>,
}

impl HostCall {
    pub(crate) fn new(
        service: GrpcCaptures,
        requests: Streaming<HostCaptureRequest>,
        events: mpsc::Sender<Result<HostCaptureEvent, Status>>,
        scope: Scope,
        caller: Caller,
    ) -> Self {
        Self { service, requests, events, scope, caller }
    }

    /// Serves it to its end.
    pub(crate) async fn serve(mut self) {
        let last = self.capture().await;
        // The caller may be gone.
        let _ = timeout(PATIENCE, self.events.send(last)).await;
    }

    /// Runs the capture. Returns the last event.
    async fn capture(&mut self) -> Result<HostCaptureEvent, Status> {
        let order = self.order().await?;
        let (job, control) = self.job(&order).await?;
        let result = match self.start(&order, job).await {
            Ok(running) => self.drive(&order, running, control).await,
            Err(error @ CaptureError::Spec(_)) => return Err(session_messages::status(&error)),
            Err(error) => Err(error),
        };
        if let Ok(done) = &result {
            self.service.grants.add(&self.scope, &done.stored.name, done.stored.created);
        }
        Ok(of_capture(capture_events::finished(result)))
    }

    /// The first message.
    async fn order(&mut self) -> Result<HostOrder, Status> {
        let first = timeout(PATIENCE, self.requests.message()).await;
        let first = first.map_err(|_| {
            Status::deadline_exceeded(format!("no reservation came within {} s", PATIENCE.as_secs()))
        })??;
        match first.and_then(|message| message.request) {
            Some(Request::Reserve(reserve)) => checked(reserve),
            _ => Err(Status::invalid_argument("the first message reserves the host; set `reserve`")),
        }
    }

    async fn start(&self, order: &HostOrder, job: CaptureJob) -> Result<RunningCapture, CaptureError> {
        let targets = job.targets.targets.len();
        let duration = job.params.duration;
        let mut url = None;
        // Who has nothing to profile learns nothing of the names at a destination.
        if let UploadChoice::Parts(Some(agreed)) = &job.upload
            && targets > 0
        {
            check_name(&self.service.uploads, &order.session, &order.id, agreed).await?;
            url = Some(agreed.url.to_string());
        }
        let running = self.service.captures.start(job).await?;
        let (session, id, Caller { uid, pid, remote }) = (&order.session, &order.id, &self.caller);
        let remote = remote.as_deref();
        info!(%session, %id, uid, pid, remote, targets, ?duration, url, "reserved for a capture over several hosts");
        Ok(running)
    }

    async fn job(&self, order: &HostOrder) -> Result<(CaptureJob, ReservationControl), Status> {
        let targets = self.service.targets(&self.scope, &order.capture).await;
        let upload = self.upload(order, &targets.targets)?;
        let url = match &upload {
            UploadChoice::Parts(Some(agreed)) => agreed.url.to_string(),
            _ => String::new(),
        };
        let (tell_ready, ready) = oneshot::channel();
        let (start, started) = oneshot::channel();
        let (events, host) = (self.events.clone(), self.service.host.to_string());
        let announce = move |ready: ReadyHost| {
            // Before the event: the caller's answer may come at once.
            let _ = tell_ready.send(());
            let event = host_capture_event::Event::Ready(message(ready, host, url));
            let _ = events.try_send(Ok(HostCaptureEvent { event: Some(event) }));
        };
        let job = CaptureJob {
            params: params(&order.capture),
            session: Some(order.session.clone()),
            targets,
            upload,
            listener: listener(self.events.clone(), of_capture),
            caller: self.caller.clone(),
            enough: CancellationToken::new(),
            share: Some(HostShare { id: order.id.clone(), ready: Box::new(announce), start: started }),
            session_use: SessionUse::Kept,
        };
        Ok((job, ReservationControl { ready, start }))
    }

    /// Where the parts go.
    fn upload(&self, order: &HostOrder, targets: &[CaptureTarget]) -> Result<UploadChoice, Status> {
        let parts: Vec<JobAndUser> = targets.iter().map(job_and_user).collect();
        let (settings, now) = (self.service.uploads.settings(), self.service.captures.now());
        parts_upload(&settings.destinations, &order.capture.destination, &self.scope, now, &parts)
    }

    /// Waits for the result, as long as the caller is there.
    async fn drive(
        &mut self,
        order: &HostOrder,
        running: RunningCapture,
        control: ReservationControl,
    ) -> Result<StoredCapture, CaptureError> {
        let RunningCapture { cancel, mut result } = running;
        let ReservationControl { mut ready, start } = control;
        let mut start = Some(start);
        let epoch = Instant::now();
        let mut reservation = HostReservation::new(order.lease, Duration::ZERO);
        let mut waits = true;
        loop {
            let deadline = epoch + reservation.deadline().unwrap_or_default();
            let event = tokio::select! {
                biased;
                ended = &mut result => return ended.unwrap_or_else(|_| Err(panicked())),
                told = &mut ready, if waits => {
                    waits = false;
                    // Without a word it failed before: its result follows.
                    if told.is_ok() { ReservationEvent::Ready } else { ReservationEvent::Tick }
                }
                message = self.requests.message() => event(message, self.service.captures.now()),
                () = self.events.closed() => ReservationEvent::HungUp,
                () = sleep_until(deadline) => ReservationEvent::Tick,
            };
            match reservation.apply(event, epoch.elapsed()) {
                Ok(None) => {}
                Ok(Some(at)) => {
                    if let Some(start) = start.take() {
                        // A capture that has just ended does not need it.
                        let _ = start.send(at);
                    }
                }
                Err(error) => {
                    let (session, id, Caller { uid, pid, remote }) =
                        (&order.session, &order.id, &self.caller);
                    let remote = remote.as_deref();
                    info!(%session, %id, uid, pid, remote, %error, "the capture over several hosts ends here early");
                    drop(cancel);
                    // It ends when the profilers are free.
                    return match result.await {
                        Ok(Err(CaptureError::Cancelled)) => Err(error.into()),
                        Ok(ended) => ended,
                        Err(_) => Err(panicked()),
                    };
                }
            }
        }
    }
}

fn panicked() -> CaptureError {
    CaptureError::Panicked("the agent's log has the reason".to_owned())
}

/// What a message of the caller means.
fn event(message: Result<Option<HostCaptureRequest>, Status>, now: Timestamp) -> ReservationEvent {
    match message {
        Ok(Some(HostCaptureRequest { request: Some(Request::Start(start)) })) => {
            ReservationEvent::Start { start: Timestamp(start.start_unix_ns), now }
        }
        Ok(Some(HostCaptureRequest { request: Some(Request::Reserve(_)) })) => {
            ReservationEvent::ReservedAgain
        }
        // What a later caller may send says at least that it is there.
        Ok(Some(HostCaptureRequest { request: Some(Request::Renew(_)) | None })) => ReservationEvent::Renewed,
        Ok(None) | Err(_) => ReservationEvent::HungUp,
    }
}

fn of_capture(event: CaptureEvent) -> HostCaptureEvent {
    HostCaptureEvent { event: Some(host_capture_event::Event::Capture(event)) }
}

/// The id of the job and the user of a part to be, as its manifest will have them.
fn job_and_user(target: &CaptureTarget) -> JobAndUser {
    let user = target.user.clone().or_else(|| target.uid.map(|uid| uid.to_string()));
    (target.job.as_ref().map(|job| job.id.clone()), user)
}

fn message(ready: ReadyHost, host: String, destination_url: String) -> HostReady {
    HostReady {
        peer: Some(protocol::agent()),
        host,
        lead_ns: u64::try_from(ready.lead.as_nanos()).unwrap_or(u64::MAX),
        targets: ready.targets.iter().zip(0..).map(|(target, index)| of_target(target, index)).collect(),
        destination_url,
    }
}

fn checked(reserve: ReserveHost) -> Result<HostOrder, Status> {
    let invalid = |what: String| Status::invalid_argument(what);
    let capture = reserve.capture.ok_or_else(|| invalid("the reservation has no `capture`".to_owned()))?;
    protocol::check(capture.peer.as_ref())?;
    if capture.start_unix_ns.is_some() {
        return Err(invalid("the reservation has a start: it follows when all hosts are ready".to_owned()));
    }
    if !reserve.parts_only && !matches!(capture.destination.as_str(), "" | NO_DESTINATION) {
        return Err(invalid(
            "one host's manifest is not the session's: a destination needs `parts_only`".to_owned(),
        ));
    }
    let lease = match reserve.lease_ns {
        0 => DEFAULT_LEASE,
        lease => Duration::from_nanos(lease),
    };
    if lease > MAX_LEASE {
        return Err(invalid(format!("a lease of {lease:?} is too long: at most {MAX_LEASE:?}")));
    }
    let session = capture.session.parse().map_err(|error| invalid(format!("session: {error}")))?;
    let id = reserve.session_id.parse().map_err(|error| invalid(format!("session_id: {error}")))?;
    Ok(HostOrder { capture, session, id, lease })
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::StartHost;
    use tonic::Code;

    use super::*;

    fn reserve() -> ReserveHost {
        let capture = CaptureRequest {
            peer: Some(protocol::own()),
            duration_ns: 1_000_000_000,
            session: "s".to_owned(),
            ..CaptureRequest::default()
        };
        ReserveHost { capture: Some(capture), session_id: "0".repeat(32), ..ReserveHost::default() }
    }

    #[test]
    fn a_reservation_is_checked_before_anything_is_disturbed() {
        let checked_after = |change: fn(&mut ReserveHost, &mut CaptureRequest)| {
            let mut reserve = reserve();
            let mut capture = reserve.capture.take().unwrap();
            change(&mut reserve, &mut capture);
            reserve.capture = Some(capture);
            checked(reserve)
                .map(|order| order.lease)
                .map_err(|status| (status.code(), status.message().to_owned()))
        };
        let refused = |change, why: &str| {
            let (code, message) = checked_after(change).unwrap_err();
            assert!(code == Code::InvalidArgument && message.contains(why), "{code}: {message}");
        };
        assert_eq!(checked_after(|_, _| {}), Ok(DEFAULT_LEASE));
        assert_eq!(checked_after(|reserve, _| reserve.lease_ns = 1_000_000_000), Ok(Duration::from_secs(1)));
        refused(|reserve, _| reserve.lease_ns = 61_000_000_000, "a lease of 61s is too long: at most 60s");
        refused(|_, capture| capture.session.clear(), "session: the name is empty");
        refused(|_, capture| capture.session = "../x".to_owned(), "session: the name");
        refused(|_, capture| capture.start_unix_ns = Some(1), "the reservation has a start");
        refused(|_, capture| capture.peer = None, "no protocol number");
        refused(|_, capture| capture.destination = "bucket".to_owned(), "a destination needs `parts_only`");
        assert_eq!(checked_after(|_, capture| capture.destination = "none".to_owned()), Ok(DEFAULT_LEASE));
        refused(|reserve, _| reserve.session_id.clear(), "session_id: an id");
        refused(|reserve, _| reserve.session_id = "A".repeat(32), "session_id: an id");
        assert_eq!(checked(ReserveHost::default()).unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn whatever_a_later_caller_sends_renews_the_lease() {
        let now = Timestamp(7);
        let of = |request| event(Ok(Some(HostCaptureRequest { request })), now);
        assert_eq!(of(None), ReservationEvent::Renewed);
        let start = Request::Start(StartHost { start_unix_ns: 9 });
        assert_eq!(of(Some(start)), ReservationEvent::Start { start: Timestamp(9), now });
        assert_eq!(of(Some(Request::Reserve(reserve()))), ReservationEvent::ReservedAgain);
        assert_eq!(event(Ok(None), now), ReservationEvent::HungUp);
        assert_eq!(event(Err(Status::cancelled("")), now), ReservationEvent::HungUp);
    }
}
