//! `status`: what it shows of a host without chips, of simulated chips, and again and again.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use fakes::{
    command::{Ended, run},
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::RunningAgent,
    wait::eventually,
};
use model::device::Generation;

fn status(agent: &RunningAgent, arguments: &[&str]) -> Ended {
    let socket = agent.home().socket().display().to_string();
    let mut all = vec!["status", "--socket", &socket];
    all.extend(arguments);
    run(agent.home().path(), &all)
}

#[test]
fn a_healthy_host_without_chips_has_no_errors() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    let json = agent.status();
    for source in json["sources"].as_array().unwrap() {
        if source["source"] != "host" {
            assert_eq!(source["errors"], 0, "{source}");
            assert!(source["unused"].as_str().is_some_and(|why| !why.is_empty()), "{source}");
        }
    }
    let quiet = status(&agent, &[]).stdout;
    assert!(!quiet.contains("Orbax") && !quiet.contains("orbax_grain"), "{quiet}");
    let all = status(&agent, &["-v"]).stdout;
    assert!(all.contains("- orbax_grain: nothing to read: no workload opens the endpoint"), "{all}");
}

#[test]
fn simulated_chips_are_shown_selected_and_wide() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[sampler]\nsim_chips = 2\n");
    let page = eventually("both chips", || {
        let page = status(&agent, &["-o", "wide"]).stdout;
        (page.matches("  sim ").count() == 2).then_some(page)
    });
    assert!(page.contains("HBM BANDWIDTH"), "{page}");
    let one = status(&agent, &["--chip", "1", "--json"]).json();
    assert_eq!(one["chips"].as_array().map(Vec::len), Some(1), "{one}");
    assert_eq!(one["chips"][0]["index"], 1, "{one}");
    status(&agent, &["--chip", "7"]).failed(5, "there is no chip 7");
    status(&agent, &["--pid", "1"]).failed(5, "process 1 uses no chip");
}

#[test]
fn a_watched_status_comes_again_and_ends_with_its_reader() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    let mut watch = Command::new(tpuscope())
        .args(["status", "--watch", "--socket"])
        .arg(agent.home().socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let heads = lines.map(Result::unwrap).filter(|line| line.contains(": agent "));
    assert_eq!(heads.take(2).count(), 2);
    // The pipe is closed now.
    let ended = eventually("the end of the command", || watch.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn the_log_has_each_chip_once() {
    let host = FakeHost::with(Generation::V6e, 2);
    let agent = RunningAgent::start(&host, "");
    let log = agent.log();
    for chip in host.chips() {
        let line = format!("a chip appeared chip={} name=v6e pci={}", chip.index.0, chip.pci);
        assert_eq!(log.matches(&line).count(), 1, "`{line}` in {log}");
    }
}
