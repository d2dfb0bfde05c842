//! What a window of the recorder costs the steps of a job, beside a window of xprof's own client, in the same run and job.

use std::{
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use fakes::{
    harness::{peer, workspace},
    jax_job::RunningJaxJob,
    wait::until,
};
use serde_json::Value;

use super::{BenchAgent, LoggedStep, job, mean, quantile, scaled, skip_logged, steps_for};
use crate::promise;

/// What is promised: a step in a window of ours, as a multiple of one in a window of xprof's client; and a step after it, as a
/// multiple of one before.
const MOST_OF_XPROF: f64 = 1.05;
const MOST_AFTER: f64 = 1.01;

/// Windows of a length, for steps of a length.
struct WindowPlan {
    step: Duration,
    window: Duration,
    every: Duration,
    rounds: u32,
}

/// Steps of 10 ms, 100 ms and 2 s.
///
/// # Panics
/// If a job, the agent or the client fails.
pub fn windows() -> bool {
    let plan = |step_ms, window, every, rounds| WindowPlan {
        step: Duration::from_millis(step_ms),
        window: Duration::from_secs(window),
        every: Duration::from_secs(every),
        rounds: scaled(rounds, 2),
    };
    let plans = [plan(10, 2, 10, 12), plan(100, 4, 16, 12), plan(2000, 20, 60, 6)];
    plans.iter().filter(|plan| !of_plan(plan)).count() == 0
}

fn of_plan(plan: &WindowPlan) -> bool {
    let id = format!("bench-windows-{}-{}", plan.step.as_millis(), std::process::id());
    let running = job(&id, plan.step).log_steps().tell_traces().start();
    let (window, every) = (plan.window.as_secs(), plan.every.as_secs());
    let agent =
        BenchAgent::start(&format!("window = '{window}s'\nmax_window = '{window}s'\nevery = '{every}s'\n"));
    let mut traced = false;
    skip_logged(&running, &mut traced);
    let before = steps_for(&running, plan.window.max(Duration::from_secs(5)), &mut traced);
    agent.on(&id, "periodic");
    let mut steps = Vec::new();
    for _ in 0..plan.rounds {
        // Between two windows of ours, so that both see the same job and machine. The client's window begins up to 3 s after
        // its call.
        let next = agent.processes(&id)[0]["next"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        let wait = next.duration_since(jiff::Timestamp::now());
        let wait = Duration::try_from(wait).unwrap_or_default() + plan.window + plan.every / 10;
        let client = xprof_after(&running, wait, plan.window);
        steps.extend(steps_for(&running, plan.every, &mut traced));
        ended(client);
    }
    until("the last window to be kept", || agent.processes(&id)[0]["open"] == false);
    let ours: Vec<(i64, i64)> = agent.segments(&id).iter().map(stretch).collect();
    let timeline = agent.ask(&["recorder", "timeline", "--job", &id]).stdout;
    assert!(!ours.is_empty(), "no window was kept: {timeline}\n{}", agent.agent.log());
    let status = &agent.processes(&id)[0];
    assert_eq!(status["recorded"], true, "the windows did not meet: {status}");
    let steps = without_edges(&steps);
    report(plan, &before, &steps, &ours, &agent.processes(&id)[0]["cost"])
}

/// xprof's client, which traces the job for a window after a time.
fn xprof_after(job: &RunningJaxJob, after: Duration, window: Duration) -> Child {
    let script = workspace().join("benches/scripts/xprof_trace.py");
    let mut command = Command::new(peer("xprof/bin/python"));
    let folder = crate::data().join("recorder-xprof");
    let (after, window) = (after.as_millis().to_string(), window.as_millis().to_string());
    command.arg(script).arg(job.target()).arg(folder).arg(window).args(["1", &after]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn ended(mut client: Child) {
    while client.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(50));
    }
    let _ = std::fs::remove_dir_all(crate::data().join("recorder-xprof"));
}

/// Without the steps in which a trace began or ended: they are of neither kind.
fn without_edges(steps: &[LoggedStep]) -> Vec<LoggedStep> {
    let pairs = steps.windows(2).filter(|pair| pair[0].traced == pair[1].traced);
    pairs.map(|pair| pair[0]).collect()
}

fn stretch(segment: &Value) -> (i64, i64) {
    let at = |field: &str| segment[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let ns = |field: &str| i64::try_from(at(field).as_nanosecond()).unwrap();
    (ns("start"), ns("stop"))
}

fn report(
    plan: &WindowPlan,
    before: &[LoggedStep],
    steps: &[LoggedStep],
    ours: &[(i64, i64)],
    cost: &Value,
) -> bool {
    let is_ours =
        |step: &LoggedStep| ours.iter().any(|(start, stop)| step.begin_ns >= *start && step.end_ns <= *stop);
    let touches =
        |step: &LoggedStep| ours.iter().any(|(start, stop)| step.end_ns > *start && step.begin_ns < *stop);
    let seconds =
        |steps: Vec<&LoggedStep>| steps.into_iter().map(|step| step.seconds()).collect::<Vec<f64>>();
    let inside = seconds(steps.iter().filter(|step| is_ours(step)).collect());
    let theirs = seconds(steps.iter().filter(|step| step.traced && !touches(step)).collect());
    let after = seconds(steps.iter().filter(|step| !step.traced && !touches(step)).collect());
    let before = seconds(before.iter().collect());
    println!("steps of {} ms, {} windows of {} s", plan.step.as_millis(), ours.len(), plan.window.as_secs());
    for (what, steps) in [
        ("before", &before),
        ("in windows of ours", &inside),
        ("in windows of xprof's client", &theirs),
        ("between windows", &after),
    ] {
        assert!(!steps.is_empty(), "no step {what}");
        println!(
            "  {what:<30} {:>6} steps, mean {:>9.3} ms, p99 {:>9.3} ms, longest {:>9.3} ms",
            steps.len(),
            mean(steps) * 1e3,
            quantile(steps, 0.99) * 1e3,
            quantile(steps, 1.0) * 1e3
        );
    }
    let percent = |field: &str| cost[field].as_f64().unwrap_or(f64::NAN) * 100.0;
    println!(
        "  recorder status: {:+.1} % inside, {:+.2} % of the whole time",
        percent("slowdown_ratio"),
        percent("share_ratio")
    );
    let at_defaults = (mean(&inside) / mean(&after) - 1.0) * 2.0 / 60.0;
    println!("  at defaults, 2 s in 60 s: {:+.2} % of the whole time", at_defaults * 100.0);
    let of_xprof = mean(&inside) / mean(&theirs);
    let of_before = quantile(&after, 0.5) / quantile(&before, 0.5);
    let window = promise::at_most("a step in a window, of one in xprof's", of_xprof, MOST_OF_XPROF);
    promise::at_most("median step between windows, of one before", of_before, MOST_AFTER) && window
}
