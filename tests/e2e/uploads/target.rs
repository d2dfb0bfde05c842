//! A bucket as a destination: each call beside each fault, one request a call, and what is said of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fakes::fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment};
use store::destinations::{
    Destination, SendRate, Transport, open,
    target::{FailureClass, PartData, TransferError, UploadTarget},
};

/// Longer than anything takes that moves on this machine.
const PATIENT: Duration = Duration::from_secs(30);

fn target_of(server: &FakeGcs, bucket: &str, idle: Duration) -> Arc<dyn UploadTarget> {
    opened(server, bucket, Transport::new(idle, SendRate::default()))
}

fn opened(server: &FakeGcs, bucket: &str, transport: Transport) -> Arc<dyn UploadTarget> {
    let url = format!("gs://{bucket}/runs");
    let destination = serde_json::json!({
        "name": "bucket", "url": url, "credentials": server.credentials_file(),
    });
    let destination: Destination = serde_json::from_value(destination).unwrap();
    open(&url.parse().unwrap(), Some(&destination), transport).unwrap()
}

fn target(server: &FakeGcs) -> Arc<dyn UploadTarget> {
    target_of(server, "traces", PATIENT)
}

fn part(index: u32) -> PartData {
    PartData { index, offset: 0, data: Bytes::from_static(b"part") }
}

/// The calls that change something, and those that do not.
const CALLS: [&str; 8] = ["put", "begin", "part", "complete", "abort", "delete", "head", "get"];

/// Makes one call, after what it needs.
async fn call(
    server: &FakeGcs,
    target: &dyn UploadTarget,
    name: &str,
    fault: GcsFault,
) -> Result<(), TransferError> {
    let id = match name {
        "part" | "complete" | "abort" => target.begin_parts("k").await.unwrap(),
        _ => String::new(),
    };
    let tags = match name {
        "complete" => vec![target.put_part("k", &id, part(0)).await.unwrap()],
        _ => vec![],
    };
    if matches!(name, "head" | "get" | "delete") {
        server.put("runs/k", b"there");
    }
    server.fault(fault);
    match name {
        "put" => target.put("k", Bytes::from_static(b"new"), None).await,
        "begin" => target.begin_parts("k").await.map(drop),
        "part" => target.put_part("k", &id, part(0)).await.map(drop),
        "complete" => target.complete("k", &id, tags).await,
        "abort" => target.abort("k", &id).await,
        "delete" => target.delete("k").await,
        "head" => target.head("k").await.map(drop),
        _ => target.get("k").await.map(drop),
    }
}

fn class(result: &Result<(), TransferError>) -> FailureClass {
    result.as_ref().expect_err("it failed").class()
}

#[tokio::test]
async fn every_call_fails_once_with_every_status_and_is_not_repeated() {
    let classes = [
        (408, FailureClass::Timeout),
        (429, FailureClass::Throttled),
        (500, FailureClass::Server),
        (503, FailureClass::Server),
    ];
    for name in CALLS {
        for (status, expected) in classes {
            for moment in [Moment::BeforeCommit, Moment::AfterCommit] {
                let server = FakeGcs::start();
                let target = target(&server);
                let failed =
                    call(&server, &*target, name, GcsFault::new(GcsEffect::Status(status, moment))).await;
                assert_eq!(class(&failed), expected, "{name} {status}");
                assert!(failed.unwrap_err().to_string().contains(&status.to_string()), "{name} {status}");
                let requests = server.requests();
                let faulty: Vec<_> = requests.iter().filter(|one| one.status == Some(status)).collect();
                assert_eq!(faulty.len(), 1, "{name}: {requests:?}");
                assert_eq!(requests.last(), faulty.first().copied(), "nothing after it");
                let writes = !matches!(name, "head" | "get");
                assert_eq!(faulty[0].committed, writes && moment == Moment::AfterCommit, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn connections_that_end_or_hang_are_given_up_once() {
    for name in CALLS {
        let faults = [
            (GcsEffect::CutRequest(0), FailureClass::Unreachable),
            (GcsEffect::CutAnswer, FailureClass::Unreachable),
            (GcsEffect::Hang(Moment::BeforeCommit), FailureClass::Timeout),
            (GcsEffect::Hang(Moment::AfterCommit), FailureClass::Timeout),
        ];
        for (effect, expected) in faults {
            let server = FakeGcs::start();
            let hangs = expected == FailureClass::Timeout;
            let idle = if hangs { Duration::from_millis(200) } else { PATIENT };
            let target = target_of(&server, "traces", idle);
            let failed = call(&server, &*target, name, GcsFault::new(effect.clone())).await;
            assert_eq!(class(&failed), expected, "{name} {effect:?}: {failed:?}");
            let unanswered = server.requests().iter().filter(|one| one.status.is_none()).count();
            assert_eq!(unanswered, 1, "{name} {effect:?}");
        }
    }
}

#[tokio::test]
async fn a_slow_answer_is_waited_for_as_long_as_it_moves() {
    let server = FakeGcs::start();
    let idle = Duration::from_secs(2);
    let target = target_of(&server, "traces", idle);
    // Several hundred bytes of request and answer: more than twice the idle time in all.
    let slow = GcsFault::new(GcsEffect::Slow(1, Duration::from_millis(15)));
    let begin = std::time::Instant::now();
    call(&server, &*target, "head", slow).await.unwrap();
    assert!(begin.elapsed() > 2 * idle, "the fault was too short to tell");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_low_rate_is_no_idle_connection() {
    let server = FakeGcs::start();
    let target = opened(&server, "traces", Transport::new(Duration::from_secs(1), SendRate::new(40_000)));
    target.put("k", Bytes::from(vec![7; 140_000]), None).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let server = FakeGcs::start();
    let absent = target_of(&server, "tracse", PATIENT);
    let error = absent.put("k", Bytes::new(), None).await.unwrap_err();
    assert_eq!(error.class(), FailureClass::NotFound);
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
    assert_eq!(absent.begin_parts("k").await.unwrap_err().class(), FailureClass::NotFound);
    assert_eq!(absent.complete("k", "u", vec![]).await.unwrap_err().class(), FailureClass::NotFound);

    let target = target(&server);
    assert_eq!(target.complete("k", "unknown", vec![]).await, Err(TransferError::PartsGone));
    assert_eq!(target.put_part("k", "unknown", part(0)).await, Err(TransferError::PartsGone));
    assert_eq!(target.head("k").await, Ok(None));
    assert_eq!(target.get("k").await, Ok(None));
    let permissions = [
        ("storage.objects.create", "put"),
        ("storage.objects.create", "begin"),
        ("storage.objects.get", "head"),
        ("storage.objects.get", "get"),
        ("storage.objects.delete", "delete"),
        ("storage.multipartUploads.abort", "abort"),
    ];
    for (permission, name) in permissions {
        let none = || GcsFault::new(GcsEffect::NoHash).times(0);
        server.put("runs/k", b"there");
        server.deny(permission);
        let denied = call(&server, &*target, name, none()).await;
        assert_eq!(class(&denied), FailureClass::Denied, "{name}");
        server.allow_all();
    }
    server.require_tokens();
    let refused = target.put("k", Bytes::new(), None).await.unwrap_err();
    assert_eq!(refused.class(), FailureClass::Credentials, "{refused}");
}

#[tokio::test]
async fn an_existing_object_is_replaced_only_by_its_generation() {
    let server = FakeGcs::start();
    let target = target(&server);
    target.put("k", Bytes::from_static(b"one"), None).await.unwrap();
    assert_eq!(target.put("k", Bytes::from_static(b"two"), None).await, Err(TransferError::Exists));
    let facts = target.head("k").await.unwrap().unwrap();
    assert_eq!((facts.size, facts.crc32c), (3, Some(server.objects()["runs/k"].crc32c)));
    target.put("k", Bytes::from_static(b"three"), Some(&facts.generation)).await.unwrap();
    let late = target.put("k", Bytes::from_static(b"four"), Some(&facts.generation)).await;
    assert_eq!(late, Err(TransferError::Exists));
    assert_eq!(server.objects()["runs/k"].content(), b"three");
    server.fault(GcsFault::new(GcsEffect::NoHash).on("HEAD"));
    assert_eq!(target.head("k").await.unwrap().unwrap().crc32c, None);
}

#[tokio::test]
async fn parts_whose_tags_are_false_are_sent_again() {
    let server = FakeGcs::start();
    let target = target(&server);
    let id = target.begin_parts("k").await.unwrap();
    server.fault(GcsFault::new(GcsEffect::WrongEtag).on("PUT"));
    let tag = target.put_part("k", &id, part(0)).await.unwrap();
    let completed = target.complete("k", &id, vec![tag]).await;
    assert_eq!(completed, Err(TransferError::PartsGone), "they can never be completed");
    assert!(server.objects().is_empty());
    assert!(server.open_uploads().is_empty(), "nothing is left behind");
}

#[tokio::test]
async fn times_of_the_server_decide_nothing() {
    let server = FakeGcs::start();
    let target = target(&server);
    for hours in [-1, 1] {
        server.set_clock_offset(jiff::SignedDuration::from_hours(hours));
        let name = format!("at {hours}");
        target.put(&name, Bytes::from_static(b"x"), None).await.unwrap();
        assert_eq!(target.head(&name).await.unwrap().unwrap().size, 1);
    }
}
