//! Captures at a step whose time is not known, or over.

use sessions::step_prediction::Unpredictable;

use crate::{exit::Exit, failure::Failure};

/// The most reasons that one line has.
const MOST_REASONS: usize = 8;

/// No agent knows the number of a step.
pub(crate) fn no_step_number(reasons: &[String]) -> Failure {
    let mut shown = reasons.iter().take(MOST_REASONS).cloned().collect::<Vec<_>>();
    if reasons.len() > MOST_REASONS {
        shown.push(format!("and {} more", reasons.len() - MOST_REASONS));
    }
    let reasons = if shown.is_empty() { "there is no such workload".to_owned() } else { shown.join("; ") };
    Failure::new(Exit::EmptyTrace, format!("the number of a step is not known: {reasons}")).remedy(
        "`tpuscope recorder on` records the job, and the number is known after the first window; the program numbers its steps with \
         jax.profiler.StepTraceAnnotation(\"train\", step_num=N)",
    )
}

/// Several jobs have step numbers.
pub(crate) fn several_jobs_have_steps(jobs: &str) -> Failure {
    Failure::new(Exit::Usage, format!("several jobs have step numbers: {jobs}"))
        .remedy("choose one with --step-job, or on this host one of its processes with --pid")
}

/// The step cannot be waited for.
pub(crate) fn unpredictable_step(why: Unpredictable) -> Failure {
    let remedy = match why {
        Unpredictable::Passed { .. } => "name a later step",
        Unpredictable::TooFar { .. } => "run the command later",
    };
    Failure::new(Exit::Usage, why).remedy(remedy)
}

/// The user interrupted the wait for a step.
pub(crate) fn interrupted_wait_for_step() -> Failure {
    Failure::new(Exit::Interrupted, "the wait for the step was cancelled; nothing was captured")
}
