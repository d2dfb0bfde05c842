//! What the agent counts of itself, on its metrics page.

use fakes::{
    command::{Ended, run},
    fake_grpc::Reply,
    fake_host::FakeHost,
    fake_profiler::{FakeProfiler, Mode, trace},
    fake_runtime::{self, FakeRuntime},
    running_agent::RunningAgent,
    wait::eventually,
};

/// The value of a series on the page.
fn value(agent: &RunningAgent, series: &str) -> Option<f64> {
    let page = agent.get("/metrics", "").body;
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// An agent that knows profilers of these modes.
fn with_profilers(modes: Vec<Mode>) -> (FakeHost, Vec<FakeProfiler>, RunningAgent) {
    let host = FakeHost::new();
    let profilers: Vec<_> = modes.into_iter().map(FakeProfiler::start).collect();
    let endpoint = |profiler: &FakeProfiler| {
        format!("[[workload.endpoints]]\nkind = \"profiler\"\naddress = \"{}\"\n", profiler.target())
    };
    let agent = RunningAgent::start(&host, &profilers.iter().map(endpoint).collect::<String>());
    (host, profilers, agent)
}

fn ask(agent: &RunningAgent, arguments: &[&str]) -> Ended {
    let socket = agent.home().socket().display().to_string();
    let mut all = arguments.to_vec();
    all.extend(["--socket", &socket]);
    run(agent.home().path(), &all)
}

#[test]
fn captures_are_counted_by_result_and_the_store_by_bytes() {
    for (modes, code, result) in [
        (vec![Mode::Trace(trace())], 0, "complete"),
        (vec![Mode::Trace(trace()), Mode::Reset], 18, "partial"),
        (vec![Mode::Reset], 10, "failed"),
    ] {
        let (_host, _profilers, agent) = with_profilers(modes);
        let counted = |of: &str| value(&agent, &format!("tpuscope_captures_total{{result=\"{of}\"}}"));
        let all = ["complete", "partial", "failed", "refused"];
        assert_eq!(all.map(counted), [Some(0.0); 4], "a result that has not happened is 0");
        let ended = ask(&agent, &["capture", "--session", "s", "--duration", "10ms"]);
        assert_eq!(ended.code, Some(code), "{result}: {ended:?}");
        let want = all.map(|of| Some(f64::from(u8::from(of == result))));
        assert_eq!(all.map(counted), want, "{result}");

        assert!(value(&agent, "tpuscope_store_free_bytes").is_some_and(|bytes| bytes > 0.0));
        let kept = if result == "failed" { 0.0 } else { 1.0 };
        assert_eq!(value(&agent, "tpuscope_store_sessions"), Some(kept));
        assert_eq!(value(&agent, "tpuscope_store_bytes").map(|bytes| bytes > 0.0), Some(kept > 0.0));
        if kept > 0.0 {
            assert_eq!(ask(&agent, &["sessions", "rm", "s"]).code, Some(0));
            assert_eq!(value(&agent, "tpuscope_store_sessions"), Some(0.0));
            assert_eq!(value(&agent, "tpuscope_store_bytes"), Some(0.0));
        }
        assert_eq!(all.map(counted), want, "a counter does not fall");
    }
}

#[test]
fn a_refused_capture_is_counted() {
    let (_host, _profilers, agent) = with_profilers(Vec::new());
    let refused = || value(&agent, "tpuscope_captures_total{result=\"refused\"}");
    assert_eq!(ask(&agent, &["capture", "--duration", "10ms"]).code, Some(19));
    assert_eq!(refused(), Some(1.0));
    assert_eq!(ask(&agent, &["capture", "--duration", "9h"]).code, Some(2));
    assert_eq!(
        (refused(), value(&agent, "tpuscope_captures_total{result=\"failed\"}")),
        (Some(2.0), Some(0.0))
    );
}

#[test]
fn a_source_that_hangs_is_down_and_its_missed_ticks_are_counted() {
    let host = FakeHost::new();
    let runtime = FakeRuntime::with_devices(&[0]);
    for metric in fake_runtime::workload(&[0], 1) {
        runtime.set_reply(&metric.name, Reply::Hang);
    }
    let settings = format!(
        "[sampler]\ninterval = \"250ms\"\n[[workload.endpoints]]\nkind = \"runtime_metrics\"\naddress = \"{}\"\n",
        runtime.address()
    );
    let agent = RunningAgent::start(&host, &settings);
    let of = |metric: &str, source: &str| value(&agent, &format!("{metric}{{source=\"{source}\"}}"));
    eventually("missed ticks", || {
        of("tpuscope_source_missed_ticks_total", "runtime").filter(|missed| *missed > 0.0)
    });
    // The metrics have deadlines, so that the read as a whole ended by itself.
    assert_eq!(of("tpuscope_source_overruns_total", "runtime"), Some(0.0));
    assert_eq!(of("tpuscope_source_up", "runtime"), Some(0.0));
    assert!(of("tpuscope_source_errors_total", "runtime").is_some_and(|errors| errors > 0.0));
    assert_eq!(of("tpuscope_source_up", "host"), Some(1.0));
}
