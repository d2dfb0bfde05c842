//! The chips in `status`: unknown ones, absent ones, and which of them may be called free.

use std::fs;

use crate::schema::Schema;
use fakes::{command::run, fake_host::FakeHost, running_agent::RunningAgent};
use model::device::Generation;
use nix::sys::signal::Signal;
use serde_json::Value;

/// A v6e, one without driver and node, a function of Google's that is in no table, with the class that real v5e functions
/// have, and a v6e whose node is not in this agent's /dev.
fn host() -> FakeHost {
    let host = FakeHost::with(Generation::V6e, 3);
    let chips = host.chips();
    chips[1..].iter().for_each(|chip| fs::remove_file(&chip.nodes[0]).unwrap());
    host.bind_drivers(&[0, 2]);
    let unknown = host.function("0000:09:00.0", [0x1ae0, 0x0099, 0x1ae0, 0x0000], 0xff_0000);
    std::os::unix::fs::symlink(host.sys().join("bus/pci/drivers/vfio-pci"), unknown.join("driver")).unwrap();
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
    let want = [("v6e", "ok"), ("v6e", "absent"), ("v6e", "absent"), ("unknown TPU 0x0099", "unknown")];
    assert_eq!(states, want);
    assert_eq!(chips[0].2, "");
    assert!(chips[1].2.contains("is absent: no driver is bound"), "{chips:?}");
    assert!(chips[2].2.contains("not in this agent's /dev"), "{chips:?}");
    assert!(chips[3].2.contains("no IOMMU group"), "{chips:?}");

    let shown = run(agent.home().path(), &["status", "--socket", "agent.sock"]);
    let line = |chip: &str| shown.stdout.lines().find(|line| line.starts_with(chip)).unwrap().to_owned();
    assert!(line("1 ").contains("absent") && !line("1 ").contains("free"), "{shown:?}");
    assert!(line("2 ").contains("absent") && !line("2 ").contains("free"), "{shown:?}");
    assert!(line("3 ").ends_with("unknown"), "{shown:?}");
    // Where processes of the machine are hidden from this agent, even a good chip is not called free.
    let seen = status["chips"][0]["owners_unknown"] == "";
    assert!(line("0 ").ends_with(if seen { "free" } else { "unknown" }), "{shown:?}");

    // The series say the same.
    let page = agent.get("/metrics", "").body;
    let of = |series: &str| page.lines().find_map(|line| line.strip_prefix(series)).map(str::to_owned);
    let up = |chip: u32| of(&format!("tpu_chip_up{{chip=\"{chip}\",source=\"host\"}} "));
    assert_eq!((up(0).as_deref(), up(1).as_deref()), (Some("1.0"), Some("0.0")));
    assert_eq!([up(2), up(3)], [None, None], "it is not known whether these are up");
    let fault = |chip: u32| of(&format!("tpu_chip_fault{{chip=\"{chip}\",fault=\""));
    assert!(fault(1).unwrap().contains("is absent\","), "{page}");
    assert!([0, 2, 3].into_iter().all(|chip| fault(chip).is_none()), "{page}");
    let owner = |chip: u32| of(&format!("tpu_chip_owner_info{{chip=\"{chip}\",state=\""));
    assert!(owner(0).unwrap().starts_with(if seen { "free" } else { "unknown" }), "{page}");
    assert!(owner(1).is_none_or(|state| !seen && state.starts_with("unknown")), "{page}");
    assert!(owner(3).unwrap().starts_with("unknown"), "{page}");
}

#[test]
fn a_chip_that_is_removed_leaves_a_gap_after_a_restart() {
    let host = FakeHost::with(Generation::V6e, 4);
    let agent = RunningAgent::start(&host, "");
    let chips = host.chips();
    let numbers = |agent: &RunningAgent| -> Vec<(u64, String)> {
        let status = agent.status();
        let found = status["chips"].as_array().unwrap().iter();
        found
            .map(|chip| (chip["index"].as_u64().unwrap(), chip["pci"].as_str().unwrap().to_owned()))
            .collect()
    };
    let before = numbers(&agent);
    assert_eq!(before.iter().map(|chip| chip.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    agent.signal(Signal::SIGTERM);
    let (_, home) = agent.end();
    fs::remove_file(host.sys().join("bus/pci/devices").join(format!("{}.0", chips[1].pci))).unwrap();
    let command = home.command(&host.config(""));
    let agent = RunningAgent::ready(home, command);
    let kept: Vec<_> = [0, 2, 3].map(|chip| before[chip].clone()).into();
    assert_eq!(numbers(&agent), kept);
    let page = agent.get("/metrics", "").body;
    let series: Vec<_> = page.lines().filter(|line| line.starts_with("tpu_chip_info{")).collect();
    assert_eq!(series.len(), 3, "{series:?}");
    for (line, (index, pci)) in series.iter().zip(kept) {
        assert!(line.contains(&format!("chip=\"{index}\",pci=\"{pci}\"")), "{line}");
    }
}
