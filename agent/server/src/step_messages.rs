//! The steps of workloads as messages.

use model::{
    step_times::{NoSteps, WorkloadSteps},
    workload::Workload,
};
use proto::tpuscope::v1;

/// The steps of a workload, or why none are known.
pub(super) fn of_workload(workload: &Workload, steps: Result<WorkloadSteps, NoSteps>) -> v1::WorkloadSteps {
    let unknown = v1::WorkloadSteps {
        job_kind: workload.id.kind.as_str().into(),
        job: workload.id.job.clone(),
        workload: workload.label.clone(),
        pids: workload.owners.iter().map(|process| process.pid).collect(),
        ..v1::WorkloadSteps::default()
    };
    let steps = match steps {
        Ok(steps) => steps,
        Err(why) => return v1::WorkloadSteps { missing: why.to_string(), ..unknown },
    };
    v1::WorkloadSteps {
        median_seconds: Some(steps.median.as_secs_f64()),
        mean_seconds: Some(steps.mean.as_secs_f64()),
        pace_seconds: steps.pace.map(|pace| pace.as_secs_f64()),
        last_step: steps.last.map(|last| last.number),
        last_step_age_seconds: steps.last.map(|last| last.age.as_secs_f64()),
        input_share: steps.input_share,
        busy_share: steps.busy_share,
        age_seconds: Some(steps.age.as_secs_f64()),
        ..unknown
    }
}
