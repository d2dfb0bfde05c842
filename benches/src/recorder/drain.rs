//! What draining costs a job: the time of its steps with and without, in pairs whose order changes (ABBA), so that what drifts
//! is in both.

use std::time::Duration;

use fakes::{
    jax_job::RunningJaxJob,
    wait::{LIMIT, wait_with},
};

use super::{BenchAgent, LoggedStep, job, logged_now, mean, quantile, scaled, steps_for};
use crate::promise;

/// What is promised: the slowdown that is certain, the lower end of the interval.
const MOST: f64 = 0.01;
const STEP: Duration = Duration::from_millis(10);
/// Half the width of a 95 % interval in standard errors, from 2 pairs to 30: Student's t.
const STUDENT: [f64; 29] = [
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11,
    2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05,
];

/// Pairs of equal time, one recorded and one not.
///
/// # Panics
/// If the job or the agent fails.
pub fn drain() -> bool {
    let (pairs, block) = (scaled(20, 2), Duration::from_secs(u64::from(scaled(30, 12))));
    let id = format!("bench-drain-{}", std::process::id());
    let running = job(&id, STEP).log_steps().start();
    // The memory of the profiler is not what is measured: a job of so many calls grows by more than the default limit.
    let agent = BenchAgent::start("max_growth = '4GiB'\nmax_slowdown = '100%'\n");
    let (mut slower, mut all_on, mut all_off) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let first = pair % 2 == 0;
        let one = steps_of_block(&agent, &running, &id, first, block);
        let other = steps_of_block(&agent, &running, &id, !first, block);
        let (on, off) = if first { (one, other) } else { (other, one) };
        slower.push(mean_step(&on) / mean_step(&off) - 1.0);
        all_on.extend(on.into_iter().map(LoggedStep::seconds));
        all_off.extend(off.into_iter().map(LoggedStep::seconds));
    }
    let deviation = slower.iter().map(|value| (value - mean(&slower)).powi(2)).sum::<f64>();
    let error = (deviation / f64::from(pairs - 1) / f64::from(pairs)).sqrt();
    let half = STUDENT[(pairs as usize - 2).min(STUDENT.len() - 1)] * error;
    let (low, high) = (mean(&slower) - half, mean(&slower) + half);
    println!(
        "drain of steps of {} ms, {pairs} pairs of {} s: {:+.2} % of the total time, 95 % interval {:+.2} % to {:+.2} %",
        STEP.as_millis(),
        block.as_secs(),
        mean(&slower) * 100.0,
        low * 100.0,
        high * 100.0
    );
    for (what, steps) in [("drained", &all_on), ("not drained", &all_off)] {
        println!(
            "  {what:<12} {:>6} steps, mean {:.3} ms, p99 {:.3} ms, longest {:.3} ms",
            steps.len(),
            mean(steps) * 1e3,
            quantile(steps, 0.99) * 1e3,
            quantile(steps, 1.0) * 1e3
        );
    }
    promise::at_most("lower end of the interval of the slowdown", low, MOST)
}

/// The mean step, in seconds: the whole time over the steps, so that what lies between two steps is in it.
fn mean_step(steps: &[LoggedStep]) -> f64 {
    (steps[steps.len() - 1].end_ns - steps[0].begin_ns) as f64 / steps.len() as f64 / 1e9
}

/// The steps of a block.
fn steps_of_block(
    agent: &BenchAgent,
    job: &RunningJaxJob,
    id: &str,
    is_on: bool,
    block: Duration,
) -> Vec<LoggedStep> {
    if is_on {
        agent.on(id, "drain");
    } else if !agent.processes(id).is_empty() {
        agent.off(id);
    }
    let evidence = || format!("{:?}\n{}", agent.processes(id), agent.agent.log());
    wait_with("the session to be as wanted", LIMIT, evidence, || {
        let processes = agent.processes(id);
        let is_open = processes.first().is_some_and(|process| !process["drain_seconds"].is_null());
        (is_open == is_on).then_some(())
    });
    let mut traced = is_on;
    logged_now(job, &mut traced);
    steps_for(job, block, &mut traced)
}
