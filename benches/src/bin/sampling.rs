//! What sampling costs. The whole agent at 1 Hz with 8 chips behind one port and behind eight, on a host with 500 other
//! processes, scraped every 15 s; beside it tpu-info's library and the libtpu Python SDK, which read services of the same
//! kind in the same seconds. Then the agent on a host without chips, beside node_exporter.
//!
//! The promises on CPU are ratios to a peer of the same run: an absolute figure would measure the machine.
//! `SAMPLING_BENCH_SECONDS` is how long each of the three parts runs (default 300).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]
use std::{
    env,
    net::SocketAddr,
    process::{Command, ExitCode},
    thread::sleep,
    time::{Duration, Instant},
};

use benches::{
    daemon::{Daemon, Use, Watch, get},
    other_processes::OtherProcesses,
    promise, python,
    services::{self, CHIPS, Services, fake_tpu_host},
    workspace,
};
use fakes::{fake_host::FakeHost, harness::artifact, net_ns::NetNs};
use model::device::Generation;
use sampling::settings::sampler;
use tempfile::TempDir;

const PROCESSES: usize = 500;
const DESCRIPTORS: usize = 26;
/// So many of the processes open and close descriptors all the time.
const CHANGING: usize = 50;
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// Starting is not sampling.
const WARM_UP: Duration = Duration::from_secs(5);

/// A promise on the agent's CPU, as a share of a peer's: what is promised, and what is aimed at.
struct Share {
    promised: f64,
    goal: f64,
}

const ONE_PORT: Share = Share { promised: 0.6, goal: 0.3 };
const EIGHT_PORTS: Share = Share { promised: 0.4, goal: 0.2 };
const NO_CHIPS: Share = Share { promised: 0.45, goal: 0.25 };
/// Peak memory in MiB, the history apart.
const MIB: f64 = 16.0;
/// Peak memory in MiB on a host without chips, all included.
const IDLE_MIB: f64 = 12.0;

impl Share {
    fn kept(&self, peer_name: &str, agent: Use, peer: Use) -> bool {
        let share = agent.percent / peer.percent;
        let what = format!("the agent's CPU, as a share of {peer_name}'s");
        let kept = promise::at_most(&what, share, self.promised);
        println!("  goal {}: {}", self.goal, if share <= self.goal { "reached" } else { "not reached" });
        kept
    }
}

fn print(name: &str, used: Use, agent: Use) {
    println!(
        "  {name:<42} {:>7.3} % of a core {:>6.1} MiB peak; the agent: {:.2} of its CPU, {:.2} of its memory",
        used.percent,
        used.mib,
        agent.percent / used.percent,
        agent.mib / used.mib
    );
}

/// Scrapes all `addresses` every 15 s for `seconds`; the last pages.
fn scrapes(addresses: &[SocketAddr], seconds: u64) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let pages = addresses.iter().map(|address| get(*address, "/metrics").unwrap()).collect();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return pages;
        }
        sleep(left.min(SCRAPE_EVERY));
    }
}

/// An agent that has its first samples.
struct Agent {
    daemon: Daemon,
    http: SocketAddr,
    _folder: TempDir,
}

impl Agent {
    fn start(host: &FakeHost, endpoints: &str) -> Self {
        let (mut command, http, folder) = services::agent(host, endpoints);
        let ready = |answer: &str| answer.starts_with("HTTP/1.1 200");
        let (daemon, _) = Daemon::start_until(&mut command, http, "/readyz", ready);
        Self { daemon, http, _folder: folder }
    }
}

/// tpu-info's library at 1 Hz: the three metrics of its table, or everything that it has.
fn tpu_info(addresses: &[SocketAddr], everything: bool) -> Daemon {
    let script = workspace().join("benches/scripts/tpu_info_loop.py");
    let mut command = Command::new(python("tpu-info"));
    command.arg(script).arg(if everything { "all" } else { "table" });
    Daemon::start(command.args(addresses.iter().map(ToString::to_string)))
}

/// The libtpu SDK at 1 Hz, in a namespace of its own: it knows no other ports than its own.
fn sdk(namespace: &NetNs) -> (Daemon, Daemon) {
    let mut command = namespace.command(artifact("fake-tpu-host"));
    command.args(["--runtime", "[::]:8431", "--host-service", "[::]:8353", "--orbax", "[::]:9431"]);
    command.args(["--chips", &CHIPS.to_string()]);
    let (services, _) = fake_tpu_host(&mut command);
    let mut command = namespace.command(python("tpu-info"));
    command.arg(workspace().join("benches/scripts/libtpu_sdk_loop.py"));
    command.env("TPU_SKIP_MDS_QUERY", "1");
    (services, Daemon::start(&mut command))
}

/// Whether the promises are kept.
fn eight_chips(ports: usize, seconds: u64, share: &Share) -> bool {
    let host = FakeHost::with(Generation::V6e, u32::try_from(CHIPS).unwrap());
    let services = Services::start(&host, ports);
    let agent = Agent::start(&host, &services.endpoints);
    let (table, all) = (tpu_info(&services.runtime, false), tpu_info(&services.runtime, true));
    let namespace = NetNs::new();
    let (_sdk_services, sdk) = sdk(&namespace);
    sleep(WARM_UP);
    let watch = Watch::start(&[&agent.daemon, &table, &all, &sdk]);
    let page = scrapes(&[agent.http], seconds).remove(0);
    let used = watch.end();
    for (metric, series) in [
        ("tpu_hbm_used_bytes{", CHIPS),
        ("tpu_tensorcore_duty_cycle_ratio{", CHIPS),
        ("tpu_chip_tensorcore_utilization_ratio{", CHIPS),
        ("jax_orbax_write_bytes{", 1),
    ] {
        let found = page.lines().filter(|line| line.starts_with(metric)).count();
        assert_eq!(found, series, "{metric} in\n{page}");
    }
    println!(
        "{CHIPS} chips behind {ports} port(s), 1 Hz, {} series, {seconds} s:",
        page.lines().filter(|line| !line.starts_with('#')).count()
    );
    for (name, used_by) in [
        "tpuscope agent, everything",
        "tpu-info library, 3 metrics",
        "tpu-info library, all metrics",
        "libtpu SDK (Python), 8 metrics of 1 port",
    ]
    .into_iter()
    .zip(&used)
    {
        print(name, *used_by, used[0]);
    }
    let history = sampler::Settings::default().history.as_usize() as f64 / f64::from(1 << 20);
    let cpu = share.kept("tpu-info's library (3 metrics)", used[0], used[1]);
    let memory = promise::at_most("peak MiB of the agent with its history", used[0].mib, MIB + history);
    cpu && memory
}

/// Whether the promises are kept.
fn no_chips(seconds: u64) -> bool {
    let host = FakeHost::new();
    let agent = Agent::start(&host, "");
    let (mut command, address) = services::node_exporter();
    let serves = |page: &str| page.contains("\nnode_memory_MemAvailable_bytes");
    let (exporter, _) = Daemon::start_until(&mut command, address, "/metrics", serves);
    sleep(WARM_UP);
    let watch = Watch::start(&[&agent.daemon, &exporter]);
    scrapes(&[agent.http, address], seconds);
    let used = watch.end();
    println!("no chips, {seconds} s:");
    print("tpuscope agent", used[0], used[0]);
    print("node_exporter", used[1], used[0]);
    let cpu = NO_CHIPS.kept("node_exporter", used[0], used[1]);
    promise::at_most("peak MiB of the agent", used[0].mib, IDLE_MIB) && cpu
}

fn main() -> ExitCode {
    let seconds = env::var("SAMPLING_BENCH_SECONDS").map_or(300, |seconds| seconds.parse().unwrap());
    let others = OtherProcesses::start(PROCESSES, DESCRIPTORS, CHANGING);
    let one = eight_chips(1, seconds, &ONE_PORT);
    let eight = eight_chips(8, seconds, &EIGHT_PORTS);
    let idle = no_chips(seconds);
    drop(others);
    if one && eight && idle { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
