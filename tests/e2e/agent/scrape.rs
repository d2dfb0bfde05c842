//! The metrics page before the real judges: promtool, and a Prometheus that scrapes it.

use std::{
    collections::BTreeSet,
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

struct ScrapedAgent {
    _host: FakeHost,
    runtime: FakeRuntime,
    agent: RunningAgent,
}

/// An agent that samples a fake workload's metrics, distributions included.
fn snapshot() -> ScrapedAgent {
    let host = FakeHost::with(Generation::V6e, 4);
    let runtime = FakeRuntime::with_devices(&[0, 1, 2, 3]);
    let settings = format!(
        "[sampler]\ninterval = \"250ms\"\n[[workload.endpoints]]\nkind = \"runtime_metrics\"\naddress = \"{}\"\n",
        runtime.address()
    );
    let agent = RunningAgent::start(&host, &settings);
    ScrapedAgent { _host: host, runtime, agent }
}

impl ScrapedAgent {
    /// A page with histograms of so many steps.
    fn page(&self, headers: &str, steps: i64) -> Answer {
        self.runtime.set_all(fake_runtime::workload(&[0, 1, 2, 3], steps));
        let counted = format!("core_type=\"tensorcore\",source=\"runtime\"}} {}\n", 20 * steps);
        eventually("histograms", || {
            let answer = self.agent.get("/metrics", headers);
            let timing = answer.body.split("\ntpu_hlo_execution_seconds_count{").nth(1)?;
            timing.starts_with("chip=\"0\"").then_some(())?;
            timing.contains(&counted).then_some(answer)
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
    let answer = snapshot.page("", 3);
    assert!(answer.headers.contains("text/plain; version=0.0.4"), "{}", answer.headers);
    promtool(&answer.body);
    for series in [
        "tpu_hbm_used_bytes{",
        "tpu_hlo_execution_seconds_bucket{",
        "tpu_hlo_execution_seconds_sum{",
        "tpu_hlo_execution_seconds_count{",
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
fn the_page_is_compressed_when_asked_for() {
    let snapshot = snapshot();
    let url = format!("http://{}/metrics", snapshot.agent.http());
    let curl = |options: &[&str]| {
        let output = Command::new("curl").args(["-s", "-i"]).args(options).arg(&url).output();
        output.expect("curl is installed by tests/setup.sh").stdout
    };
    eventually("the page", || String::from_utf8_lossy(&curl(&[])).contains(USED).then_some(()));
    let is_packed = |answer: &[u8]| String::from_utf8_lossy(answer).contains("content-encoding: gzip");
    let (plain, packed) = (curl(&[]), curl(&["-H", "Accept-Encoding: gzip"]));
    assert_eq!([is_packed(&plain), is_packed(&packed)], [false, true]);
    assert!(packed.len() * 3 < plain.len(), "{} of {}", packed.len(), plain.len());
    let unpacked = String::from_utf8_lossy(&curl(&["--compressed"])).into_owned();
    assert!(is_packed(unpacked.as_bytes()) && unpacked.contains(USED), "{unpacked}");
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

/// A Prometheus that scrapes agents every second.
pub(crate) struct Prometheus {
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
        Self::start(&format!("{{targets: ['{target}']}}"), options, "groups: []\n")
    }

    /// One that scrapes several targets, each with its own value of `instance`, and evaluates these rules every second.
    pub(crate) fn over(targets: &[(&str, SocketAddr)], rules: &str) -> Self {
        let target = |(name, address): &(&str, SocketAddr)| {
            format!("{{targets: ['{address}'], labels: {{instance: '{name}'}}}}")
        };
        Self::start(&targets.iter().map(target).collect::<Vec<_>>().join(", "), "", rules)
    }

    fn start(targets: &str, options: &str, rules: &str) -> Self {
        let options = if options.is_empty() { String::new() } else { format!("{options}, ") };
        let home = Home::new();
        let config = home.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs: [{{job_name: t, {options}static_configs: [{targets}]}}]\n"
        );
        fs::write(&config, text).unwrap();
        fs::write(home.path().join("rules.yml"), rules).unwrap();
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

    /// The alerts that fire, each with the instance that it is about (empty: none).
    pub(crate) fn firing(&self) -> BTreeSet<(String, String)> {
        let alerts = self.ask("/api/v1/alerts");
        let alerts = alerts["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let label = |alert: &Value, name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| (label(alert, "alertname"), label(alert, "instance"))).collect()
    }

    /// Waits until every rule was evaluated once more.
    pub(crate) fn evaluated_again(&self) {
        let last = || self.ask("/api/v1/rules")["data"]["groups"][0]["lastEvaluation"].clone();
        let before = eventually("an evaluation", || Some(last()).filter(Value::is_string));
        eventually("the next evaluation", || (last() != before).then_some(()));
    }

    /// The series of an instant query, each with its labels and its value.
    ///
    /// # Panics
    /// If Prometheus does not understand it.
    pub(crate) fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let encoded: String = form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        let path = format!("/api/v1/query?query={encoded}");
        // It listens before it is ready.
        let answer = eventually("prometheus to be ready", || Some(self.ask(&path)).filter(Value::is_object));
        let found = answer["data"]["result"].as_array();
        let found = found.unwrap_or_else(|| panic!("{expression}: {answer}"));
        let series = |series: &Value| {
            let value = series["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number");
            (series["metric"].clone(), value)
        };
        found.iter().map(series).collect()
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
    let page = snapshot.page(OPEN_METRICS, 3);
    assert!(page.headers.contains("application/openmetrics-text; version=1.0.0"), "{}", page.headers);
    assert!(page.body.ends_with("# EOF\n"));
    let prometheus = Prometheus::scraping(snapshot.agent.http());
    assert_eq!(prometheus.values(USED), 4);
    assert!(prometheus.values("host_cpu_seconds_total") > 1);
    assert_eq!(prometheus.values("tpuscope_cpu_seconds_total"), 1);
    // No step is lost between two scrapes: Prometheus sees all that happened since the workload started.
    snapshot.page(OPEN_METRICS, 40);
    eventually("prometheus to see every step", || {
        let found = prometheus.ask("/api/v1/query?query=sum(tpu_hlo_execution_seconds_count)");
        (found["data"]["result"][0]["value"][1] == "3200").then_some(())
    });
    assert_eq!(
        prometheus.values("histogram_quantile(0.5,sum%20by(le)(tpu_hlo_execution_seconds_bucket))"),
        1
    );
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
