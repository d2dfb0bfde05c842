//! The chips in `status`: unknown ones, absent ones, and which of them may be called free.

use std::fs;

use fakes::{command::run, fake_host::FakeHost, running_agent::RunningAgent, schema::Schema};
use model::device::Generation;
use serde_json::Value;

/// A v6e, one without its node, and a function of Google's that is in no table, with the class that real v5e
/// functions have.
fn host() -> FakeHost {
    let host = FakeHost::with(Generation::V6e, 2);
    fs::remove_file(&host.chips()[1].nodes[0]).unwrap();
    host.function("0000:09:00.0", [0x1ae0, 0x0099, 0x1ae0, 0x0000], 0xff_0000);
    host
}

#[test]
fn every_chip_has_a_state_and_only_an_openable_one_may_be_free() {
    let host = host();
    let agent = RunningAgent::start(&host, "");
    let status = agent.status();
    Schema::open("status").admits(&status);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let chips: Vec<_> = status["chips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|chip| (text(&chip["name"]), text(&chip["state"]), text(&chip["faults"][0])))
        .collect();
    let states: Vec<_> = chips.iter().map(|chip| (chip.0.as_str(), chip.1.as_str())).collect();
    assert_eq!(states, [("v6e", "ok"), ("v6e", "absent"), ("unknown TPU 0x0099", "unknown")]);
    assert_eq!(chips[0].2, "");
    assert!(chips[1].2.contains("is absent") && chips[2].2.contains("no IOMMU group"), "{chips:?}");

    let shown = run(agent.home().path(), &["status", "--socket", "agent.sock"]);
    let line = |chip: &str| shown.stdout.lines().find(|line| line.starts_with(chip)).unwrap().to_owned();
    assert!(line("1 ").contains("absent") && !line("1 ").contains("free"), "{shown:?}");
    assert!(line("2 ").ends_with("unknown"), "{shown:?}");
    // Where processes of the machine are hidden from this agent, even a good chip is not called free.
    let seen = status["chips"][0]["owners_unknown"] == "";
    assert!(line("0 ").ends_with(if seen { "free" } else { "unknown" }), "{shown:?}");
}
