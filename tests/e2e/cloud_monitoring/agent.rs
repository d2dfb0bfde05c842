//! A running agent: what its settings, its log and its own metrics say of the exporter.

use std::process::Command;

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    fake_monitoring::MonitoringManner,
    fake_runtime::FakeRuntime,
    harness::tpuscope,
    running_agent::{Home, RunningAgent},
    wait::{until, wait_with},
};
use nix::sys::signal::Signal;

use super::*;

/// An agent with the exporter on, the services that it needs, and a workload with distributions.
struct ExportingAgent {
    agent: RunningAgent,
    monitoring: FakeMonitoring,
    _runtime: FakeRuntime,
    _host: FakeHost,
}

impl ExportingAgent {
    fn start(gcs: &FakeGcs, monitoring: FakeMonitoring) -> Self {
        let (host, home) = (FakeHost::new(), Home::new());
        let runtime = FakeRuntime::with_devices(&[0]);
        let settings = format!(
            "[workload]\nendpoints = [{{kind = 'runtime_metrics', address = '{}'}}]\n\
             [export.cloud_monitoring]\nenabled = true\ninterval = '10s'\ndistributions = true\n\
             cluster_name = 'c-1'\nendpoint = '{}'\n",
            runtime.address(),
            monitoring.url()
        );
        let mut command = home.command(&host.config(&settings));
        command
            .envs(gcs.metadata_env())
            .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
            .env("HOME", home.path());
        let agent = RunningAgent::ready(home, command);
        Self { agent, monitoring, _runtime: runtime, _host: host }
    }

    fn mark(&self, words: &[&str]) -> Ended {
        let mut command = Command::new(tpuscope());
        command.args(["mark", "--strict", "--job", "train"]).args(words);
        command.arg("--socket").arg(self.agent.home().socket()).env_remove("SLURM_JOB_ID");
        start_as(command).end()
    }

    /// The series of a metric, the oldest first.
    fn series(&self, name: &str) -> Vec<Value> {
        self.monitoring.series().into_iter().filter(|one| metric(one) == name).collect()
    }

    fn own_metric(&self, series: &str) -> Option<f64> {
        let page = self.agent.get("/metrics", "").body;
        page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }
}

#[test]
fn marks_and_distributions_become_series_with_the_machines_account() {
    let gcs = FakeGcs::start();
    let host = ExportingAgent::start(&gcs, FakeMonitoring::start());
    for words in [
        &["JOB", "--start"][..],
        &["STEP", "--step", "0"],
        &["STEP", "--step", "1"],
        &["STEP", "--step", "2"],
    ] {
        let marked = host.mark(words);
        assert_eq!(marked.code, Some(0), "{marked:?}");
    }
    let evidence = || format!("{:?}\n{}", host.monitoring.violations(), host.agent.log());
    let two = || (host.series("goodput_time").len() >= 2).then_some(());
    wait_with("two points of the job", fakes::wait::LIMIT, evidence, two);
    let goodput = &host.series("goodput_time")[0];
    assert_eq!(
        goodput["metric"]["labels"],
        serde_json::json!({"goodput_source": "TOTAL", "accelerator_type": "TPU-v4p", "cluster_name": "c-1"})
    );
    assert_eq!(
        goodput["resource"]["labels"],
        serde_json::json!({"location": "us-central2-b", "workload_id": "train", "replica_id": "0"})
    );
    let timing = host.series("tpu_hlo_execution_seconds");
    assert!(!timing.is_empty(), "{:?}", host.monitoring.series());
    assert_eq!((&timing[0]["valueType"], &timing[0]["unit"]), (&"DISTRIBUTION".into(), &"s".into()));
    assert_eq!(timing[0]["resource"]["labels"]["namespace"], "tpuscope");
    for request in host.monitoring.requests() {
        assert_eq!(request.path, "/v3/projects/project/timeSeries");
        assert_eq!(request.authorization.as_deref(), Some("Bearer token-1"));
    }
    assert_eq!(host.monitoring.violations(), [""; 0]);
    let sent = r#"tpuscope_export_points_total{exporter="cloud_monitoring",result="sent"}"#;
    until("the points are counted", || host.own_metric(sent).is_some_and(|points| points >= 20.0));
    assert!(!host.agent.log().contains("Cloud Monitoring"), "{}", host.agent.log());
}

#[test]
fn a_missing_scope_is_one_line_with_its_remedy_until_it_is_there() {
    let (gcs, monitoring) = (FakeGcs::start(), FakeMonitoring::start());
    monitoring.set_manner(MonitoringManner::Status(403, "ACCESS_TOKEN_SCOPE_INSUFFICIENT"));
    let host = ExportingAgent::start(&gcs, monitoring);
    assert_eq!(host.mark(&["JOB", "--start"]).code, Some(0));
    assert_eq!(host.mark(&["STEP", "--step", "0"]).code, Some(0));
    let failures = r#"tpuscope_export_failures_total{exporter="cloud_monitoring",reason="scope"}"#;
    until("a failure", || host.own_metric(failures).is_some());
    let log = host.agent.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("Cloud Monitoring")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for says in ["status 403", "as the service account of this machine", "the access scope monitoring.write"]
    {
        assert!(lines[0].contains(says), "{says}: {}", lines[0]);
    }
    host.monitoring.set_manner(MonitoringManner::Sound);
    until("points arrive", || !host.monitoring.series().is_empty());
    until("the log says so", || host.agent.log().contains("Cloud Monitoring takes points again"));
}

#[test]
fn a_service_that_hangs_delays_neither_the_sampler_nor_the_stop() {
    let (gcs, monitoring) = (FakeGcs::start(), FakeMonitoring::start());
    monitoring.set_manner(MonitoringManner::Hang);
    let host = ExportingAgent::start(&gcs, monitoring);
    for words in [&["JOB", "--start"][..], &["STEP", "--step", "0"]] {
        assert_eq!(host.mark(words).code, Some(0));
    }
    let reads = || host.own_metric(r#"tpuscope_source_reads_total{source="runtime"}"#).unwrap();
    until("a request that hangs", || !host.monitoring.requests().is_empty());
    let before = reads();
    until("the sampler goes on", || reads() >= before + 2.0);
    let ExportingAgent { agent, monitoring: _monitoring, .. } = host;
    agent.signal(Signal::SIGTERM);
    let (code, home) = agent.end();
    let log = fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("did not stop in time"), "{log}");
}

#[test]
fn an_exporter_that_is_off_has_no_thread_and_no_series() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[export.cloud_monitoring]\nproject = 'p'\n");
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let names: Vec<String> =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()).collect();
    assert!(names.iter().all(|name| name.trim() != "monitoring"), "{names:?}");
    let page = agent.get("/metrics", "").body;
    assert!(!page.contains("exporter="), "{page}");
}
