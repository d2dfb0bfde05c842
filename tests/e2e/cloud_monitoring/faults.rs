//! A service that refuses, hangs or answers garbage; clocks that are wrong; very many series.

use export::{OwnMetrics, TextFormat, cloud_monitoring::ExportFailureKind};
use fakes::fake_monitoring::MonitoringManner;
use jiff::SignedDuration;

use super::*;

const NOW: Timestamp = Timestamp(1_772_323_800 * SECOND);

#[tokio::test]
async fn what_went_wrong_is_told_and_the_next_points_are_newer() {
    let mut host = ExportingHost::at(NOW, |_| {});
    host.three_steps("j");
    let count = host.round().await.unwrap();
    assert!(count >= 8);
    for (manner, kind, says) in [
        (MonitoringManner::Status(429, ""), ExportFailureKind::Quota, "status 429 RESOURCE_EXHAUSTED: No."),
        (
            MonitoringManner::Status(403, "IAM_PERMISSION_DENIED"),
            ExportFailureKind::Permission,
            "status 403 PERMISSION_DENIED: No. (as the credentials in ",
        ),
        (
            MonitoringManner::Status(403, "ACCESS_TOKEN_SCOPE_INSUFFICIENT"),
            ExportFailureKind::Scope,
            "status 403",
        ),
        (MonitoringManner::Status(403, "SERVICE_DISABLED"), ExportFailureKind::Disabled, "status 403"),
        (MonitoringManner::Status(401, ""), ExportFailureKind::Account, "status 401"),
        (MonitoringManner::Status(404, ""), ExportFailureKind::NoProject, "status 404"),
        (MonitoringManner::Status(503, ""), ExportFailureKind::Server, "status 503"),
        (MonitoringManner::Status(400, ""), ExportFailureKind::Refused, "status 400"),
        (MonitoringManner::Page, ExportFailureKind::Answer, "not one of Cloud Monitoring"),
        (MonitoringManner::Cut, ExportFailureKind::Unreachable, "the connection ended"),
        (MonitoringManner::Hang, ExportFailureKind::Timeout, "10 s"),
    ] {
        host.monitoring.set_manner(manner.clone());
        host.pass(20);
        let failure = host.round().await.unwrap_err();
        assert_eq!(failure.kind, kind, "{manner:?}: {failure}");
        assert!(failure.message.contains(says), "{manner:?}: {failure}");
        assert_eq!(host.monitoring.requests().len(), 1, "{manner:?} is not tried again at once");
    }
    host.monitoring.set_manner(MonitoringManner::Sound);
    host.pass(60);
    host.mark(
        "j",
        [(host.now(), format!(r#"{{"step_count": 3, "step_start_time": {}.0}}"#, host.now().0 / SECOND))],
    );
    assert_eq!(host.round().await.unwrap(), count);
    let series = host.monitoring.series();
    assert_eq!(series.len() as u64, 2 * count, "nothing that failed comes later");
    let last = series.last().unwrap()["points"][0]["interval"]["endTime"].as_str().unwrap();
    assert_eq!(last.parse::<jiff::Timestamp>().unwrap(), jiff(host.now()));
    assert_eq!(host.monitoring.violations(), [""; 0]);
}

#[tokio::test]
async fn a_clock_that_is_an_hour_off_is_said_to_be_wrong() {
    let mut host = ExportingHost::at(NOW, |_| {});
    host.three_steps("j");
    host.monitoring.set_clock_offset(SignedDuration::from_hours(-1));
    let failure = host.round().await.unwrap_err();
    assert_eq!(failure.kind, ExportFailureKind::Clock);
    assert!(failure.message.starts_with("the clock of this host is 3600 s ahead"), "{failure}");
    // Points of the past are taken, and counted as a failure all the same.
    let own = OwnMetrics::default();
    assert!(own.install(), "no other test counts");
    export::own_metrics::describe();
    host.monitoring.set_clock_offset(SignedDuration::from_hours(1));
    assert!(host.round().await.unwrap() >= 8);
    let page = export::render(&[], &own, NOW, TextFormat::Text);
    let counted = r#"tpuscope_export_failures_total{exporter="cloud_monitoring",reason="clock"} 1.0"#;
    assert!(page.lines().any(|line| line == counted), "{page}");
    host.monitoring.set_clock_offset(SignedDuration::from_hours(26));
    host.pass(60);
    let failure = host.round().await.unwrap_err();
    assert!(failure.message.starts_with("the clock of this host is 93600 s behind"), "{failure}");
}

/// A job whose one step has very many events of its own, each of another type.
fn many_events(host: &ExportingHost, types: usize) {
    let start = host.now().0 / SECOND - 300;
    let at = |second: f64, payload: String| {
        #[expect(clippy::cast_possible_truncation, reason = "within minutes")]
        (Timestamp(start * SECOND + (second * 1e9) as i64), payload)
    };
    let step = |number: i64, second: i64| {
        #[expect(clippy::cast_precision_loss, reason = "within minutes")]
        let offset = second as f64;
        at(offset, format!(r#"{{"step_count": {number}, "step_start_time": {}.0}}"#, start + second))
    };
    let mut marks = vec![at(0.0, format!(r#"{{"job_start_time": {start}.0}}"#)), step(0, 10), step(1, 20)];
    for number in 0..types {
        for (end, name) in [(0.0, "start"), (0.005, "end")] {
            let second = 20.5 + number as f64 * 0.01 + end;
            let time = start as f64 + second;
            marks.push(at(
                second,
                format!(
                    r#"{{"custom_badput_event_type": "t{number}", "custom_badput_event_{name}_time": {time:.6}}}"#
                ),
            ));
        }
    }
    marks.extend([step(2, 200), step(3, 210)]);
    host.mark("many", marks);
}

#[tokio::test]
async fn ten_thousand_series_are_bounded_and_a_quota_does_not_starve_the_last() {
    let mut host = ExportingHost::at(NOW, |_| {});
    many_events(&host, 12_000);
    assert_eq!(host.round().await.unwrap(), 10_000);
    let requests = host.monitoring.requests();
    assert_eq!(requests.len(), 50);
    assert!(requests.iter().all(|request| request.series == 200), "{requests:?}");

    // The quota is for 20 requests a round: each round goes on where the one before ended.
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..3 {
        host.monitoring.set_manner(MonitoringManner::StatusAfter(20, 429));
        host.pass(60);
        let before = host.monitoring.series().len();
        assert_eq!(host.round().await.unwrap_err().kind, ExportFailureKind::Quota);
        assert_eq!(host.monitoring.requests().len(), 21, "no request after a refusal");
        for one in &host.monitoring.series()[before..] {
            *seen.entry(serde_json::json!([one["metric"], one["resource"]]).to_string()).or_default() += 1;
        }
    }
    assert_eq!((seen.len(), seen.values().sum::<usize>()), (10_000, 12_000));
    assert_eq!(host.monitoring.violations(), [""; 0]);
}

#[tokio::test]
async fn without_a_machine_and_a_project_it_says_what_to_set() {
    let mut host = ExportingHost::at(NOW, |settings| settings.credentials = "/nowhere/key.json".into());
    host.three_steps("j");
    let failure = host.round().await.unwrap_err();
    assert_eq!(failure.kind, ExportFailureKind::Credentials);
    assert!(failure.message.contains("/nowhere/key.json does not exist"), "{failure}");
    assert!(host.monitoring.requests().is_empty());
}

#[tokio::test]
async fn a_job_that_ended_is_sent_once_more_and_then_no_more() {
    let mut host = ExportingHost::at(NOW, |_| {});
    host.three_steps("j");
    assert!(host.round().await.unwrap() > 0);
    host.pass(60);
    host.mark("j", [(host.now(), format!(r#"{{"job_end_time": {}.0}}"#, host.now().0 / SECOND))]);
    assert!(host.round().await.unwrap() > 0);
    host.pass(60);
    assert_eq!(host.round().await.unwrap(), 0);
    let elapsed: Vec<f64> = host
        .monitoring
        .series()
        .iter()
        .filter(|one| metric(one) == "total_elapsed_time")
        .map(|one| one["points"][0]["value"]["doubleValue"].as_f64().unwrap())
        .collect();
    assert_eq!(elapsed, [60.0, 120.0]);
    // A program that is silent for ten minutes is taken for gone.
    host.three_steps("k");
    host.pass(599);
    assert!(host.round().await.unwrap() > 0);
    host.pass(60);
    assert_eq!(host.round().await.unwrap(), 0);
    assert_eq!(host.monitoring.violations(), [""; 0]);
}
