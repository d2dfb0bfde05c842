//! `metrics` and `history`: what the agent has measured, on the command line.

use crate::schema::Schema;
use fakes::{
    command::{Ended, run},
    fake_host::FakeHost,
    running_agent::RunningAgent,
    wait::until,
};

#[test]
fn values_and_their_course_are_shown_without_http() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[sampler]\nsim_chips = 2\n");
    let ask = |arguments: &[&str]| -> Ended {
        let socket = agent.home().socket().display().to_string();
        let mut all = arguments.to_vec();
        all.extend(["--socket", &socket]);
        run(agent.home().path(), &all)
    };
    let all = ask(&["metrics", "--json"]).json();
    Schema::open("metrics").admits(&all);
    let text = ask(&["metrics", "hbm_used"]).stdout;
    let lines: Vec<_> = text.lines().skip(1).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with("tpu_hbm_used_bytes  ")), "{text}");
    let chips = all["samples"].as_array().unwrap().iter().filter(|it| it["metric"] == "tpu_hbm_used_bytes");
    assert_eq!(lines.len(), chips.count(), "{text}");
    ask(&["metrics", "hbm_usde"]).failed(5, "no metric's name contains `hbm_usde`");

    let history = |arguments: &[&str]| {
        let mut all = vec!["history", "tpu_hbm_used_bytes"];
        all.extend(arguments);
        ask(&all)
    };
    until("two points", || {
        let history = history(&["--json", "--chip", "1", "--last", "10m"]).json();
        Schema::open("history").admits(&history);
        let series = history["series"].as_array().unwrap();
        assert!(series.iter().all(|series| series["labels"]["chip"] == "1"), "{history}");
        series.first().and_then(|series| series["points"].as_array()).is_some_and(|points| points.len() >= 2)
    });
    let course = history(&["--chip", "1"]).stdout;
    assert!(course.contains("chip=\"1\"") && !course.contains("chip=\"0\""), "{course}");
    assert!(course.contains(['▁', '█']), "{course}");
    history(&["--chip", "7"]).failed(5, "the agent has no values of `tpu_hbm_used_bytes` of chip 7");
    let misspelt = ask(&["history", "tpu_hbm_usde_bytes"]);
    misspelt.failed(5, "the agent has no values of `tpu_hbm_usde_bytes`");
    assert!(misspelt.stderr.contains("did you mean `tpu_hbm_used_bytes`?"), "{misspelt:?}");
    history(&["--last", "10"]).failed(2, "--last");
}
