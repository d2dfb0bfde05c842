//! The strategy drain on a real JAX job: segments follow each other, a capture goes first, and an agent that is killed leaves
//! nothing.

use fakes::{
    profiler_probe::{becomes_free, is_free},
    wait::eventually,
};
use nix::sys::signal::Signal;

use super::{RecorderAgent, SHORT, jax, seconds, unique};
use crate::schema::Schema;

#[test]
fn a_job_is_drained_and_free_after_whatever_happens_to_the_agent() {
    let id = unique("drain");
    let mut job = jax(&id).step_ms(20).start();
    let (target, pid) = (job.target(), job.pid().to_string());
    let agent = RecorderAgent::start(SHORT);
    agent.drain(&id);
    let segments = agent.windows(&id, 2);
    assert!(!is_free(&target), "a session is open");
    let between = seconds(&segments[1]["start"]) - seconds(&segments[0]["stop"]);
    assert!((0.0..1.0).contains(&between), "{between} s between {segments:?}");
    assert!(segments[1]["steps"].as_u64() > Some(50), "{segments:?}");

    // A capture goes first, and what was recorded before is kept.
    let captured = agent.ask(&["capture", "--pid", &pid, "--duration", "200ms"]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let held = agent.windows(&id, 3).len();
    agent.windows(&id, held + 1);
    assert!(agent.gaps(&id).iter().any(|gap| gap.contains("capture")), "{:?}", agent.gaps(&id));
    let snapshot = agent.ask(&["snapshot", "--last", "60s", "--job", &id]);
    assert_eq!(snapshot.code, Some(0), "{snapshot:?}");

    // Killed, without a restart: the guard stops the session. The next agent records again, since its owner asked.
    agent.agent.signal(Signal::SIGKILL);
    becomes_free(&target);
    let agent = agent.again(SHORT);
    let held = agent.windows(&id, 1).len();
    agent.windows(&id, held + 1);
    let off = agent.ask(&["recorder", "off", "--job", &id]);
    assert_eq!(off.code, Some(0), "{off:?}");
    becomes_free(&target);

    // An orderly end leaves nothing either.
    let on = agent.ask(&["recorder", "on", "--job", &id, "--strategy", "drain"]);
    assert_eq!(on.code, Some(0), "{on:?}");
    // Not asked by profiles: one at the instant of the start would be a foreign use.
    let held = agent.windows(&id, 1).len();
    agent.windows(&id, held + 1);
    agent.agent.signal(Signal::SIGTERM);
    let (code, _) = agent.agent.end();
    assert_eq!(code, Some(0));
    assert!(is_free(&target) && job.alive());
}

/// As one of 8 s with drains of 80 s: ten steps a drain.
#[test]
fn of_long_steps_at_least_four_fifths_are_kept() {
    let id = unique("long-steps");
    let _job = jax(&id).step_ms(800).start();
    let agent = RecorderAgent::start(SHORT);
    agent.drain(&id);
    let status = eventually("the interval to follow the steps", || {
        let status = agent.status(&id);
        status["drain_seconds"].as_f64().filter(|every| *every >= 7.0)?;
        Some(status)
    });
    assert_eq!(
        (&status["levels"], &status["strategy"]),
        (&"host 1, device 1, python 0".into(), &"drain".into())
    );
    Schema::open("recorder-status")
        .admits(&agent.ask(&["recorder", "status", "--job", &id, "--json"]).json());
    let page = agent.ask(&["recorder", "status", "--job", &id]).stdout;
    assert!(page.contains("tracer levels: host 1, device 1, python 0"), "{page}");
    // The first drain comes after 5 s, whatever the steps are.
    let segments = agent.windows(&id, 4);
    let kept = &segments[1..];
    let number = |segment: &serde_json::Value, field: &str| segment[field].as_i64().unwrap();
    let all = number(&kept[kept.len() - 1], "last_step") - number(&kept[0], "first_step") + 1;
    let whole: i64 = kept.iter().map(|segment| number(segment, "steps")).sum();
    assert!(whole * 5 >= all * 4, "{whole} of {all} steps: {segments:?}");
}

#[test]
fn a_job_that_writes_more_than_allowed_is_recorded_with_less_and_then_left_alone() {
    let id = unique("writes");
    let mut job = jax(&id).step_ms(5).start();
    let target = job.target();
    let agent = RecorderAgent::start(&format!("{SHORT}max_write_rate = '1KiB'\n"));
    agent.drain(&id);
    eventually("less to be recorded", || {
        (agent.status(&id)["levels"] == "host 1, device 0, python 0").then_some(())
    });
    let process = eventually("the recorder to give up", || {
        let process = agent.status(&id);
        (process["reason_code"] == "strategy").then_some(process)
    });
    assert!(process["reason"].as_str().unwrap().contains("recorder.max_write_rate"), "{process}");
    becomes_free(&target);
    assert!(
        agent.gaps(&id).iter().any(|gap| gap.contains("recorder.max_write_rate")),
        "{:?}",
        agent.gaps(&id)
    );
    assert!(job.alive());
}

/// Whoever annotates a lot grows faster than anybody drains.
#[test]
fn a_job_that_grows_by_far_is_left_alone_at_once_and_for_good() {
    let id = unique("grows");
    let mut job = jax(&id).step_ms(1).argument("--annotations").argument("700").start();
    let target = job.target();
    let agent = RecorderAgent::start(&format!("{SHORT}max_growth = '16MiB'\n"));
    agent.drain(&id);
    let reason = eventually("the recorder to give up", || {
        let process = agent.status(&id);
        process["reason"].as_str().filter(|reason| reason.contains("recorder.max_growth")).map(str::to_owned)
    });
    assert!(reason.contains("its memory has grown by"), "{reason}");
    becomes_free(&target);
    let segments = agent
        .timeline(&id)
        .iter()
        .filter_map(|process| process["segments"].as_array().map(Vec::len))
        .sum::<usize>();
    assert!(segments < 3, "it does not wait for drains: {segments} were kept");
    assert!(job.alive());
}
