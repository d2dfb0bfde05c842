//! Before the window: every target's profiler is reserved and probed, and the start of the window is chosen.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use model::time::{Clock, Timestamp};
use tokio::task::JoinSet;
use xprof::{client::Target, session::SessionName};

use super::{CaptureRun, StartTime};
use crate::{
    CaptureError, ProfilerCall,
    profiler::{
        ProbeAnswer, ProbeTimeouts, ProfilerError, ProfilerLease,
        queue::{ProfilerUser, Refusal},
    },
    reservation::START_LIMIT,
    spec::HOUR,
};

/// Lead of a common start beyond the slowest round trip: time for the requests to arrive and be set up.
const LEAD: Duration = Duration::from_millis(15);
pub(crate) const MAX_LEAD: Duration = Duration::from_millis(500);
/// A lease holds so much longer than the capture may take: its own end frees the profiler before that.
pub(crate) const LEASE_SLACK: Duration = Duration::from_secs(30);

/// One target's profiler, or why it cannot be used.
pub(super) type Reserved = Result<ProfilerLease, CaptureError>;
/// A profiler that answered, or why it cannot be used.
pub(super) type Probed = Result<(ProfilerLease, ProbeAnswer), CaptureError>;

impl CaptureRun {
    /// Reserves the profilers of all targets.
    pub(super) async fn reserve_all(
        &self,
        session: &SessionName,
        start: &StartTime,
        now: Timestamp,
    ) -> Result<Vec<Reserved>, CaptureError> {
        let user = ProfilerUser::Capture(session.clone());
        let until_start = match start {
            StartTime::Known(start) => until(*start, now),
            StartTime::Later { .. } => START_LIMIT + HOUR,
        };
        let within = until_start + self.spec.duration + self.spec.timeout + LEASE_SLACK;
        // All at once: each may have to wait for the recorder.
        let mut reserving = JoinSet::new();
        for (index, target) in self.targets.targets.iter().cloned().enumerate() {
            let (profilers, user) = (Arc::clone(&self.profilers), user.clone());
            reserving.spawn(async move {
                let lease = profilers.reserve(&target, &user, within).await;
                (index, lease.map_err(|refusal| refused(target.at, refusal)))
            });
        }
        let mut reserved = Vec::new();
        while let Some(one) = tokio::select! {
            one = reserving.join_next() => one,
            () = self.cancel.cancelled() => return Err(CaptureError::Cancelled),
        } {
            reserved.push(one.map_err(CaptureError::panicked)?);
        }
        reserved.sort_by_key(|&(index, _)| index);
        Ok(reserved.into_iter().map(|(_, reserved)| reserved).collect())
    }

    /// Waits until shortly before the start. If that is long, the targets are probed again: connections that idle may be
    /// closed by then. The workloads' servers could wait for the start themselves, but would be busy all the time, and
    /// deaf to a cancel until then.
    pub(super) async fn wait_and_probe(
        &self,
        start: Option<Timestamp>,
        mut probed: Vec<Probed>,
        clock: &dyn Clock,
    ) -> Result<Vec<Probed>, CaptureError> {
        let probing = self.settings.connect_timeout.get() + self.settings.probe_timeout.get() + MAX_LEAD;
        if self.wait_until(start, probing, clock).await? {
            let reserved = probed.into_iter().map(|probed| probed.map(|(lease, _)| lease));
            probed = self.probe_all(reserved.collect()).await?;
        }
        self.wait_until(start, MAX_LEAD, clock).await?;
        Ok(probed)
    }

    /// Waits until `ahead` before the start. Returns whether there was something to wait for.
    async fn wait_until(
        &self,
        start: Option<Timestamp>,
        ahead: Duration,
        clock: &dyn Clock,
    ) -> Result<bool, CaptureError> {
        let wait = until(start, clock.now()).saturating_sub(ahead);
        if wait.is_zero() {
            return Ok(false);
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(true),
            () = self.cancel.cancelled() => Err(CaptureError::Cancelled),
        }
    }

    /// Probes the profilers that are reserved.
    pub(super) async fn probe_all(&self, reserved: Vec<Reserved>) -> Result<Vec<Probed>, CaptureError> {
        let timeouts = ProbeTimeouts {
            connect: self.settings.connect_timeout.get(),
            answer: self.settings.probe_timeout.get().min(self.spec.timeout),
        };
        let call = if self.spec.timeout < self.settings.probe_timeout.get() {
            ProfilerCall::ProbeWithin
        } else {
            ProfilerCall::Probe
        };
        let mut probes = JoinSet::new();
        for (index, reserved) in reserved.into_iter().enumerate() {
            probes.spawn(async move {
                let probed = match reserved {
                    Ok(lease) => match lease.probe(timeouts).await {
                        Ok(answer) => Ok((lease, answer)),
                        Err(error) => Err(failed(lease.target().clone(), call, error)),
                    },
                    Err(error) => Err(error),
                };
                (index, probed)
            });
        }
        let mut probed = Vec::new();
        while let Some(one) = tokio::select! {
            one = probes.join_next() => one,
            () = self.cancel.cancelled() => return Err(CaptureError::Cancelled),
        } {
            probed.push(one.map_err(CaptureError::panicked)?);
        }
        probed.sort_by_key(|&(index, _)| index);
        let mut probed: Vec<Probed> = probed.into_iter().map(|(_, probed)| probed).collect();
        refuse_second_names(&mut probed);
        Ok(probed)
    }
}

/// How long it is until the start that the caller asked for.
pub(crate) fn until(start: Option<Timestamp>, now: Timestamp) -> Duration {
    let ahead = start.map_or(0, |start| start.0.saturating_sub(now.0));
    Duration::from_nanos(u64::try_from(ahead).unwrap_or(0))
}

/// A reservation that was refused, as the failure of its target.
pub(crate) fn refused(target: Target, refusal: Refusal) -> CaptureError {
    match refusal {
        Refusal::Reserved(ProfilerUser::Capture(session)) => CaptureError::InUse { target, session },
        Refusal::Reserved(ProfilerUser::Recorder) => CaptureError::BeingRecorded { target },
        Refusal::Foreign(foreign, age) => CaptureError::Profiler {
            target,
            call: ProfilerCall::Profile,
            error: Arc::new((&foreign).into()),
            connected: foreign.connected,
            age: Some(age),
        },
    }
}

/// A call that failed, as the failure of its target.
pub(crate) fn failed(target: Target, call: ProfilerCall, error: ProfilerError) -> CaptureError {
    match error {
        ProfilerError::Call { error, connected } => {
            CaptureError::Profiler { target, call, error: Arc::new(error), connected, age: None }
        }
        ProfilerError::Cancelled => CaptureError::Cancelled,
        ProfilerError::LeaseExpired => CaptureError::LeaseExpired { target },
    }
}

/// A profiler has one session at a time: under a second name it would only be busy with the first.
fn refuse_second_names(probed: &mut [Probed]) {
    let mut names: HashMap<SocketAddr, Target> = HashMap::new();
    for probed in probed {
        let Ok((lease, answer)) = probed else { continue };
        let target = lease.target().clone();
        match names.entry(answer.peer) {
            Entry::Vacant(first) => {
                first.insert(target);
            }
            Entry::Occupied(first) => {
                *probed = Err(CaptureError::SameProfiler { target, first: first.get().clone() });
            }
        }
    }
}

/// One start for several targets; a single one starts when it is asked.
pub(super) fn common_start(probed: &[Probed], now: Timestamp) -> Option<Timestamp> {
    let several = probed.iter().flatten().count() > 1;
    several.then(|| now.plus(lead(probed)))
}

/// How long before the window its start has to be known.
pub(super) fn lead(probed: &[Probed]) -> Duration {
    let slowest = probed.iter().flatten().map(|(_, answer)| answer.round_trip).max();
    (LEAD + slowest.unwrap_or_default() * 2).min(MAX_LEAD)
}
