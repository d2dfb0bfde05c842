//! The whole agent over a libtpu that dies or hangs: it goes on sampling from its other sources, and says why this
//! one is missing.

use fakes::{
    fake_host::FakeHost,
    libtpu::Staged,
    running_agent::RunningAgent,
    wait::{LIMIT, eventually, wait_with},
};
use model::device::Generation;
use serde_json::Value;

/// The source of this name, as `status` shows it.
fn source(agent: &RunningAgent, name: &str) -> Option<Value> {
    let status = agent.try_status()?;
    status["sources"].as_array()?.iter().find(|source| source["source"] == name).cloned()
}

/// Whether the host's own metrics go on being read.
fn goes_on(agent: &mut RunningAgent) {
    let reads = |agent: &RunningAgent| source(agent, "host")?["reads"].as_u64();
    let before = eventually("the host's reads", || reads(agent));
    eventually("three more reads of the host", || {
        assert!(agent.alive(), "the agent ended: {}", agent.log());
        reads(agent).filter(|reads| *reads >= before + 3)
    });
}

#[test]
fn the_agent_lives_on_whatever_libtpu_does() {
    for (behavior, words) in [
        ("sdk = segfault", "SIGSEGV"),
        ("duty_cycle_pct = hang", "duty_cycle_pct"),
        ("duty_cycle_pct = abort", "duty_cycle_pct"),
    ] {
        let staged = Staged::new(Some("0.0.52"), behavior);
        let settings = format!(
            "[libtpu]\npath = {:?}\n[sampler]\ninterval = \"250ms\"\nlibtpu_interval = \"250ms\"\nhost_service = false\n",
            staged.library()
        );
        let mut agent = RunningAgent::start(&FakeHost::with(Generation::V5e, 4), &settings);
        let explained = || source(&agent, "libtpu").filter(|it| it["absent"].to_string().contains(words));
        wait_with("libtpu's fault", LIMIT, || agent.log(), explained);
        goes_on(&mut agent);
        if behavior.starts_with("duty") {
            // The other metrics of the same library come back by themselves.
            let page = eventually("the library's other metrics", || {
                let page = agent.get("/metrics", "").body;
                page.contains("\ntpu_hbm_used_bytes{").then_some(page)
            });
            assert!(!page.contains("\ntpu_tensorcore_duty_cycle_ratio{"), "{page}");
        }
    }
}
