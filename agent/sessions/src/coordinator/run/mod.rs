//! Drives a capture: carries what hosts did to the machine, and what it decides to the conversations.

mod conclusion;

use std::{sync::Arc, time::Duration};

use cluster::{dial::DialFault, hosts::HostAddress};
use proto::tpuscope::v1::CaptureFinished;
use tokio::{
    sync::{Semaphore, mpsc},
    task::{JoinError, JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use xprof::session::{ClockOffset, PartWriter, SessionError, SessionId, SessionName, SessionWriter};

use super::{
    Coordinator, CoordinatorError, HostFault, HostProgress, HostStage, HostsCapture, HostsListener, Keep,
    KeptCapture, LeftParts, UnkeptCapture,
    collect::{COPIES_AT_A_TIME, Collection, PartsProgress},
    conversation::{CLOCKS_AT_A_TIME, Common, Conversation, Happened, HostCommand, SessionIdentity},
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
/// This process looks at the time at least so often.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// It was stopped, or the machine suspended, if it looks so much later: agents give a silent caller up after 10 s.
const PAUSE: Duration = Duration::from_secs(5);
/// A connection that is lost because of it is known to be lost within this time after.
const PAUSE_FELT: Duration = Duration::from_secs(15);
/// A start that is later than asked for by more than this is told.
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
    ) -> Result<KeptCapture, UnkeptCapture> {
        let hosts = capture.hosts.clone();
        match self.begin(capture).await {
            Ok(run) => run.finish(cancel).await,
            Err(error) => {
                let not_asked = |host| (host, HostFault::NotKept(HostStage::NotAsked));
                Err(UnkeptCapture { error, hosts: hosts.into_iter().map(not_asked).collect() })
            }
        }
    }

    async fn begin(&self, capture: HostsCapture) -> Result<Run, CoordinatorError> {
        let named = capture.session.clone();
        let name = named.unwrap_or_else(|| session_folder::name_of_hosts(self.clock.now()));
        let collection = match &capture.keep {
            Keep::Folder(logdir) => {
                let (logdir, session) = (logdir.clone(), name.clone());
                let created = spawn_blocking(move || SessionWriter::create(&logdir, session));
                let writer = created.await.map_err(panicked)?.map_err(CoordinatorError::Unwritable)?;
                let copies = Semaphore::new(COPIES_AT_A_TIME);
                Collection::Copied { writer: Arc::new(writer), copies }
            }
            Keep::Destination { name, limit } => {
                Collection::Uploaded { destination: name.clone(), limit: *limit }
            }
        };
        let id =
            SessionId::random().ok_or_else(|| CoordinatorError::Panicked("no random bytes".to_owned()))?;
        let to = match &capture.keep {
            Keep::Folder(_) => None,
            Keep::Destination { name, .. } => Some(name.clone()),
        };
        let request = capture.request.of_session(&self.peer, &name, to);
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
    commands: mpsc::Sender<HostCommand>,
    leave: CancellationToken,
    ready: Option<ReservedHost>,
    stage: HostStage,
    /// It was told when to start, if perhaps not for the last time.
    started: bool,
    recorded: bool,
    trace: Option<RecordedHost>,
    failures: Vec<proto::tpuscope::v1::CaptureFailure>,
    stored: Option<Vec<PartWriter>>,
    fault: Option<HostFault>,
}

impl RunningHost {
    fn new(given: HostAddress, commands: mpsc::Sender<HostCommand>, leave: CancellationToken) -> Self {
        Self {
            given,
            commands,
            leave,
            ready: None,
            stage: HostStage::Reaching,
            started: false,
            recorded: false,
            trace: None,
            failures: Vec::new(),
            stored: None,
            fault: None,
        }
    }

    /// Whether its agent has a trace of this capture, or may have one: nobody could ask it any more.
    fn may_have_recorded(&self) -> bool {
        let says_not = matches!(self.fault, Some(HostFault::Capture(_) | HostFault::Stopped));
        self.recorded || (self.started && !says_not)
    }

    /// Tells the host something. One that does not listen has ended, and says why.
    fn tell(&self, command: HostCommand) {
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
    /// What the disk here refused: no more is copied, and the agents keep what they have.
    unwritten: Option<SessionError>,
    /// When this process ran again after it had not run when it should have, and for how long that was.
    paused: Option<(Duration, Duration)>,
}

impl Run {
    fn new(capture: HostsCapture, common: Arc<Common>, listener: HostsListener) -> Self {
        let past = capture.request.past();
        let window = if past.is_some() { Duration::ZERO } else { capture.request.window() };
        let rules = CaptureRules {
            min_hosts: capture.min_hosts.max(1),
            start: capture.start,
            past,
            recording: window + capture.answer_limit + KEEPING,
            busy: capture.busy_limit,
            seed: fastrand::u64(..),
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
            hosts.push(RunningHost::new(host.clone(), commands, leave));
        }
        Self {
            capture,
            common,
            machine,
            listener,
            hosts,
            events,
            conversations,
            unwritten: None,
            paused: None,
        }
    }

    async fn finish(mut self, cancel: &CancellationToken) -> Result<KeptCapture, UnkeptCapture> {
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
        kept.map_err(|error| {
            let why = |host: RunningHost| (host.given, host.fault.unwrap_or(HostFault::NotKept(host.stage)));
            let hosts = self.hosts.into_iter().map(why);
            UnkeptCapture { error, hosts: hosts.collect() }
        })
    }

    fn cancelled(&self) -> CoordinatorError {
        let recorded = self.hosts.iter().any(|host| host.recorded);
        CoordinatorError::Cancelled { recorded, left: self.left() }
    }

    /// What agents have of the session, should it not become whole.
    fn left(&self) -> LeftParts {
        let session = self.common.identity.name.clone();
        let uploads = matches!(self.common.collection, Collection::Uploaded { .. });
        let ready = self.hosts.iter().filter(|_| uploads).find_map(|host| host.ready.as_ref());
        let folder_there = ready.map(|ready| folder_at(&ready.destination, &session));
        LeftParts { session, folder_there }
    }

    /// Until all hosts are stored or missing. Returns whether there are enough.
    async fn until_concluded(&mut self) -> Result<bool, CoordinatorError> {
        loop {
            let begin = now(&self.common);
            let wake = self.machine.wake(begin).map_or(HEARTBEAT, |wake| wake.min(HEARTBEAT));
            let event = tokio::select! {
                biased;
                Some(event) = self.events.recv() => Some(event),
                // One that panicked tells nothing any more.
                Some(ended) = self.conversations.join_next() => {
                    ended.map_err(panicked)?;
                    continue;
                }
                () = sleep(wake) => None,
            };
            let uptime = now(&self.common).uptime;
            let late = uptime.saturating_sub(begin.uptime + wake);
            if late > PAUSE {
                self.paused = Some((uptime, late));
            }
            let actions = match event {
                Some((host, happened)) => self.happened(host, happened)?,
                None => self.machine.tick(now(&self.common)),
            };
            for action in actions {
                if let Some(enough) = self.act(action) {
                    return match self.unwritten.take() {
                        Some(error) => Err(CoordinatorError::Unwritten { error, left: self.left() }),
                        None => Ok(enough),
                    };
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
        match self.input_of(number, happened)? {
            Some(input) => Ok(self.take(number, input)),
            None => Ok(Vec::new()),
        }
    }

    /// Shows what happened, and keeps what is needed later. Returns what it means for the machine.
    fn input_of(
        &mut self,
        number: HostNumber,
        happened: Happened,
    ) -> Result<Option<HostInput>, CoordinatorError> {
        Ok(Some(match happened {
            Happened::Reached { instance } => {
                (self.listener)(HostProgress::Reached);
                self.hosts[number].stage = HostStage::Reached;
                HostInput::Reached { instance }
            }
            Happened::Ready { host, targets } => {
                (self.listener)(HostProgress::Ready { host: number, processes: targets });
                let missing = self.machine.is_missing(number);
                let of_host = &mut self.hosts[number];
                of_host.ready = Some(host.clone());
                if !missing {
                    // It may have been busy before.
                    (of_host.stage, of_host.fault) = (HostStage::Ready, None);
                }
                HostInput::Ready(host)
            }
            Happened::Received { target, bytes } => {
                (self.listener)(HostProgress::Received { host: number, target, bytes });
                return Ok(None);
            }
            Happened::Parts(progress) => {
                (self.listener)(match progress {
                    PartsProgress::Bytes(bytes) => HostProgress::Copied { host: number, bytes },
                    PartsProgress::Waits(why) => HostProgress::UploadWaits { host: number, why },
                });
                return Ok(None);
            }
            // It was to begin again.
            Happened::Recorded(_)
                if !self.machine.is_recording(number) && !self.machine.is_missing(number) =>
            {
                return Ok(None);
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
            Happened::Removed | Happened::ManifestPut(_) => return Ok(None),
        }))
    }

    /// Gives an input to the machine. Returns what it decides.
    fn take(&mut self, number: HostNumber, input: HostInput) -> Vec<HostAction> {
        let failed = matches!(input, HostInput::Failed { .. }) && !self.machine.is_missing(number);
        let began = self.machine.start().is_some();
        let mut actions = self.machine.take(number, input, now(&self.common));
        if self.unwritten.is_some() && actions.contains(&HostAction::Collect(number)) {
            actions.retain(|action| *action != HostAction::Collect(number));
            actions.extend(self.machine.take(number, HostInput::Stored, now(&self.common)));
        }
        if began && self.machine.start().is_none() {
            (self.listener)(HostProgress::BeginsAgain);
        }
        if failed && self.machine.is_missing(number) {
            self.hosts[number].leave.cancel();
            (self.listener)(HostProgress::Missing { host: number });
        } else if failed {
            (self.listener)(HostProgress::Busy { host: number });
        }
        actions
    }

    /// Keeps the reason. A disk of this machine that refuses is no fault of a host, nor of the others: they record to the end.
    fn failed(&mut self, number: HostNumber, fault: HostFault) -> Result<HostInput, CoordinatorError> {
        let busy = fault.is_busy();
        match fault {
            HostFault::Copy(FetchError::Disk(error)) => {
                self.unwritten.get_or_insert(error);
                return Ok(HostInput::Stored);
            }
            HostFault::Copy(FetchError::Panicked(error)) => return Err(CoordinatorError::Panicked(error)),
            fault if !self.machine.is_missing(number) => self.set_fault(number, fault),
            // It was given up before, for another reason.
            _ => {}
        }
        Ok(HostInput::Failed { busy })
    }

    fn set_fault(&mut self, number: HostNumber, fault: HostFault) {
        let since = now(&self.common).uptime.saturating_sub(PAUSE_FELT);
        let fault = match (fault, self.paused) {
            (HostFault::Dial(error), Some((at, length))) if error.fault == DialFault::Lost && at >= since => {
                HostFault::Paused(length)
            }
            (fault, _) => fault,
        };
        let session = &self.common.identity.name;
        let host = &mut self.hosts[number];
        host.fault = Some(match host.stage {
            _ if host.trace.is_some() => fault.after_recording(session),
            HostStage::Begun => fault.in_recording(session),
            _ => fault,
        });
    }

    /// Checks what a host recorded.
    fn recorded(&mut self, number: HostNumber, finished: CaptureFinished) -> Result<(), HostFault> {
        let host = &mut self.hosts[number];
        (host.recorded, host.stage) = (true, HostStage::Recorded);
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
            HostAction::Reserve(host) => {
                self.hosts[host].stage = HostStage::Reached;
                self.hosts[host].tell(HostCommand::Reserve);
            }
            HostAction::Renew(host) => self.hosts[host].tell(HostCommand::Renew),
            HostAction::Release(host) => {
                (self.listener)(HostProgress::Released { host });
                self.hosts[host].stage = HostStage::Reached;
                self.hosts[host].tell(HostCommand::Release);
            }
            HostAction::Start(host, at) => {
                if let Some(start) = self.machine.start() {
                    (self.listener)(HostProgress::Starts(start));
                }
                (self.hosts[host].started, self.hosts[host].stage) = (true, HostStage::Begun);
                self.hosts[host].tell(HostCommand::Start(at));
            }
            HostAction::Collect(host) => {
                let parts = self.hosts[host].trace.as_ref().map(|trace| trace.parts.clone());
                self.hosts[host].tell(HostCommand::Collect(parts.unwrap_or_default()));
            }
            HostAction::GiveUp(host, why) => {
                self.set_fault(host, self.given_up(host, why));
                self.hosts[host].leave.cancel();
                (self.listener)(HostProgress::Missing { host });
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
            GiveUp::LateRecording if self.capture.request.past().is_some() => HostFault::LateSnapshot,
            GiveUp::LateRecording => HostFault::LateRecording,
            GiveUp::Overall => HostFault::Overall,
        }
    }
}

/// The folder of a session at a destination.
fn folder_at(destination: &str, session: &SessionName) -> String {
    format!("{destination}/plugins/profile/{session}")
}

fn panicked(error: JoinError) -> CoordinatorError {
    CoordinatorError::Panicked(error.to_string())
}

fn now(common: &Common) -> Now {
    Now { wall: common.clock.now(), uptime: common.clock.uptime() }
}
