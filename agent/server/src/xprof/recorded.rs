//! Continuous profiling by XProf's protocol is the recorder's: start and stop switch it for the jobs of the caller, and a
//! snapshot is what was recorded since the last one.
//!
//! The workload's own methods are never called for a client: what it starts would grow without bound if it went away. Must
//! never touch a job of another user, whoever calls.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use ::sessions::{
    capture_runner::SessionUse,
    recorder::{ChoiceRefused, ChoiceRequest, SnapshotJob, WantedPast},
};
use model::{time::Timestamp, workload::Owner};
use proto::tensorflow::ProfileRequest;
use store::uploads::UploadChoice;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    XprofApi, XprofCaller,
    answer::Answer,
    profile::{checked, status},
    stored::{self, KeptSession, StoredCarrier},
};
use crate::{
    access::Scope,
    grpc_recorder::{may_read, may_switch, not_chosen},
};

/// What the first snapshot of a user has, and any other at most.
const LONGEST: Duration = Duration::from_secs(600);

/// Switches the recorder on for the jobs of the caller. A second start changes nothing.
pub(super) async fn start(
    api: &XprofApi,
    caller: &XprofCaller,
    request: &ProfileRequest,
) -> Result<(), Status> {
    // Names are checked; how much is recorded is what the settings of the recorder say.
    checked(api, caller, request.clone())?;
    choose(api, caller, true).await
}

/// Switches the recorder off for the jobs of the caller.
pub(super) async fn stop(api: &XprofApi, caller: &XprofCaller) -> Result<(), Status> {
    choose(api, caller, false).await
}

async fn choose(api: &XprofApi, caller: &XprofCaller, is_on: bool) -> Result<(), Status> {
    let (scope, _) = own(caller)?;
    let may = may_switch(&scope);
    let may: &(dyn Fn(&Owner) -> bool + Sync) = &may;
    let choice = ChoiceRequest { job: None, is_on, strategy: None, may, caller: caller.caller.clone() };
    api.inputs.captures.first_scan().await;
    let mut chosen = api.inputs.recorder.choose(&choice).await;
    if let Err(ChoiceRefused::NoJob(_)) = chosen {
        // It may have started after the last scan.
        api.inputs.captures.scan_again().await;
        chosen = api.inputs.recorder.choose(&choice).await;
    }
    chosen.map_err(|error| not_chosen(&error))
}

/// Answers with what was recorded of the jobs of the caller since their last snapshot.
pub(super) async fn snapshot(
    api: &Arc<XprofApi>,
    caller: XprofCaller,
    answer: &Answer,
) -> Result<(), Status> {
    let (scope, uid) = own(&caller)?;
    api.inputs.captures.first_scan().await;
    let now = api.inputs.captures.captures.now();
    let earliest = Timestamp(now.0.saturating_sub(i64::try_from(LONGEST.as_nanos()).unwrap_or(i64::MAX)));
    let from = api.taken_until(uid).map_or(earliest, |until| until.max(earliest));
    let cancel = CancellationToken::new();
    let _guard = cancel.clone().drop_guard();
    let job = SnapshotJob {
        past: WantedPast { from, to: now, job: None, may_read: Box::new(may_read(&scope)) },
        session: None,
        id: None,
        upload: UploadChoice::Nowhere,
        progress: Arc::new(|_, _| {}),
        caller: caller.caller.clone(),
        cancel,
        session_use: SessionUse::PassedOn,
    };
    let recorder = Arc::clone(&api.inputs.recorder);
    // A task of its own: it ends tidily when the caller hangs up.
    let made = tokio::spawn(async move { recorder.snapshot(job).await });
    let captured = tokio::select! {
        made = made => made.map_err(|error| Status::internal(error.to_string()))?.map_err(|error| status(&error))?,
        () = answer.hung_up() => return Err(Status::cancelled("the caller has hung up")),
    };
    let kept = KeptSession::new(api.inputs.store.clone(), captured, api.chip_order(), Vec::new());
    stored::answer(kept, Arc::clone(&api.inputs.segments), StoredCarrier::Both, answer).await?;
    api.take_until(uid, now);
    Ok(())
}

/// The jobs that the caller owns, also where it may use those of others.
fn own(caller: &XprofCaller) -> Result<(Scope, u32), Status> {
    match (&caller.scope, caller.caller.uid) {
        (Scope::UserInNamespace { uid, .. }, _) => Ok((caller.scope.clone(), *uid)),
        (_, Some(uid)) => Ok((Scope::User(uid), uid)),
        (_, None) => Err(Status::permission_denied("the recorder is switched only by the user of a job")),
    }
}

impl XprofApi {
    fn taken_until(&self, uid: u32) -> Option<Timestamp> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).get(&uid).copied()
    }

    /// Notes until when the user has what was recorded. What is older than the longest snapshot does not matter.
    fn take_until(&self, uid: u32, until: Timestamp) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|_, earlier| earlier.age(until) < LONGEST);
        taken.insert(uid, until);
    }
}
