//! The alert rules that are installed with the agent: each fires in a real Prometheus over fake chips, and none of them
//! on a sound host.

use std::{fs, path::Path, process::Command};

use fakes::{
    fake_grpc::{Reply, ServerAddress},
    fake_host::FakeHost,
    fake_host_service::{self, FakeHostService},
    fake_runtime::{self, FakeRuntime},
    running_agent::{Home, RunningAgent},
    small_disk::SmallDisk,
    wait::eventually,
};
use model::device::Generation;

use super::scrape::Prometheus;

const RULES: &str = include_str!("../../../packaging/prometheus/alerts.yml");

/// The rules without the time for which their condition has to hold.
fn at_once() -> String {
    let line =
        |line: &str| if line.trim_start().starts_with("for:") { String::new() } else { format!("{line}\n") };
    RULES.lines().map(line).collect()
}

/// A host of four chips with a workload and the host's service, whose `tpu-env` names four.
struct TpuHost {
    host: FakeHost,
    runtime: FakeRuntime,
    service: FakeHostService,
}

impl TpuHost {
    fn new() -> Self {
        let host = FakeHost::with(Generation::V6e, 4);
        fs::write(host.root().join("tpu-env"), "CHIPS_PER_HOST_BOUNDS: '2,2,1'\n").unwrap();
        let runtime = FakeRuntime::with_devices(&[0, 1, 2, 3]);
        runtime.set_all(fake_runtime::workload(&[0, 1, 2, 3], 3));
        Self {
            host,
            runtime,
            service: FakeHostService::start(ServerAddress::Tcp(([127, 0, 0, 1], 0).into()), 4),
        }
    }

    fn agent(&self) -> RunningAgent {
        RunningAgent::start(&self.host, &self.settings())
    }

    /// An agent whose sessions lie on this disk.
    fn agent_on(&self, disk: &SmallDisk) -> RunningAgent {
        let home = Home::new();
        let mut command = home.command(&self.host.config(&self.settings()));
        command.arg("--set").arg(format!("agent.state_dir={}", disk.path().join("state").display()));
        RunningAgent::ready(home, command)
    }

    fn settings(&self) -> String {
        format!(
            "[sampler]\ninterval = \"250ms\"\n[device]\ntpu_env = {:?}\n[[workload.endpoints]]\nkind = \"runtime_metrics\"\n\
             address = \"{}\"\n[[workload.endpoints]]\nkind = \"host_service\"\naddress = \"{}\"\n",
            self.host.root().join("tpu-env"),
            self.runtime.address(),
            self.service.address(),
        )
    }
}

/// The number of series that `expression` selects.
fn selected(prometheus: &Prometheus, expression: &str) -> usize {
    prometheus.values(&expression.replace(' ', "%20"))
}

#[test]
fn one_key_joins_chips_links_and_throttling() {
    let tpu = TpuHost::new();
    let agent = tpu.agent();
    let prometheus = Prometheus::with_rules(agent.http(), "groups: []\n");
    let joined = |metric: &str| {
        format!(
            "{metric} * on (instance, tray_chip) group_left (chip) tpu_tray_chip_info{{chip!=\"unknown\"}}"
        )
    };
    let links = joined("tpu_ici_link_health_score");
    assert_eq!(selected(&prometheus, &links), 16);
    assert_eq!(selected(&prometheus, &joined("tpu_chip_throttle_score")), 4);
    // The chip of a link is one that has a PCI address.
    let with_pci = format!("{links} * on (instance, chip) group_left (pci) tpu_chip_info");
    assert_eq!(selected(&prometheus, &with_pci), 16);
    assert_eq!(prometheus.count("tpu_chip_info%20unless%20on%20(instance,chip)%20tpu_chip_up"), 0);
}

fn fires(prometheus: &Prometheus, alert: &str) {
    eventually(alert, || prometheus.firing().contains(&alert.to_owned()).then_some(()));
}

#[test]
fn the_rules_are_sound_and_fire_over_time_as_the_cases_say() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (command, file) in
        [("check", "../packaging/prometheus/alerts.yml"), ("test", "e2e/agent/alerts_test.yml")]
    {
        let checked = Command::new("promtool").args([command, "rules"]).arg(tests.join(file)).output();
        let checked = checked.expect("promtool is installed by tests/setup.sh");
        let said = [checked.stdout, checked.stderr].concat();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn no_rule_fires_on_a_sound_host() {
    let tpu = TpuHost::new();
    let agent = tpu.agent();
    let prometheus = Prometheus::with_rules(agent.http(), &at_once());
    for metric in [
        "tpu_chip_up==1",
        "tpu_ici_link_health_score",
        "tpu_tensorcore_duty_cycle_ratio",
        "tpu_chips_expected",
    ] {
        prometheus.values(metric);
    }
    prometheus.evaluated_again();
    assert_eq!(prometheus.firing(), Vec::<String>::new());
    // No series of ours collides with a label of the scrape.
    assert_eq!(prometheus.count("{__name__=~\"tpu.%2B|host.%2B\",exported_job!=\"\"}"), 0);
    assert_eq!(prometheus.count("{__name__=~\"tpu.%2B|host.%2B\",exported_instance!=\"\"}"), 0);
}

#[test]
fn an_idle_job_a_bad_link_and_a_source_that_stops_fire() {
    let tpu = TpuHost::new();
    let agent = tpu.agent();
    let prometheus = Prometheus::with_rules(agent.http(), &at_once());
    prometheus.values("tpuscope_source_up{source=\"runtime\"}==1");
    let idle: Vec<_> = (0..4).map(|device| (device, 0.0)).collect();
    tpu.runtime.set(&fake_runtime::per_device("tpu.runtime.tensorcore.dutycycle.percent", &idle, false));
    fires(&prometheus, "TpuJobIdle");
    let mut sick = fake_host_service::metrics(4, 1);
    sick.metrics_data[2].tpu_health_metrics.as_mut().unwrap().ici_link_metrics[1].link_health = 10;
    tpu.service.set_reply(Reply::of(&sick));
    fires(&prometheus, "TpuLinkBad");
    let TpuHost { host: _host, runtime, service: _service } = tpu;
    drop(runtime);
    fires(&prometheus, "TpuscopeSourceDown");
}

#[test]
fn chips_that_cannot_be_listed_are_unknown_and_not_missing() {
    let tpu = TpuHost::new();
    fs::remove_dir_all(tpu.host.sys().join("bus")).unwrap();
    let agent = tpu.agent();
    let prometheus = Prometheus::with_rules(agent.http(), &at_once());
    fires(&prometheus, "TpuChipsUnknown");
    assert_eq!(prometheus.firing(), ["TpuChipsUnknown"]);
    assert_eq!(prometheus.count("tpuscope_chips"), 0);
    assert_eq!(agent.log().matches("chips are unknown: cannot list PCI functions in ").count(), 1);
    assert!(!agent.log().contains("chip vanished"), "{}", agent.log());
    let socket = agent.home().socket().display().to_string();
    let page = fakes::command::run(agent.home().path(), &["status", "--socket", &socket]).stdout;
    assert!(page.contains("\nchips unknown: cannot list PCI functions in "), "{page}");
    assert!(!page.contains("no TPU chips"), "{page}");
}

#[test]
fn an_agent_that_ends_and_a_prometheus_without_agents_fire() {
    let tpu = TpuHost::new();
    let agent = tpu.agent();
    let http = agent.http();
    let prometheus = Prometheus::with_rules(http, &at_once());
    prometheus.values("tpuscope_build_info");
    prometheus.evaluated_again();
    assert_eq!(prometheus.firing(), Vec::<String>::new());
    drop(agent);
    fires(&prometheus, "TpuscopeAgentDown");
    // One that never saw an agent cannot know which targets would be agents.
    let prometheus = Prometheus::with_rules(http, &at_once());
    fires(&prometheus, "TpuscopeNoAgent");
    assert_eq!(prometheus.firing(), ["TpuscopeNoAgent"]);
}

#[test]
fn a_store_whose_disk_is_nearly_full_fires() {
    let (tpu, disk) = (TpuHost::new(), SmallDisk::new());
    let agent = tpu.agent_on(&disk);
    let prometheus = Prometheus::with_rules(agent.http(), &at_once());
    fires(&prometheus, "TpuscopeStoreDiskLow");
    assert_eq!(prometheus.firing(), ["TpuscopeStoreDiskLow"]);
}

#[test]
fn missing_and_faulty_chips_fire() {
    let tpu = TpuHost::new();
    // The second chip is gone from the bus, the third has no driver and no node.
    let chips = tpu.host.chips();
    tpu.host.bind_drivers(&[0, 3]);
    fs::remove_file(tpu.host.sys().join("bus/pci/devices").join(format!("{}.0", chips[1].pci))).unwrap();
    chips[2].nodes.iter().for_each(|node| fs::remove_file(node).unwrap());
    let agent = tpu.agent();
    let prometheus = Prometheus::with_rules(agent.http(), &at_once());
    fires(&prometheus, "TpuChipsMissing");
    fires(&prometheus, "TpuChipFault");
    let notes = agent.status()["notes"].to_string();
    assert!(notes.contains("3 of 4 expected chips found (") && notes.contains("tpu-env says"), "{notes}");
}
