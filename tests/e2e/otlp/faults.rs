//! Collectors that hang, refuse, are full, answer garbage or reject points, and files that cannot be used: the agent goes on,
//! says in one line what to do, and exports again as soon as it can.

use std::{
    fs::{self, Permissions},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
};

use fakes::{
    fake_collector::{FakeCollector, metrics, numbers},
    fake_grpc::{Manner, Reply},
    wait::{eventually, until},
};
use prost::Message;
use prost_types::Any;
use proto::google::rpc;

use super::OtlpAgent;

const TOLD: &str = "metrics were not exported";
const AGAIN: &str = "metrics are exported again";

/// How often the log has a text.
fn count(exporting: &OtlpAgent, text: &str) -> usize {
    exporting.agent.log().matches(text).count()
}

/// Waits for a line about a failure with these texts, which is written once.
fn told(exporting: &OtlpAgent, texts: &[&str]) {
    let line = eventually(texts[0], || {
        let log = exporting.agent.log();
        log.lines().find(|line| line.contains(TOLD) && line.contains(texts[0])).map(str::to_owned)
    });
    for text in texts {
        assert!(line.contains(text), "{text} is missing in {line}");
    }
}

/// Lets the collector take what comes, and waits until the log says so.
fn recovers(exporting: &OtlpAgent, collector: &FakeCollector) {
    let before = count(exporting, AGAIN);
    collector.set_reply(None);
    collector.set_manner(Manner::Polite);
    collector.take();
    until("an export", || collector.messages() > 0);
    until("the end of the failures in the log", || count(exporting, AGAIN) == before + 1);
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn with_delay(code: u16, seconds: i64) -> Reply {
    let delay = prost_types::Duration { seconds, nanos: 0 };
    let info = rpc::RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
    let details = vec![Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value: info }];
    let status = rpc::Status { code: code.into(), message: String::new(), details };
    Reply::Detailed(code, "full".into(), status.encode_to_vec().into())
}

#[test]
fn an_agent_outlives_what_a_collector_does_and_exports_again() {
    let collector = FakeCollector::start();
    let exporting = OtlpAgent::to(&collector, "timeout = '300ms'\n");
    until("an export", || collector.messages() > 0);

    collector.set_reply(Some(Reply::Hang));
    told(&exporting, &["the collector did not answer within 300ms", "raise export.otlp.timeout"]);
    recovers(&exporting, &collector);

    collector.set_reply(Some(Reply::Status(14, "going\ndown".into())));
    told(&exporting, &["the collector answers Unavailable: going", "look at the log of the collector"]);
    recovers(&exporting, &collector);

    collector.set_reply(Some(Reply::Status(8, "no memory".into())));
    told(&exporting, &["the collector answers ResourceExhausted: no memory", "raise export.otlp.interval"]);
    recovers(&exporting, &collector);

    collector.set_reply(Some(Reply::Status(16, "who are you".into())));
    told(&exporting, &["the collector answers Unauthenticated: who are you", "export.otlp.headers_file"]);
    recovers(&exporting, &collector);

    collector.set_reply(Some(Reply::Status(3, "timestamp is 1h in the future".into())));
    told(
        &exporting,
        &[
            "the collector answers InvalidArgument: timestamp is 1h",
            "compare its clock with that of this host",
        ],
    );
    recovers(&exporting, &collector);

    collector.set_reply(Some(Reply::Raw(vec![0, 0, 0, 0, 3, 0xff, 0xff, 0xff].into())));
    told(
        &exporting,
        &["the answer of the collector cannot be read", "has to be a receiver of OTLP metrics over gRPC"],
    );
    recovers(&exporting, &collector);

    // The connection goes with the failure, so that the next one is treated so.
    collector.set_manner(Manner::Garbage);
    collector.set_reply(Some(Reply::Status(14, "bye".into())));
    told(&exporting, &["the connection to the collector ended", "usually port 4317"]);
    recovers(&exporting, &collector);

    let page = exporting.agent.get("/metrics", "").body;
    for series in [
        "tpuscope_export_points_total{exporter=\"otlp\",result=\"sent\"}",
        "tpuscope_export_points_total{exporter=\"otlp\",result=\"dropped\"}",
        "tpuscope_export_failures_total{exporter=\"otlp\",reason=\"timeout\"}",
        "tpuscope_export_failures_total{exporter=\"otlp\",reason=\"lost\"}",
        "tpuscope_export_last_success_timestamp_seconds{exporter=\"otlp\"}",
        "tpu_hbm_used_bytes{chip=\"0\"",
    ] {
        assert!(page.contains(&format!("\n{series}")), "{series} is missing in\n{page}");
    }
    assert_eq!(exporting.agent.status()["ready"], true);
}

#[test]
fn a_collector_that_says_when_is_not_asked_before() {
    let collector = FakeCollector::start();
    let exporting = OtlpAgent::to(&collector, "");
    until("an export", || collector.messages() > 0);
    collector.set_reply(Some(with_delay(8, 4)));
    told(&exporting, &["the collector answers ResourceExhausted: full"]);
    let refused = collector.take();
    collector.set_reply(None);
    until("the next export", || collector.messages() > 0);
    let time =
        |messages: &[_]| metrics(messages).find_map(|metric| Some(numbers(metric).first()?.time)).unwrap();
    let (last, next) = (time(&refused[refused.len() - 1..]), time(&collector.take()));
    assert!(next - last >= 4_000_000_000, "{last} {next}");
    until("the end of the failures in the log", || count(&exporting, AGAIN) == 1);
}

#[test]
fn a_collector_that_starts_later_gets_the_newest_values() {
    let address = free_address();
    let exporting =
        OtlpAgent::start(&format!("[export.otlp]\nendpoint = 'http://{address}'\ninterval = '1s'\n"));
    told(
        &exporting,
        &[
            "no connection to the collector",
            "Connection refused",
            "start the collector, or correct export.otlp.endpoint",
        ],
    );
    let collector = FakeCollector::at(address);
    until("an export", || collector.messages() > 0);
    let started = exporting.agent.status()["started"].clone();
    assert!(started.is_string());
    until("the end of the failures in the log", || count(&exporting, AGAIN) == 1);
    // One rendering, not one for each interval that was missed.
    assert_eq!(count(&exporting, TOLD), 1, "{}", exporting.agent.log());
}

#[test]
fn points_that_a_collector_rejects_are_counted_and_told_once() {
    let collector = FakeCollector::start();
    collector.reject(3, "timestamps are too old");
    let exporting = OtlpAgent::to(&collector, "");
    until("some exports", || collector.messages() > 2);
    let log = exporting.agent.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("metrics were exported in part")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(
        lines[0].contains("the collector rejected 3 of ") && lines[0].contains("timestamps are too old"),
        "{log}"
    );
    let page = exporting.agent.get("/metrics", "").body;
    let series = |name: &str, labels: &str| {
        let start = format!("{name}{{exporter=\"otlp\",{labels}}} ");
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_else(|| panic!("{start}\n{page}"));
        line.parse::<f64>().unwrap()
    };
    let rejections = series("tpuscope_export_failures_total", "reason=\"rejected\"");
    assert!(rejections >= 2.0, "{rejections}");
    assert!(
        (series("tpuscope_export_points_total", "result=\"dropped\"") - 3.0 * rejections).abs() < 0.5,
        "{page}"
    );
    assert!(!page.contains("tpuscope_export_last_success_timestamp_seconds{"), "{page}");
    recovers(&exporting, &collector);
}

#[test]
fn headers_come_from_a_file_and_are_never_shown() {
    let collector = FakeCollector::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("headers");
    fs::write(&file, "authorization: Bearer hunter2\n").unwrap();
    let mode = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let exporting = OtlpAgent::to(&collector, &format!("headers_file = '{}'\n", file.display()));
    told(
        &exporting,
        &[
            "has the mode 0644, with which every user can use it",
            "correct the file; the agent reads it again",
        ],
    );
    assert_eq!((collector.messages(), collector.connections()), (0, 0));
    mode(0o600);
    until("an export", || collector.messages() > 0);
    assert_eq!(collector.header("authorization").as_deref(), Some("Bearer hunter2"));
    // A token that was replaced is read after the collector refused the old one.
    fs::write(&file, "authorization: Bearer hunter3\n").unwrap();
    collector.set_reply(Some(Reply::Status(16, "expired".into())));
    told(&exporting, &["the collector answers Unauthenticated: expired"]);
    recovers(&exporting, &collector);
    assert_eq!(collector.header("authorization").as_deref(), Some("Bearer hunter3"));
    assert!(!exporting.agent.log().contains("hunter"), "{}", exporting.agent.log());
}
