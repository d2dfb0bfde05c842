//! Drives a capture: carries what hosts did to the machine, and what it decides to the conversations.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cluster::hosts::HostAddress;
use proto::tpuscope::v1::{CaptureFinished, CaptureRequest};
use tokio::{
    sync::{Semaphore, mpsc},
    task::{JoinError, JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use xprof::session::{ClockOffset, Manifest, PartWriter, SessionId, SessionName, Window};

use super::{
    CapturedHost, Coordinator, CoordinatorError, HostFault, HostProgress, HostResult, HostsCapture,
    HostsListener, Keep, KeptCapture, SessionLocation,
    collect::{COPIES_AT_A_TIME, Collection},
    conversation::{CLOCKS_AT_A_TIME, Command, Common, Conversation, Happened, SessionIdentity},
    machine::{CaptureRules, GiveUp, HostAction, HostInput, HostNumber, Machine, Now, ReservedHost},
};
use crate::{
    fetch::FetchError,
    joined_manifest::{self, RecordedHost},
    manifest_messages, session_folder,
};

/// Events of all hosts that wait to be handled.
const EVENTS: usize = 256;
/// Commands that wait for a host.
const COMMANDS: usize = 16;
/// How long the connections have to end.
const CLOSING: Duration = Duration::from_secs(2);
/// The time beyond the limit of its answers that an agent has to keep what it recorded.
const KEEPING: Duration = Duration::from_secs(30);
/// A start that is later than wished by more than this is told.
const LATE: Duration = Duration::from_millis(1);

impl Coordinator {
    /// Captures. `cancel` ends it, with nothing kept here.
    ///
    /// # Errors
    /// If nothing is kept.
    pub async fn capture(
        &self,
        capture: HostsCapture,
        cancel: &CancellationToken,
    ) -> Result<KeptCapture, CoordinatorError> {
        let run = self.begin(capture).await?;
        run.finish(cancel).await
    }

    async fn begin(&self, capture: HostsCapture) -> Result<Run, CoordinatorError> {
        let (collection, name) = match &capture.keep {
            Keep::Folder(logdir) => {
                let (logdir, named, now) = (logdir.clone(), capture.session.clone(), self.clock.now());
                let created = spawn_blocking(move || session_folder::create(&logdir, named, now));
                let writer = created.await.map_err(panicked)??;
                let name = writer.name().clone();
                let copies = Semaphore::new(COPIES_AT_A_TIME);
                (Collection::Copied { writer: Arc::new(writer), copies }, name)
            }
            Keep::Destination { name, limit } => {
                let session = capture.session.clone();
                let session = session.unwrap_or_else(|| SessionName::of_time(self.clock.now().into()));
                (Collection::Uploaded { destination: name.clone(), limit: *limit }, session)
            }
        };
        let id =
            SessionId::random().ok_or_else(|| CoordinatorError::Panicked("no random bytes".to_owned()))?;
        let destination = match &capture.keep {
            Keep::Folder(_) => capture.request.destination.clone(),
            Keep::Destination { name, .. } => name.clone(),
        };
        let request = CaptureRequest {
            peer: Some(self.peer.clone()),
            session: name.to_string(),
            start_unix_ns: None,
            destination,
            ..capture.request.clone()
        };
        let common = Common {
            dialer: Arc::clone(&self.dialer),
            clock: Arc::clone(&self.clock),
            peer: self.peer.clone(),
            request,
            identity: SessionIdentity { name, id },
            limit: capture.host_limit,
            collection,
            clocks: Semaphore::new(CLOCKS_AT_A_TIME),
        };
        Ok(Run::new(capture, Arc::new(common), Arc::clone(&self.listener)))
    }
}

/// A host of the running capture.
struct RunningHost {
    given: HostAddress,
    commands: mpsc::Sender<Command>,
    leave: CancellationToken,
    ready: Option<ReservedHost>,
    recorded: bool,
    trace: Option<RecordedHost>,
    failures: Vec<proto::tpuscope::v1::CaptureFailure>,
    stored: Option<Vec<PartWriter>>,
    fault: Option<HostFault>,
}

impl RunningHost {
    /// Tells the host something. One that does not listen has ended, and says why.
    fn tell(&self, command: Command) {
        let _ = self.commands.try_send(command);
    }
}

/// A running capture.
struct Run {
    capture: HostsCapture,
    common: Arc<Common>,
    machine: Machine,
    listener: HostsListener,
    hosts: Vec<RunningHost>,
    events: mpsc::Receiver<(HostNumber, Happened)>,
    conversations: JoinSet<()>,
}

impl Run {
    fn new(capture: HostsCapture, common: Arc<Common>, listener: HostsListener) -> Self {
        let window = Duration::from_nanos(capture.request.duration_ns);
        let rules = CaptureRules {
            min_hosts: capture.min_hosts.max(1),
            start: capture.start,
            recording: window + capture.answer_limit + KEEPING,
            busy: capture.busy_limit,
            overall: capture.overall_limit,
            uploads: matches!(capture.keep, Keep::Destination { .. }),
        };
        let machine = Machine::new(capture.hosts.clone(), rules, now(&common));
        let (send, events) = mpsc::channel(EVENTS);
        let mut conversations = JoinSet::new();
        let mut hosts = Vec::with_capacity(capture.hosts.len());
        for (number, host) in capture.hosts.iter().enumerate() {
            let (commands, told) = mpsc::channel(COMMANDS);
            let leave = CancellationToken::new();
            let conversation = Conversation {
                number,
                host: host.clone(),
                common: Arc::clone(&common),
                commands: told,
                events: send.clone(),
                leave: leave.clone(),
            };
            conversations.spawn(conversation.run());
            hosts.push(RunningHost {
                given: host.clone(),
                commands,
                leave,
                ready: None,
                recorded: false,
                trace: None,
                failures: Vec::new(),
                stored: None,
                fault: None,
            });
        }
        Self { capture, common, machine, listener, hosts, events, conversations }
    }

    async fn finish(mut self, cancel: &CancellationToken) -> Result<KeptCapture, CoordinatorError> {
        let enough = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(self.cancelled()),
            enough = self.until_concluded() => enough,
        };
        let kept = match enough {
            Ok(true) => self.keep().await,
            Ok(false) => Err(self.keep_nothing().await),
            Err(error) => Err(error),
        };
        for host in &self.hosts {
            host.leave.cancel();
        }
        let mut conversations = std::mem::take(&mut self.conversations);
        // Nobody hears them any more.
        self.events.close();
        let _ = timeout(CLOSING, async { while conversations.join_next().await.is_some() {} }).await;
        kept
    }

    fn cancelled(&self) -> CoordinatorError {
        CoordinatorError::Cancelled { recorded: self.hosts.iter().any(|host| host.recorded) }
    }

    /// Until all hosts are stored or missing. Returns whether there are enough.
    async fn until_concluded(&mut self) -> Result<bool, CoordinatorError> {
        loop {
            let wake = self.machine.wake(now(&self.common));
            let due = async {
                match wake {
                    Some(after) => sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            let actions = tokio::select! {
                biased;
                Some((host, happened)) = self.events.recv() => self.happened(host, happened)?,
                // One that panicked tells nothing any more.
                Some(ended) = self.conversations.join_next() => {
                    ended.map_err(panicked)?;
                    continue;
                }
                () = due => self.machine.tick(now(&self.common)),
            };
            for action in actions {
                if let Some(enough) = self.act(action) {
                    return Ok(enough);
                }
            }
        }
    }

    /// Carries what happened to the machine.
    fn happened(
        &mut self,
        number: HostNumber,
        happened: Happened,
    ) -> Result<Vec<HostAction>, CoordinatorError> {
        let input = match happened {
            Happened::Reached { instance } => {
                (self.listener)(HostProgress::Reached);
                HostInput::Reached { instance }
            }
            Happened::Ready { host, targets } => {
                (self.listener)(HostProgress::Ready(targets));
                self.hosts[number].ready = Some(host.clone());
                HostInput::Ready(host)
            }
            Happened::Received { target, bytes } => {
                (self.listener)(HostProgress::Received { host: number, target, bytes });
                return Ok(Vec::new());
            }
            Happened::Copied(bytes) => {
                (self.listener)(HostProgress::Copied { host: number, bytes });
                return Ok(Vec::new());
            }
            Happened::Recorded(finished) => match self.recorded(number, *finished) {
                Ok(()) => {
                    (self.listener)(HostProgress::Recorded);
                    HostInput::Recorded
                }
                Err(fault) => self.failed(number, fault)?,
            },
            Happened::Stored(parts) => {
                (self.listener)(HostProgress::Stored);
                self.hosts[number].stored = Some(parts);
                HostInput::Stored
            }
            Happened::Failed(fault) => self.failed(number, fault)?,
            Happened::Removed | Happened::ManifestPut(_) => return Ok(Vec::new()),
        };
        let failed = matches!(input, HostInput::Failed { .. }) && !self.machine.is_missing(number);
        let actions = self.machine.take(number, input, now(&self.common));
        if failed && self.machine.is_missing(number) {
            self.hosts[number].leave.cancel();
            (self.listener)(HostProgress::Missing);
        }
        Ok(actions)
    }

    /// Keeps the reason. A disk of this machine that refuses is no fault of a host.
    fn failed(&mut self, number: HostNumber, fault: HostFault) -> Result<HostInput, CoordinatorError> {
        let busy = fault.is_busy();
        match fault {
            HostFault::Copy(FetchError::Disk(error)) => return Err(error.into()),
            HostFault::Copy(FetchError::Panicked(error)) => return Err(CoordinatorError::Panicked(error)),
            fault if !self.machine.is_missing(number) => self.hosts[number].fault = Some(fault),
            // It was given up before, for another reason.
            _ => {}
        }
        Ok(HostInput::Failed { busy })
    }

    /// Checks what a host recorded.
    fn recorded(&mut self, number: HostNumber, finished: CaptureFinished) -> Result<(), HostFault> {
        let host = &mut self.hosts[number];
        host.recorded = true;
        let bad = HostFault::BadAnswer;
        let message = finished.manifest.ok_or(bad("a session without a manifest"))?;
        let manifest =
            manifest_messages::manifest_of(message).map_err(|_| bad("a manifest with impossible times"))?;
        let ready = host.ready.as_ref().ok_or(bad("a session before it was ready"))?;
        let label = self.machine.label(number).ok_or(bad("a session before its start"))?;
        let SessionIdentity { name, id } = &self.common.identity;
        joined_manifest::check_session(&manifest, name, Some(id))?;
        let clock = ClockOffset { offset_ns: ready.clock.offset_ns, bound_ns: ready.clock.bound_ns };
        let trace = RecordedHost::checked(manifest, &ready.name, label, Some(clock))?;
        (host.trace, host.failures) = (Some(trace), finished.failures);
        Ok(())
    }

    /// Does what the machine decided. At the end of the capture returns whether there are enough hosts.
    fn act(&mut self, action: HostAction) -> Option<bool> {
        match action {
            HostAction::Reserve(host) => self.hosts[host].tell(Command::Reserve),
            HostAction::Renew(host) => self.hosts[host].tell(Command::Renew),
            HostAction::Start(host, at) => {
                if let Some(start) = self.machine.start() {
                    (self.listener)(HostProgress::Starts(start));
                }
                self.hosts[host].fault = None;
                self.hosts[host].tell(Command::Start(at));
            }
            HostAction::Collect(host) => {
                let parts = self.hosts[host].trace.as_ref().map(|trace| trace.parts.clone());
                self.hosts[host].tell(Command::Collect(parts.unwrap_or_default()));
            }
            HostAction::GiveUp(host, why) => {
                self.hosts[host].fault = Some(self.given_up(host, why));
                self.hosts[host].leave.cancel();
                (self.listener)(HostProgress::Missing);
            }
            HostAction::Conclude { enough } => return Some(enough),
        }
        None
    }

    fn given_up(&self, host: HostNumber, why: GiveUp) -> HostFault {
        let given = |host: HostNumber| self.hosts[host].given.clone();
        let destination = |host: HostNumber| {
            self.hosts[host].ready.as_ref().map(|ready| ready.destination.clone()).unwrap_or_default()
        };
        match why {
            GiveUp::SameAgent(first) => HostFault::SameAgent(given(first)),
            GiveUp::SameName(first) => HostFault::SameName(given(first)),
            GiveUp::OtherDestination(first) => HostFault::OtherDestination {
                there: destination(host),
                first: given(first),
                wanted: destination(first),
            },
            GiveUp::LateRecording => HostFault::LateRecording,
            GiveUp::Overall => HostFault::Overall,
        }
    }

    /// The manifest of the whole session.
    fn manifest(&self) -> Manifest {
        let traces = self.hosts.iter().map(|host| {
            let trace = host.trace.as_ref().filter(|_| host.stored.is_some());
            (
                &host.given,
                trace.ok_or_else(|| host.fault.as_ref().map(ToString::to_string).unwrap_or_default()),
            )
        });
        let traces: Vec<_> = traces.collect();
        let start = self.machine.start();
        let window = start.and_then(|start| {
            let stop = start.plus(Duration::from_nanos(self.capture.request.duration_ns));
            Some(Window { start: start.into(), stop: stop.into() })
                .filter(|window| window.start <= window.stop)
        });
        let late = self.capture.start.zip(start).map(|(wished, start)| wished.age(start));
        let late = late.filter(|late| *late > LATE).map(|late| {
            format!(
                "the window began {:.3} s after the wished start: a host was not ready",
                late.as_secs_f64()
            )
        });
        let created = self.common.clock.now().into();
        let SessionIdentity { name, id } = &self.common.identity;
        let warnings = late.into_iter().collect();
        joined_manifest::joined(name, Some(id.clone()), window, created, &traces, warnings)
    }

    /// Makes the session visible.
    async fn keep(&mut self) -> Result<KeptCapture, CoordinatorError> {
        let manifest = self.manifest();
        let location = match &self.common.collection {
            Collection::Copied { writer, .. } => {
                let writer = Arc::clone(writer);
                let parts: Vec<PartWriter> = self
                    .hosts
                    .iter_mut()
                    .filter_map(|host| host.stored.as_mut())
                    .flat_map(std::mem::take)
                    .collect();
                let written = manifest.clone();
                let published = spawn_blocking(move || session_folder::publish(&writer, parts, written));
                SessionLocation::Folder(published.await.map_err(panicked)??)
            }
            Collection::Uploaded { .. } => {
                let destination = self.put_manifest(&manifest).await?;
                SessionLocation::Url(format!("{destination}/plugins/profile/{}", manifest.session))
            }
        };
        Ok(KeptCapture { manifest, location, hosts: self.results() })
    }

    /// The first agent that can, puts the manifest.
    async fn put_manifest(&mut self, manifest: &Manifest) -> Result<String, CoordinatorError> {
        let mut failed = HostFault::BadAnswer("no session");
        for number in 0..self.hosts.len() {
            if self.hosts[number].stored.is_none() {
                continue;
            }
            let message = Box::new(manifest_messages::manifest(manifest.clone()));
            self.hosts[number].tell(Command::PutManifest(message));
            match self.manifest_put(number).await {
                Ok(url) => return Ok(url),
                Err(fault) => failed = fault,
            }
        }
        Err(CoordinatorError::Manifest(failed))
    }

    async fn manifest_put(&mut self, number: HostNumber) -> Result<String, HostFault> {
        loop {
            match self.events.recv().await {
                Some((host, Happened::ManifestPut(put))) if host == number => return put,
                Some((host, Happened::Failed(fault))) if host == number => return Err(fault),
                Some(_) => {}
                None => return Err(HostFault::BadAnswer("no answer")),
            }
        }
    }

    fn results(&mut self) -> Vec<HostResult> {
        let result = |host: &mut RunningHost| {
            let captured = host.ready.as_ref().zip(host.trace.as_ref()).filter(|_| host.stored.is_some());
            let result = match captured {
                Some((ready, trace)) => Ok(CapturedHost {
                    name: trace.label.clone(),
                    clock: ready.clock,
                    failures: std::mem::take(&mut host.failures),
                }),
                None => Err(host.fault.take().unwrap_or(HostFault::Overall)),
            };
            HostResult { host: host.given.clone(), result }
        };
        self.hosts.iter_mut().map(result).collect()
    }

    /// Removes what agents have recorded.
    async fn keep_nothing(&mut self) -> CoordinatorError {
        let left = self.hosts.iter().filter(|host| host.fault.is_none()).count();
        let mut keeping = Vec::new();
        let mut removing: BTreeSet<HostNumber> = BTreeSet::new();
        for (number, host) in self.hosts.iter_mut().enumerate() {
            // What was copied is dropped.
            host.stored = None;
            if host.recorded && !host.leave.is_cancelled() {
                host.tell(Command::Remove);
                removing.insert(number);
            } else {
                if host.recorded {
                    keeping.push(host.given.clone());
                }
                host.leave.cancel();
            }
        }
        let removed = async {
            while !removing.is_empty() {
                match self.events.recv().await {
                    Some((host, Happened::Removed | Happened::Failed(_))) => {
                        removing.remove(&host);
                    }
                    Some(_) => {}
                    None => return,
                }
            }
        };
        // Agents apply the limits of their stores to what stays.
        let _ = timeout(self.common.limit, removed).await;
        let needed = self.capture.min_hosts.max(1);
        let hosts = self.hosts.iter_mut().map(|host| (host.given.clone(), host.fault.take()));
        CoordinatorError::TooFewHosts { left, needed, hosts: hosts.collect(), keeping }
    }
}

fn panicked(error: JoinError) -> CoordinatorError {
    CoordinatorError::Panicked(error.to_string())
}

fn now(common: &Common) -> Now {
    Now { wall: common.clock.now(), uptime: common.clock.uptime() }
}
