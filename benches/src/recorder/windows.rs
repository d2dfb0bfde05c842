//! What a window of the recorder costs the steps of a job, beside a window of xprof's own client, in the same run and job.
//!
//! Windows of ours and of the client alternate. Each one of ours is compared with the one of the client after it, and the
//! steps after each one of ours with those before it. The median of these pairs counts: what drifts, or disturbs some of them, is
//! not in it.

use std::time::Duration;

use fakes::wait::until;
use serde_json::Value;

use super::{BenchAgent, LoggedStep, job, logged_now, mean, quantile, scaled, xprof_client::XprofClient};
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
    let plans = [plan(10, 2, 12, 20), plan(100, 4, 18, 14), plan(2000, 20, 72, 6)];
    plans.iter().filter(|plan| !of_plan(plan)).count() == 0
}

fn of_plan(plan: &WindowPlan) -> bool {
    let id = format!("bench-windows-{}-{}", plan.step.as_millis(), std::process::id());
    let running = job(&id, plan.step).log_steps().tell_traces().start();
    let mut client = XprofClient::start(&running, plan.window);
    let (window, every) = (plan.window.as_secs(), plan.every.as_secs());
    let agent =
        BenchAgent::start(&format!("window = '{window}s'\nmax_window = '{window}s'\nevery = '{every}s'\n"));
    agent.on(&id, "periodic");
    let (mut steps, mut calls, mut traced) = (Vec::new(), Vec::new(), false);
    for round in 0..=plan.rounds {
        // Between two windows of ours, so that both see the same job and machine. The client's window begins up to 3 s after
        // its call.
        let next = agent.processes(&id)[0]["next"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        let wait = next.duration_since(jiff::Timestamp::now());
        let wait = Duration::try_from(wait).unwrap_or_default() + plan.window + plan.every / 6;
        let call = jiff::Timestamp::now() + wait;
        client.trace_after(wait);
        client.has_traced();
        let of_round = logged_now(&running, &mut traced);
        // The first window of a process loads what the later ones find: it counts for neither.
        if round > 0 {
            steps.extend(of_round);
            calls.push(i64::try_from(call.as_nanosecond()).unwrap());
        }
    }
    until("the last window to be kept", || agent.processes(&id)[0]["open"] == false);
    let ours: Vec<(i64, i64)> = agent.segments(&id).iter().map(stretch).collect();
    let timeline = agent.ask(&["recorder", "timeline", "--job", &id]).stdout;
    assert!(!ours.is_empty(), "no window was kept: {timeline}\n{}", agent.agent.log());
    let status = &agent.processes(&id)[0];
    assert_eq!(status["recorded"], true, "a window met one of the client: {status}");
    report(plan, &stretches(&steps, &ours, &calls), &status["cost"])
}

fn stretch(segment: &Value) -> (i64, i64) {
    let at = |field: &str| segment[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let ns = |field: &str| i64::try_from(at(field).as_nanosecond()).unwrap();
    (ns("start"), ns("stop"))
}

/// Who traces a step, from its begin to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tracer {
    Ours,
    Client,
    Nobody,
}

/// Steps in a row with one tracer, in seconds.
struct StepStretch {
    tracer: Tracer,
    steps: Vec<f64>,
}

/// The steps by who traces them. One in which a trace begins or ends is of neither kind, nor is one between a call of the
/// client and its window.
fn stretches(steps: &[LoggedStep], ours: &[(i64, i64)], calls: &[i64]) -> Vec<StepStretch> {
    let (mut calls, mut is_called) = (calls.iter().copied().peekable(), false);
    let mut tracer = |step: &LoggedStep| {
        let is_in = ours.iter().any(|(start, stop)| step.begin_ns >= *start && step.end_ns <= *stop);
        let touches = ours.iter().any(|(start, stop)| step.end_ns > *start && step.begin_ns < *stop);
        is_called |= calls.next_if(|call| *call < step.end_ns).is_some();
        match (is_in, touches, step.traced) {
            (true, ..) => Some(Tracer::Ours),
            (false, true, _) => None,
            (false, false, true) => {
                is_called = false;
                Some(Tracer::Client)
            }
            (false, false, false) => (!is_called).then_some(Tracer::Nobody),
        }
    };
    let mut stretches: Vec<StepStretch> = Vec::new();
    let whole = steps.windows(2).filter(|pair| pair[0].traced == pair[1].traced).map(|pair| pair[0]);
    for (tracer, step) in whole.filter_map(|step| Some((tracer(&step)?, step))) {
        match stretches.last_mut().filter(|last| last.tracer == tracer) {
            Some(last) => last.steps.push(step.seconds()),
            None => stretches.push(StepStretch { tracer, steps: vec![step.seconds()] }),
        }
    }
    stretches
}

/// The mean step in each window of ours, as a multiple of that in the client's window after it.
fn beside_client(stretches: &[StepStretch]) -> Vec<f64> {
    let windows: Vec<&StepStretch> =
        stretches.iter().filter(|stretch| stretch.tracer != Tracer::Nobody).collect();
    let pairs =
        windows.windows(2).filter(|pair| pair[0].tracer == Tracer::Ours && pair[1].tracer == Tracer::Client);
    pairs.map(|pair| mean(&pair[0].steps) / mean(&pair[1].steps)).collect()
}

/// The median step after each window of this tracer, as a multiple of that before it.
fn after_windows(stretches: &[StepStretch], tracer: Tracer) -> Vec<f64> {
    let around = stretches.windows(3).filter(|three| {
        three[1].tracer == tracer && three[0].tracer == Tracer::Nobody && three[2].tracer == Tracer::Nobody
    });
    around.map(|three| quantile(&three[2].steps, 0.5) / quantile(&three[0].steps, 0.5)).collect()
}

fn report(plan: &WindowPlan, stretches: &[StepStretch], cost: &Value) -> bool {
    println!("steps of {} ms, windows of {} s", plan.step.as_millis(), plan.window.as_secs());
    let of = |tracer: Tracer| -> Vec<f64> {
        let of_tracer = stretches.iter().filter(|stretch| stretch.tracer == tracer);
        of_tracer.flat_map(|stretch| stretch.steps.iter().copied()).collect()
    };
    let (inside, theirs, outside) = (of(Tracer::Ours), of(Tracer::Client), of(Tracer::Nobody));
    for (what, steps) in [
        ("in windows of ours", &inside),
        ("in windows of xprof's client", &theirs),
        ("outside windows", &outside),
    ] {
        if steps.is_empty() {
            println!("  BROKEN: no whole step {what}, as on a machine with other work");
            return false;
        }
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
        "  recorder status, to which windows of the client are time between: {:+.1} % inside, {:+.2} % of the whole time",
        percent("slowdown_ratio"),
        percent("share_ratio")
    );
    let at_defaults = (mean(&inside) / mean(&outside) - 1.0) * 2.0 / 60.0;
    println!("  at defaults, 2 s in 60 s: {:+.2} % of the whole time", at_defaults * 100.0);
    println!("  after windows of the client: {}", spread(&after_windows(stretches, Tracer::Client)));
    let (beside, after) = (beside_client(stretches), after_windows(stretches, Tracer::Ours));
    println!("  after windows of ours: {}; beside the client's: {}", spread(&after), spread(&beside));
    if beside.is_empty() || after.is_empty() {
        println!("  BROKEN: no pair of windows, as on a machine with other work");
        return false;
    }
    let window =
        promise::at_most("a step in a window, of one in xprof's", quantile(&beside, 0.5), MOST_OF_XPROF);
    promise::at_most("median step after a window, of one before", quantile(&after, 0.5), MOST_AFTER) && window
}

/// How many ratios there are, and their quartiles.
fn spread(ratios: &[f64]) -> String {
    if ratios.is_empty() {
        return "none".to_owned();
    }
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| quantile(ratios, share));
    format!("{} pairs, {middle:.3} ({low:.3} to {high:.3})", ratios.len())
}
