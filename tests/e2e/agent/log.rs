//! The log: each change of the host and of the sources once, with what a reader needs.

use std::fs;

use fakes::{
    fake_grpc::{Manner, ServerAddress},
    fake_host::FakeHost,
    fake_runtime::{self, FakeRuntime},
    fake_workload::FakeWorkload,
    running_agent::RunningAgent,
    wait::{LIMIT, wait_with},
};
use model::device::Generation;

/// The lines of the log that have all of these texts, once there is one.
fn lines(agent: &RunningAgent, texts: &[&str]) -> Vec<String> {
    let found = || {
        let log = agent.log();
        let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
        log.lines().filter(has_all).map(str::to_owned).collect::<Vec<_>>()
    };
    wait_with(
        &format!("{texts:?} in the log"),
        LIMIT,
        || agent.log(),
        || Some(found()).filter(|lines| !lines.is_empty()),
    )
}

#[test]
fn each_chip_and_fault_is_one_line() {
    let host = FakeHost::with(Generation::V6e, 3);
    let chips = host.chips();
    chips[1..].iter().for_each(|chip| fs::remove_file(&chip.nodes[0]).unwrap());
    host.bind_drivers(&[0, 2]);
    let agent = RunningAgent::start(&host, "");
    for chip in &chips {
        let appeared = format!("chip appeared chip={} name=v6e pci={}", chip.index.0, chip.pci);
        assert_eq!(lines(&agent, &["INFO", &appeared]).len(), 1, "{}", agent.log());
    }
    assert_eq!(
        lines(&agent, &["WARN", "chip has a fault", "chip=1", "state=\"absent\"", "is absent"]).len(),
        1
    );
    assert_eq!(agent.log().matches("chip has a fault").count(), 1, "{}", agent.log());
    // The node of the third one is not in this agent's /dev.
    assert_eq!(lines(&agent, &["WARN", "health of a chip is unknown", "chip=2", "is not in"]).len(), 1);
}

#[test]
fn a_process_and_its_workload_come_and_go() {
    let host = FakeHost::with(Generation::V6e, 1);
    let agent = RunningAgent::start(&host, "");
    let workload =
        FakeWorkload::new().hold(&host.chips()[0].nodes[0]).variable("SLURM_JOB_ID", "4711").start();
    let (pid, uid) = (format!("pid={}", workload.pid()), format!("uid={}", nix::unistd::getuid()));
    let came = lines(&agent, &["process uses chips", &pid]);
    assert!(came[0].contains(&uid) && came[0].contains("command=\"fake-workload\" chips=\"0\""), "{came:?}");
    let started = lines(&agent, &["workload started", "kind=\"slurm\"", "4711"]);
    drop(workload);
    let went = lines(&agent, &["process no longer uses chips", &pid]);
    let ended = lines(&agent, &["workload ended", "kind=\"slurm\"", "4711"]);
    assert_eq!([came.len(), started.len(), went.len(), ended.len()], [1; 4], "{}", agent.log());
}

#[test]
fn a_hung_service_is_logged_when_it_begins_and_when_it_is_over_and_status_says_how_long() {
    let host = FakeHost::with(Generation::V6e, 1);
    let runtime = FakeRuntime::start(ServerAddress::Tcp(([127, 0, 0, 1], 0).into()));
    runtime.set_all(fake_runtime::workload(&[0], 1));
    let address = runtime.address().to_string();
    let settings = format!(
        "[log]\nlevel = \"debug\"\n[sampler]\ninterval = \"250ms\"\n\
         [[workload.endpoints]]\nkind = \"runtime_metrics\"\naddress = \"{address}\"\n"
    );
    runtime.set_manner(Manner::Silent);
    let agent = RunningAgent::start(&host, &settings);
    let what = format!("source=\"runtime\" what=\"{address}\"");
    let began = lines(&agent, &["WARN", "source cannot read", &what, "why=\"no "]);
    let since = |agent: &RunningAgent| {
        let status = agent.status();
        let sources = status["sources"].as_array().cloned().unwrap_or_default();
        let runtime = sources.into_iter().find(|source| source["source"] == "runtime")?;
        let absent =
            runtime["absent"].as_array()?.iter().find(|absence| absence["what"] == address.as_str())?;
        assert_eq!(absent["partial"], false, "{absent}");
        Some((absent["since"].as_str()?.to_owned(), runtime["reads"].as_u64()?))
    };
    let first = wait_with("the failure in status", LIMIT, || agent.log(), || since(&agent));
    // It goes on, and began when it began.
    let later = || since(&agent).filter(|(_, reads)| *reads > first.1 + 2);
    assert_eq!(wait_with("further reads", LIMIT, || agent.log(), later).0, first.0);
    let socket = agent.home().socket().display().to_string();
    let page = fakes::command::run(agent.home().path(), &["status", "--socket", &socket]).stdout;
    let remark = page.lines().find(|line| line.starts_with(&format!("- runtime: {address}: no ")));
    assert!(remark.is_some_and(|line| line.contains(" (for ") && line.ends_with(" s)")), "{page}");

    runtime.set_manner(Manner::Polite);
    let over = lines(&agent, &["INFO", "failure of a source is over", &what]);
    assert_eq!((began.len(), over.len()), (1, 1), "{}", agent.log());
    assert_eq!(agent.log().matches("source cannot read").count(), 1, "{}", agent.log());
    // What debug is worth: each read, and each call with its caller.
    lines(&agent, &["DEBUG", "read source=\"runtime\"", "series=", "missing=0", "duration="]);
    lines(&agent, &["DEBUG", "list of metrics received", &address]);
    lines(&agent, &["DEBUG", "call path=\"/tpuscope.v1.Host/Status\"", "pid="]);
}
