//! The double itself: each call as the recorded requests have it, its refusals, and its faults.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use jiff::SignedDuration;

use super::{BUCKET, FakeGcs, GcsEffect, GcsFault, Moment};
use crate::{
    running_agent::{Answer, exchange},
    wait::until,
};

fn ask(server: &FakeGcs, line: &str, headers: &str, body: &[u8]) -> Answer {
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    exchange(server.address(), &[head.as_bytes(), body].concat())
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    text.split_once(start).and_then(|(_, rest)| rest.split_once(end)).expect(start).0
}

fn header(answer: &Answer, name: &str) -> Vec<String> {
    let found = answer.headers.lines().filter_map(|line| line.split_once(": "));
    found.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect()
}

/// The input of the check value that CRC-32C is known by.
const TEXT: &[u8] = b"123456789";
const TEXT_CRC: &str = "4waSgw==";

#[test]
fn a_put_is_read_back_with_its_checksums() {
    let server = FakeGcs::start();
    let put =
        ask(&server, "PUT /traces/a%2Fb%2Etxt", "content-type: text/plain\r\nx-goog-meta-id: 7\r\n", TEXT);
    assert_eq!(put.status, 200);
    assert_eq!(header(&put, "etag"), ["\"25f9e794323b453885f5181f1b624d0b\""]);
    let generation = header(&put, "x-goog-generation");

    let head = ask(&server, "HEAD /traces/a%2Fb%2Etxt", "", b"");
    assert_eq!(header(&head, "content-length"), ["9"]);
    assert_eq!(header(&head, "x-goog-generation"), generation);
    assert_eq!(
        header(&head, "x-goog-hash"),
        [format!("crc32c={TEXT_CRC}"), "md5=JfnnlDI7RTiF9RgfG2JNCw==".into()]
    );
    let get = ask(&server, "GET /traces/a%2Fb%2Etxt", "", b"");
    assert_eq!(get.body.as_bytes(), TEXT);
    assert_eq!(header(&get, "x-goog-hash"), [format!("crc32c={TEXT_CRC},md5=JfnnlDI7RTiF9RgfG2JNCw==")]);
    assert_eq!(header(&get, "content-type"), ["text/plain"]);
    assert_eq!(header(&get, "x-goog-meta-id"), ["7"]);
    let range = ask(&server, "GET /traces/a%2Fb%2Etxt", "range: bytes=2-4\r\n", b"");
    assert_eq!((range.status, range.body.as_str()), (206, "345"));
    assert_eq!(header(&range, "content-range"), ["bytes 2-4/9"]);
    assert_eq!(ask(&server, "GET /traces/a%2Fb%2Etxt", "range: bytes=9-\r\n", b"").status, 416);
    assert_eq!(server.objects()["a/b.txt"].content(), TEXT);
}

#[test]
fn generations_decide_what_may_be_replaced() {
    let server = FakeGcs::start();
    let create = "x-goog-if-generation-match: 0\r\n";
    let first = ask(&server, "PUT /traces/k", create, b"one");
    assert_eq!(first.status, 200);
    let second = ask(&server, "PUT /traces/k", create, b"two");
    assert_eq!(second.status, 412);
    assert!(second.body.contains("<Code>PreconditionFailed</Code>"), "{}", second.body);
    let version = format!("x-goog-if-generation-match: {}\r\n", header(&first, "x-goog-generation")[0]);
    assert_eq!(ask(&server, "PUT /traces/k", &version, b"three").status, 200);
    assert_eq!(ask(&server, "PUT /traces/k", &version, b"four").status, 412);
    assert_eq!(server.objects()["k"].content(), b"three");
    assert_eq!(server.requests().iter().filter(|request| request.made_object()).count(), 2);
}

fn start_upload(server: &FakeGcs, key: &str) -> String {
    let started = ask(server, &format!("POST /traces/{key}?uploads="), "", b"");
    assert_eq!(started.status, 200);
    between(&started.body, "<UploadId>", "</UploadId>").to_owned()
}

fn part(server: &FakeGcs, key: &str, id: &str, number: u32, bytes: &[u8]) -> String {
    let answer = ask(server, &format!("PUT /traces/{key}?partNumber={number}&uploadId={id}"), "", bytes);
    assert_eq!(answer.status, 200);
    format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", header(&answer, "etag")[0])
}

fn complete(server: &FakeGcs, key: &str, id: &str, parts: &str) -> Answer {
    let list = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    ask(server, &format!("POST /traces/{key}?uploadId={id}"), "", list.as_bytes())
}

#[test]
fn parts_become_one_object() {
    let server = FakeGcs::start();
    let id = start_upload(&server, "big");
    let (large, small) = (vec![7_u8; 5 << 20], b"the end".to_vec());
    let last = part(&server, "big", &id, 2, &small);
    let first = part(&server, "big", &id, 1, &large);
    assert!(server.objects().is_empty(), "nothing is visible before the end");
    assert_eq!(server.open_uploads(), ["big"]);
    let refused = |parts: &str, code: &str| {
        let answer = complete(&server, "big", &id, parts);
        assert_eq!(answer.status, 400);
        assert!(answer.body.contains(code), "{}", answer.body);
    };
    refused(&format!("{last}{first}"), "<Code>InvalidPartOrder</Code>");
    refused(&first.replace("<ETag>\"", "<ETag>\"0"), "<Code>InvalidPart</Code>");
    refused("", "<Code>MalformedCompleteMultipartUpload</Code>");
    let done = complete(&server, "big", &id, &format!("{first}{last}"));
    assert_eq!(done.status, 200);
    let object = server.objects()["big"].clone();
    let whole = [large, small].concat();
    assert_eq!((object.size, object.crc32c), (whole.len() as u64, crc32c::crc32c(&whole)));
    assert_eq!(object.md5, None);
    assert_eq!(object.content(), whole);
    let head = ask(&server, "HEAD /traces/big", "", b"");
    assert_eq!(header(&head, "x-goog-hash").len(), 1, "no MD5 of an object made of parts");
    assert_eq!(complete(&server, "big", &id, &format!("{first}{last}")).status, 404, "the upload is over");
    let range = ask(&server, "GET /traces/big", "range: bytes=5242878-5242883\r\n", b"");
    assert_eq!(range.body, "\u{7}\u{7}the ");
}

#[test]
fn small_parts_and_strange_uploads_are_refused() {
    let server = FakeGcs::start();
    let id = start_upload(&server, "k");
    let parts = part(&server, "k", &id, 1, b"small") + &part(&server, "k", &id, 2, b"small");
    assert!(complete(&server, "k", &id, &parts).body.contains("<Code>EntityTooSmall</Code>"));
    assert_eq!(ask(&server, &format!("PUT /traces/other?partNumber=1&uploadId={id}"), "", b"x").status, 404);
    assert_eq!(ask(&server, &format!("PUT /traces/k?partNumber=10001&uploadId={id}"), "", b"x").status, 400);
    assert_eq!(ask(&server, &format!("DELETE /traces/k?uploadId={id}"), "", b"").status, 204);
    assert_eq!(ask(&server, &format!("DELETE /traces/k?uploadId={id}"), "", b"").status, 404);
    assert!(server.open_uploads().is_empty());
}

#[test]
fn lists_have_prefixes_delimiters_and_pages() {
    let server = FakeGcs::start();
    server.set_page_size(2);
    for key in ["p/a", "p/b/1", "p/b/2", "p/c&d", "p/e/1", "q"] {
        server.put(key, key.as_bytes());
    }
    let mut token = String::new();
    let mut seen = Vec::new();
    loop {
        let page =
            ask(&server, &format!("GET /traces?list-type=2&prefix=p%2F&delimiter=%2F{token}"), "", b"");
        let names = page.body.split("<Key>").skip(1).map(|rest| rest.split_once("</Key>").expect("closed").0);
        let prefixes = page.body.split("<CommonPrefixes><Prefix>").skip(1);
        let prefixes = prefixes.map(|rest| rest.split_once("</Prefix>").expect("closed").0);
        seen.extend(names.chain(prefixes).map(str::to_owned));
        if !page.body.contains("<NextContinuationToken>") {
            break;
        }
        let next = between(&page.body, "<NextContinuationToken>", "</NextContinuationToken>");
        token = format!("&continuation-token={}", next.replace('/', "%2F").replace("&amp;", "%26"));
    }
    seen.sort();
    assert_eq!(seen, ["p/a", "p/b/", "p/c&amp;d", "p/e/"]);
    let after = ask(&server, "GET /traces?list-type=2&start-after=p%2Fe%2F1", "", b"");
    assert!(after.body.contains("<Key>q</Key><") && !after.body.contains("<Key>p/"), "{}", after.body);
}

#[test]
fn copies_and_deletions() {
    let server = FakeGcs::start();
    server.put("from/x", TEXT);
    let copy = "x-goog-copy-source: traces/from%2Fx\r\nx-goog-if-generation-match: 0\r\n";
    assert_eq!(ask(&server, "PUT /traces/to", copy, b"").status, 200);
    assert_eq!(ask(&server, "PUT /traces/to", copy, b"").status, 412);
    assert_eq!(server.objects()["to"].content(), TEXT);
    assert_eq!(ask(&server, "DELETE /traces/from%2Fx", "", b"").status, 204);
    let again = ask(&server, "DELETE /traces/from%2Fx", "", b"");
    assert_eq!(again.status, 404);
    assert!(again.body.contains("No such object: traces/from/x"), "{}", again.body);
    let gone = ask(&server, "PUT /traces/other", "x-goog-copy-source: traces/from%2Fx\r\n", b"");
    assert!(gone.body.contains("<Code>NoSuchKey</Code>"), "{}", gone.body);
}

#[test]
fn buckets_permissions_and_tokens_are_checked() {
    let server = FakeGcs::start();
    let absent = ask(&server, "PUT /tracse/k", "", b"x");
    assert_eq!(absent.status, 404);
    assert!(absent.body.contains("<Code>NoSuchBucket</Code>"), "{}", absent.body);
    server.deny("storage.objects.create");
    let denied = ask(&server, "PUT /traces/k", "", b"x");
    assert_eq!(denied.status, 403);
    assert!(denied.body.contains("Permission 'storage.objects.create' denied"), "{}", denied.body);
    server.allow_all();
    server.put("k", b"old");
    server.deny("storage.objects.delete");
    assert_eq!(ask(&server, "PUT /traces/k", "", b"x").status, 403, "replacing removes the old one");
    server.allow_all();

    assert_eq!(ask(&server, "PUT /traces/k", "authorization: Bearer\r\n", b"x").status, 200);
    server.require_tokens();
    assert_eq!(ask(&server, "PUT /traces/k", "authorization: Bearer \r\n", b"x").status, 401);
    assert_eq!(ask(&server, "PUT /traces/k", "authorization: Bearer token-9\r\n", b"x").status, 401);
    let token = || {
        let path = "GET /computeMetadata/v1/instance/service-accounts/default/token?audience=a";
        let answer = ask(&server, path, "metadata-flavor: Google\r\n", b"");
        between(&answer.body, "\"access_token\":\"", "\"").to_owned()
    };
    let first = format!("authorization: Bearer {}\r\n", token());
    assert_eq!(ask(&server, "PUT /traces/k", &first, b"x").status, 200);
    server.expire_tokens();
    assert_eq!(ask(&server, "PUT /traces/k", &first, b"x").status, 401);
    let second = format!("authorization: Bearer {}\r\n", token());
    assert_eq!(ask(&server, "PUT /traces/k", &second, b"x").status, 200);
    server.expire_tokens();
    server.set_token_life(Duration::ZERO);
    let third = format!("authorization: Bearer {}\r\n", token());
    assert_eq!(ask(&server, "PUT /traces/k", &third, b"x").status, 401, "its life is over");
}

#[test]
fn the_metadata_server_has_the_rules_of_the_real_one() {
    let server = FakeGcs::start();
    let get =
        |path: &str, headers: &str| ask(&server, &format!("GET /computeMetadata/v1/{path}"), headers, b"");
    let flavor = "metadata-flavor: Google\r\n";
    assert_eq!(get("instance/zone", "").status, 403);
    assert_eq!(get("instance/zone", &format!("{flavor}x-forwarded-for: 1.2.3.4\r\n")).status, 403);
    let zone = get("instance/zone", flavor);
    assert_eq!((zone.status, zone.body.as_str()), (200, "projects/424242/zones/us-central2-b"));
    assert_eq!(header(&zone, "metadata-flavor"), ["Google"]);
    assert_eq!(header(&zone, "content-type"), ["application/text"]);
    assert_eq!(get("instance/nothing", flavor).status, 404);
    let folder = get("instance/attributes/", flavor);
    assert_eq!(folder.body, "accelerator-type\nagent-worker-number\nworker-network-endpoints\n");
    let tree = get("?recursive=true", flavor);
    let tree: serde_json::Value = serde_json::from_str(&tree.body).expect("JSON");
    assert_eq!(tree["instance"]["machineType"], "projects/424242/machineTypes/ct4p-hightpu-4t");
    assert_eq!(tree["instance"]["attributes"]["accelerator-type"], "v4-8");
    assert_eq!(tree["instance"]["serviceAccounts"]["default"]["aliases"], "default");
    let known = header(&get("instance/maintenance-event", flavor), "etag")[0].clone();
    let wait = format!("instance/maintenance-event?wait_for_change=true&last_etag={known}");
    assert_eq!(get(&format!("{wait}&timeout_sec=0"), flavor).body, "NONE");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&wait, flavor).body);
        until("the call", || server.metadata_requests().iter().any(|request| request.status.is_none()));
        server.set_metadata("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE");
        assert_eq!(waiting.join().expect("an answer"), "TERMINATE_ON_HOST_MAINTENANCE");
    });
    assert!(server.requests().is_empty(), "these are no storage calls");
}

#[test]
fn statuses_before_and_after_the_commit() {
    let server = FakeGcs::start();
    let put = GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).on("PUT").containing("/k");
    server.fault(put.from_nth(2).times(2));
    server.fault(GcsFault::new(GcsEffect::Status(500, Moment::AfterCommit)).on("DELETE"));
    let statuses: Vec<_> = (0..4).map(|_| ask(&server, "PUT /traces/k", "", b"x").status).collect();
    assert_eq!(statuses, [200, 503, 503, 200]);
    assert_eq!(ask(&server, "DELETE /traces/k", "", b"").status, 500);
    assert!(server.objects().is_empty(), "it was removed all the same");
    let log: Vec<_> = server.requests().iter().map(|request| (request.status, request.committed)).collect();
    let (good, bad) = ((Some(200), true), (Some(503), false));
    assert_eq!(log, [good, bad, bad, good, (Some(500), true)]);
    server.fault(GcsFault::new(GcsEffect::Status(429, Moment::BeforeCommit)).always());
    assert_eq!(ask(&server, "GET /traces/k", "", b"").status, 429);
    server.clear_faults();
    assert_eq!(ask(&server, "GET /traces/k", "", b"").status, 404);
}

#[test]
fn connections_are_cut_in_the_middle() {
    let server = FakeGcs::start();
    let body = vec![1; 1 << 20];
    server.fault(GcsFault::new(GcsEffect::CutRequest(100_000)));
    assert_eq!(ask(&server, "PUT /traces/k", "", &body).status, 0);
    let log = server.requests();
    assert!((100_000..1 << 20).contains(&log[0].received), "{log:?}");
    assert_eq!((log[0].status, log[0].committed), (None, false));
    assert!(server.objects().is_empty());

    server.fault(GcsFault::new(GcsEffect::CutAnswer).on("PUT"));
    assert_eq!(ask(&server, "PUT /traces/k", "", &body).status, 0);
    assert!(server.requests()[1].committed);
    assert_eq!(server.objects()["k"].size, 1 << 20);

    server.fault(GcsFault::new(GcsEffect::CutAnswer).on("GET"));
    let half = ask(&server, "GET /traces/k", "", b"");
    assert_eq!(half.status, 200);
    assert!(half.body.len() < 1 << 20, "{} bytes", half.body.len());

    // A client that is gone in the middle of its request leaves nothing behind.
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    stream.write_all(b"PUT /traces/k2 HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nhalf").expect("sent");
    until("the half", || server.requests().last().is_some_and(|request| request.received == 4));
    drop(stream);
    assert_eq!(ask(&server, "HEAD /traces/k2", "", b"").status, 404);
}

#[test]
fn a_hang_ends_only_with_the_client() {
    let server = FakeGcs::start();
    server.fault(GcsFault::new(GcsEffect::Hang(Moment::AfterCommit)));
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    stream.write_all(b"PUT /traces/k HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx").expect("sent");
    until("the object", || server.objects().contains_key("k"));
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket option");
    assert!(stream.read(&mut [0]).is_err(), "no answer and no end");
    assert_eq!(server.requests()[0].status, None);
}

#[test]
fn a_slow_connection_moves_all_the_same() {
    let server = FakeGcs::start();
    server.fault(GcsFault::new(GcsEffect::Slow(1000, Duration::from_millis(1))));
    let body = vec![3; 100_000];
    let put = ask(&server, "PUT /traces/k", "", &body);
    assert_eq!(put.status, 200);
    assert_eq!(header(&put, "connection"), ["close"]);
    assert_eq!(server.objects()["k"].content(), body);
}

#[test]
fn answers_lie_where_told() {
    let server = FakeGcs::start();
    server.put("k", TEXT);
    let lie = |effect: GcsEffect| {
        server.fault(GcsFault::new(effect).on("HEAD"));
        ask(&server, "HEAD /traces/k", "", b"")
    };
    let etag = server.objects()["k"].etag.clone();
    assert_ne!(header(&lie(GcsEffect::WrongEtag), "etag")[0], etag);
    assert_eq!(header(&lie(GcsEffect::WrongSize), "content-length"), ["10"]);
    let hashes = header(&lie(GcsEffect::WrongCrc), "x-goog-hash");
    assert_eq!(hashes.len(), 2);
    assert!(!hashes.contains(&format!("crc32c={TEXT_CRC}")));
    assert!(header(&lie(GcsEffect::NoHash), "x-goog-hash").is_empty());
    let true_again = ask(&server, "HEAD /traces/k", "", b"");
    assert_eq!(header(&true_again, "etag"), [etag]);
    let id = start_upload(&server, "big");
    let parts = part(&server, "big", &id, 1, TEXT);
    server.fault(GcsFault::new(GcsEffect::WrongEtag).on("POST"));
    let done = complete(&server, "big", &id, &parts);
    assert!(!done.body.contains(server.objects()["big"].etag.trim_matches('"')), "{}", done.body);
}

#[test]
fn its_clock_may_be_off() {
    let server = FakeGcs::start();
    server.put("k", TEXT);
    let date = |answer: Answer| {
        let text = header(&answer, "date")[0].clone();
        jiff::fmt::rfc2822::parse(&text).expect("a date").timestamp()
    };
    let before = date(ask(&server, "HEAD /traces/k", "", b""));
    server.set_clock_offset(SignedDuration::from_hours(1));
    let after = date(ask(&server, "HEAD /traces/k", "", b""));
    assert!(after.duration_since(before) >= SignedDuration::from_hours(1));
}

#[test]
fn contents_that_nobody_needs_are_removed() {
    let server = FakeGcs::start();
    let files = || server.folder.path().read_dir().expect("a folder").count();
    for body in [b"one", b"two"] {
        assert_eq!(ask(&server, "PUT /traces/k", "", body).status, 200);
    }
    assert_eq!(files(), 1, "the second replaced the first");
    assert_eq!(ask(&server, "DELETE /traces/k", "", b"").status, 204);
    assert_eq!(files(), 0);
    let bucket = format!("PUT /{BUCKET}x/k");
    assert_eq!(ask(&server, &bucket, "", b"refused").status, 404);
    assert_eq!(files(), 0);
}
