//! What sampling costs: the whole agent at 1 Hz with 8 chips behind one port and behind eight, on a host with 500 busy
//! processes, scraped every 15 s; beside it tpu-info's library and the libtpu Python SDK reading the same services in
//! the same minutes. Then the agent on a host without chips, beside node_exporter.
//!
//! `SAMPLING_BENCH_SECONDS` is how long each part runs (default 300). Build with `cargo build --release --workspace`.
//! Ends with exit code 1 when a promise is not met.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use fakes::{
    fake_host::FakeHost,
    harness::{artifact, peer, tpuscope},
    net_ns::NetNs,
};
use model::device::Generation;
use tempfile::TempDir;

const CHIPS: usize = 8;
const BUSY: usize = 500;
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
/// Starting is not sampling.
const WARM_UP: Duration = Duration::from_secs(5);
/// 8 MiB of history beside 16 MiB of agent.
const RSS_LIMIT: f64 = 24.0;
/// What a tick of tpu-info's table took where the promises were made, in per mille of a core. A machine on which it
/// takes longer, an oversubscribed virtual one say, charges us as much more.
const TABLE_THERE: f64 = 4.2;
/// From its start to its first sample, in seconds.
const FIRST_SAMPLE_LIMIT: f64 = 0.2;

/// Killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    fn peak_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

/// CPU per second and peak memory of something that ran.
#[derive(Clone, Copy)]
struct Cost {
    per_mille: f64,
    mib: f64,
}

impl Cost {
    fn print(self, what: &str) {
        println!("  {what:<44} {:>7.3} % of a core  {:>6.1} MiB peak", self.per_mille / 10.0, self.mib);
    }
}

/// Prints whether a promise is met, and gives it.
#[must_use]
fn promise(what: &str, value: f64, limit: f64) -> bool {
    let met = value <= limit;
    println!("  promise {}: {what} {value:.3}, at most {limit}", if met { "met    " } else { "NOT MET" });
    met
}

/// Several things measured over the same time.
struct Watch {
    since: Instant,
    cpu: Vec<Duration>,
}

impl Watch {
    fn start(watched: &[&Process]) -> Self {
        Self { since: Instant::now(), cpu: watched.iter().map(|process| process.cpu()).collect() }
    }

    fn end(self, watched: &[&Process]) -> Vec<Cost> {
        let seconds = self.since.elapsed().as_secs_f64();
        let cost = |(process, before): (&&Process, Duration)| Cost {
            per_mille: (process.cpu() - before).as_secs_f64() / seconds * 1000.0,
            mib: process.peak_mib(),
        };
        watched.iter().zip(self.cpu).map(cost).collect()
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The page at `address`.
fn scrape(address: SocketAddr) -> String {
    get(address, "/metrics").unwrap()
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Scrapes all `addresses` every 15 s for `seconds`; the last pages.
fn scrapes(addresses: &[SocketAddr], seconds: u64) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let pages = addresses.iter().map(|address| scrape(*address)).collect();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return pages;
        }
        sleep(left.min(SCRAPE_EVERY));
    }
}

/// Processes that do nothing and hold what processes hold.
fn crowd() -> Vec<Process> {
    let descriptors: String = (10..30).map(|number| format!(" {number}</dev/null")).collect();
    let script = format!("exec{descriptors}; exec sleep 100000");
    (0..BUSY).map(|_| Process::start(Command::new("bash").args(["-c", &script]))).collect()
}

/// A fake service process, and the JSON line that it prints.
fn fake_services(command: &mut Command) -> (Process, serde_json::Value) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Process(child), serde_json::from_str(&line).unwrap())
}

/// An agent with its own folder.
struct Agent {
    process: Process,
    http: SocketAddr,
    /// How long its first sample took.
    first_sample: Duration,
    _folder: TempDir,
}

impl Agent {
    fn start(host: &FakeHost, endpoints: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let rest = format!(
            "[workload]\nendpoints = [{endpoints}]\n[agent]\nstate_dir = {:?}\n[api]\nsocket = {:?}\n\
             http = \"{http}\"\ngrpc = \"off\"\n",
            folder.path().join("state"),
            folder.path().join("agent.sock"),
        );
        let config = host.config(&rest);
        let begun = Instant::now();
        let process = Process::start(Command::new(tpuscope()).args(["agent", "--config"]).arg(config));
        while !get(http, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            assert!(begun.elapsed() < Duration::from_secs(30), "no sample comes");
            sleep(Duration::from_millis(1));
        }
        Self { process, http, first_sample: begun.elapsed(), _folder: folder }
    }
}

/// The services of 8 chips behind so many ports, and how the agent is told of them.
fn services(host: &FakeHost, ports: usize) -> (Vec<Process>, Vec<SocketAddr>, String) {
    let nodes: Vec<PathBuf> = host.chips().into_iter().flat_map(|chip| chip.nodes).collect();
    let share = CHIPS / ports;
    let (mut processes, mut addresses, mut endpoints) = (Vec::new(), Vec::new(), String::new());
    for (number, nodes) in nodes.chunks(share).enumerate() {
        let mut command = Command::new(artifact("fake-tpu-host"));
        command.args(["--runtime", "127.0.0.1:0", "--chips", &share.to_string()]);
        command.args(["--first-device", &(number * share).to_string()]);
        if number == 0 {
            command.args(["--orbax", "127.0.0.1:0"]);
        }
        nodes.iter().for_each(|node| {
            command.arg("--hold").arg(node);
        });
        let (process, line) = fake_services(&mut command);
        let address: SocketAddr = line["runtime"][0].as_str().unwrap().parse().unwrap();
        endpoints += &format!("{{kind = \"runtime_metrics\", address = \"{address}\"}}, ");
        if let Some(orbax) = line["orbax"].as_str() {
            endpoints += &format!("{{kind = \"orbax_grain\", address = \"{orbax}\"}}, ");
        }
        addresses.push(address);
        processes.push(process);
    }
    let mut command = Command::new(artifact("fake-tpu-host"));
    command.args(["--host-service", "127.0.0.1:0", "--chips", &CHIPS.to_string()]);
    let (process, line) = fake_services(&mut command);
    endpoints += &format!("{{kind = \"host_service\", address = {}}}", line["host_service"]);
    processes.push(process);
    (processes, addresses, endpoints)
}

/// tpu-info's library at 1 Hz: the three metrics of its table, or everything that it has.
fn tpu_info(addresses: &[SocketAddr], everything: bool) -> Process {
    let script = workspace().join("benches/scripts/tpu_info_loop.py");
    let mut command = Command::new(peer("tpu-info/bin/python"));
    command.arg(script).arg(if everything { "all" } else { "table" });
    Process::start(command.args(addresses.iter().map(ToString::to_string)))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The libtpu SDK at 1 Hz, in a namespace of its own: it knows no other ports than its own.
fn sdk(namespace: &NetNs) -> (Process, Process) {
    let mut command = namespace.command(artifact("fake-tpu-host"));
    command.args(["--runtime", "[::]:8431", "--host-service", "[::]:8353", "--orbax", "[::]:9431"]);
    command.args(["--chips", &CHIPS.to_string()]);
    let (services, _) = fake_services(&mut command);
    let mut command = namespace.command(peer("tpu-info/bin/python"));
    command.arg(workspace().join("benches/scripts/libtpu_sdk_loop.py"));
    command.env("TPU_SKIP_MDS_QUERY", "1");
    (services, Process::start(&mut command))
}

/// How many times slower this machine is than the one of the promises, by what tpu-info's table costs on it.
fn slowness(table: Cost) -> f64 {
    let times = (table.per_mille / TABLE_THERE).max(1.0);
    println!(
        "  tpu-info's table takes {:.1} ms a tick here, {TABLE_THERE} where the promises were made: limits on CPU are \
         {times:.2} times as high",
        table.per_mille
    );
    times
}

/// Whether the promises are met, and how slow the machine is.
fn eight_chips(ports: usize, seconds: u64, limit: f64) -> (bool, f64) {
    let host = FakeHost::with(Generation::V6e, u32::try_from(CHIPS).unwrap());
    let (_services, addresses, endpoints) = services(&host, ports);
    let agent = Agent::start(&host, &endpoints);
    let (table, all) = (tpu_info(&addresses, false), tpu_info(&addresses, true));
    let namespace = NetNs::new();
    let (_sdk_services, sdk) = sdk(&namespace);
    sleep(WARM_UP);
    let watched = [&agent.process, &table, &all, &sdk];
    let watch = Watch::start(&watched);
    let page = scrapes(&[agent.http], seconds).remove(0);
    let costs = watch.end(&watched);
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
    let names = [
        "tpuscope agent, everything",
        "tpu-info library, 3 metrics",
        "tpu-info library, all metrics",
        "libtpu SDK (Python), 8 metrics of 1 port",
    ];
    for (cost, name) in costs.iter().zip(names) {
        cost.print(name);
    }
    for (cost, name) in costs.iter().zip(names).skip(1) {
        println!(
            "  ratio to {name}: CPU {:.1}x less, memory {:.1}x less",
            cost.per_mille / costs[0].per_mille,
            cost.mib / costs[0].mib
        );
    }
    // The table is the same question only behind one port.
    let slowness = if ports == 1 { slowness(costs[1]) } else { 1.0 };
    let cpu = promise("CPU of the agent in % of a core", costs[0].per_mille / 10.0, limit * slowness);
    let memory = promise("peak MiB of the agent, history included", costs[0].mib, RSS_LIMIT);
    let first = promise(
        "seconds from its start to its first sample",
        agent.first_sample.as_secs_f64(),
        FIRST_SAMPLE_LIMIT,
    );
    (cpu && memory && first, slowness)
}

fn idle(seconds: u64, slowness: f64) -> bool {
    let host = FakeHost::new();
    let agent = Agent::start(&host, "");
    let exporter = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let node = Process::start(
        Command::new("prometheus-node-exporter").arg(format!("--web.listen-address={exporter}")),
    );
    sleep(WARM_UP);
    let watched = [&agent.process, &node];
    let watch = Watch::start(&watched);
    scrapes(&[agent.http, exporter], seconds);
    let costs = watch.end(&watched);
    println!("no chips, {seconds} s:");
    costs[0].print("tpuscope agent");
    costs[1].print("node_exporter");
    println!(
        "  ratio to node_exporter: CPU {:.2}x, memory {:.2}x",
        costs[0].per_mille / costs[1].per_mille,
        costs[0].mib / costs[1].mib
    );
    let cpu = promise("CPU of the agent in % of a core", costs[0].per_mille / 10.0, 0.05 * slowness);
    promise("peak MiB of the agent", costs[0].mib, 10.0) && cpu
}

fn main() -> ExitCode {
    let seconds = env::var("SAMPLING_BENCH_SECONDS").map_or(300, |seconds| seconds.parse().unwrap());
    let crowd = crowd();
    let (one, slowness) = eight_chips(1, seconds, 0.2);
    let (eight, _) = eight_chips(8, seconds, 0.5 * slowness);
    drop(crowd);
    let idle = idle(seconds, slowness);
    if one && eight && idle { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
