//! The metrics page before the real judges: promtool, and a Prometheus that scrapes it.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use fakes::{
    fake_host::FakeHost,
    fake_runtime::{self, FakeRuntime},
    running_agent::{Answer, Home, RunningAgent},
    wait::eventually,
};
use model::device::Generation;
use serde_json::Value;

const OPEN_METRICS: &str = "Accept: application/openmetrics-text;version=1.0.0\r\n";
const USED: &str = "tpu_hbm_used_bytes";

struct Scene {
    _host: FakeHost,
    runtime: FakeRuntime,
    agent: RunningAgent,
}

/// An agent that samples a fake workload's metrics, windows included.
fn snapshot() -> Scene {
    let host = FakeHost::with(Generation::V6e, 4);
    let runtime = FakeRuntime::with_devices(&[0, 1, 2, 3]);
    let settings = format!(
        "[sampler]\ninterval = \"250ms\"\n[[workload.endpoints]]\nkind = \"runtime_metrics\"\naddress = \"{}\"\n",
        runtime.address()
    );
    let agent = RunningAgent::start(&host, &settings);
    Scene { _host: host, runtime, agent }
}

impl Scene {
    /// A page with windows: the workload must have done something since the read before.
    fn page(&self, headers: &str) -> Answer {
        let mut step = 1;
        eventually("windows", || {
            step += 1;
            self.runtime.set_all(fake_runtime::workload(&[0, 1, 2, 3], step));
            let answer = self.agent.get("/metrics", headers);
            answer.body.contains("tpu_hlo_execution_seconds{").then_some(answer)
        })
    }
}

fn promtool(page: &str) {
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by tests/setup.sh");
    tool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let judged = tool.wait_with_output().unwrap();
    let says = String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success() && says.trim().is_empty(), "promtool: {says}\n{page}");
}

#[test]
fn the_page_is_clean_under_promtool() {
    let snapshot = snapshot();
    let answer = snapshot.page("");
    assert!(answer.headers.contains("text/plain; version=0.0.4"), "{}", answer.headers);
    promtool(&answer.body);
    for series in [
        "tpu_hbm_used_bytes{",
        "tpu_hlo_execution_seconds{",
        "tpu_hlo_execution_mean_seconds{",
        "tpu_hlo_execution_samples{",
        "host_cpu_seconds_total{",
        "tpuscope_cpu_seconds_total ",
        "tpuscope_resident_memory_bytes ",
        "tpuscope_source_read_duration_seconds{source=\"runtime\"}",
        "tpuscope_build_info{version=",
    ] {
        assert!(answer.body.contains(&format!("\n{series}")), "{series} is missing in\n{}", answer.body);
    }
}

#[test]
fn a_series_that_nobody_renews_disappears() {
    let snapshot = snapshot();
    eventually("the series", || snapshot.agent.get("/metrics", "").body.contains(USED).then_some(()));
    drop(snapshot.runtime);
    eventually("the stale series to go", || {
        (!snapshot.agent.get("/metrics", "").body.contains(USED)).then_some(())
    });
}

/// A Prometheus that scrapes one address.
pub(super) struct Prometheus {
    child: Child,
    api: SocketAddr,
    _home: Home,
}

impl Prometheus {
    fn scraping(target: SocketAddr) -> Self {
        Self::scraping_with(target, "")
    }

    /// With these further keys of its scrape configuration, in YAML's flow style.
    pub(super) fn scraping_with(target: SocketAddr, options: &str) -> Self {
        let options = if options.is_empty() { String::new() } else { format!("{options}, ") };
        let home = Home::new();
        let config = home.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: t, {options}static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        fs::write(&config, text).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", home.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed by tests/setup.sh");
        let api = eventually("prometheus to listen", || listener_of(child.id()));
        Self { child, api, _home: home }
    }

    fn ask(&self, path: &str) -> Value {
        let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let answer = fakes::running_agent::exchange(self.api, head.as_bytes());
        serde_json::from_str(&answer.body).unwrap_or(Value::Null)
    }

    /// The instant values of a metric by chip, once it scraped some.
    pub(super) fn values(&self, metric: &str) -> usize {
        eventually("prometheus to scrape", || {
            let targets = self.ask("/api/v1/targets");
            let target = &targets["data"]["activeTargets"][0];
            assert!(target["lastError"].as_str().is_none_or(str::is_empty), "{target}");
            let found = self.ask(&format!("/api/v1/query?query={metric}"));
            let values = found["data"]["result"].as_array()?.len();
            (target["health"] == "up" && values > 0).then_some(values)
        })
    }
}

impl Prometheus {
    /// Waits until a scrape has failed with an error that contains `text`.
    pub(super) fn fails_with(&self, text: &str) {
        eventually("a failed scrape", || {
            let targets = self.ask("/api/v1/targets");
            let target = &targets["data"]["activeTargets"][0];
            assert!(target["health"] != "up", "it was scraped: {target}");
            let error = target["lastError"].as_str().filter(|error| !error.is_empty())?;
            assert!(error.contains(text), "{error}");
            Some(())
        });
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a process listens, by `ss`.
fn listener_of(pid: u32) -> Option<SocketAddr> {
    let shown = Command::new("ss").args(["-Hltnp"]).output().expect("ss is installed by tests/setup.sh");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = shown.lines().find(|line| line.contains(&format!("pid={pid},")))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[test]
fn prometheus_scrapes_open_metrics() {
    let snapshot = snapshot();
    let page = snapshot.page(OPEN_METRICS);
    assert!(page.headers.contains("application/openmetrics-text; version=1.0.0"), "{}", page.headers);
    assert!(page.body.ends_with("# EOF\n"));
    let prometheus = Prometheus::scraping(snapshot.agent.http());
    assert_eq!(prometheus.values(USED), 4);
    assert!(prometheus.values("host_cpu_seconds_total") > 1);
    assert_eq!(prometheus.values("tpuscope_cpu_seconds_total"), 1);
}

#[test]
fn prometheus_scrapes_the_old_text() {
    let snapshot = snapshot();
    let plain = plain_only(snapshot.agent.http());
    let prometheus = Prometheus::scraping(plain);
    assert_eq!(prometheus.values(USED), 4);
    assert!(prometheus.values("host_cpu_seconds_total") > 1);
}

/// A proxy that makes every client one that knows the old text alone. It goes with the test process.
fn plain_only(agent: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            if head.is_empty() {
                continue;
            }
            let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n";
            let Ok(mut server) = TcpStream::connect(agent) else { continue };
            let _ = server.write_all(request.as_bytes());
            let mut page = Vec::new();
            let _ = server.read_to_end(&mut page);
            let _ = client.write_all(&page);
        }
    });
    address
}
