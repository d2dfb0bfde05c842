//! What speaks no TLS, on either side: each is bounded, and named in one line.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread::{self, JoinHandle},
    time::Duration,
};

use fakes::{running_agent::exchange, wait::until};
use serde_json::Value;

use super::{
    remote_agent::{Authority, RemoteAgent},
    run,
};

/// The begin of a handshake: the header of a record of 512 bytes, and the first of them.
const HALF: [u8; 6] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01];

fn metric(page: &str, series: &str) -> f64 {
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in the page"))
}

/// Writes until the other side closes, and returns how much it took.
fn pour(address: SocketAddr, bytes: &[u8], most: usize) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut written = 0;
    while written < most {
        match stream.write(bytes) {
            Ok(count) => written += count,
            Err(_) => break,
        }
    }
    written
}

#[test]
fn what_speaks_no_tls_is_closed_and_named() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let said = |text: &str| until(text, || remote.agent.log().contains(text));
    let answer = exchange(remote.address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((answer.status, answer.body.as_str()), (0, ""), "{answer:?}");
    said("it speaks HTTP without TLS");
    // A gigabyte of something else is not read.
    let written = pour(remote.address, &[0; 1 << 16], 1 << 30);
    assert!(written < 64 << 20, "{written}");
    // Records of a valid form that never end the handshake.
    let record = [&[0x16, 0x03, 0x03, 0x40, 0x00][..], &[0; 0x4000]].concat();
    let written = pour(remote.address, &record, 1 << 30);
    assert!(written < 64 << 20, "{written}");
    let page = remote.agent.get("/metrics", "").body;
    let handshakes = "tpuscope_refused_connections_total{listener=\"remote\",reason=\"tls_handshake\"} ";
    assert!(metric(&page, handshakes) >= 3.0);
    // A client without a certificate: the TLS library of curl takes the alert for an error.
    let ca = authority.of("ca/ca.pem");
    let curl = Command::new("curl")
        .args(["-sv", "--http2", "--cacert"])
        .arg(&ca)
        .arg(format!("https://{}/", remote.address))
        .output()
        .expect("curl is installed by tests/setup.sh");
    assert!(!curl.status.success() && curl.stdout.is_empty(), "{curl:?}");
    until("the client without a certificate", || {
        let page = remote.agent.get("/metrics", "").body;
        metric(&page, handshakes) >= 4.0
    });
}

#[test]
fn a_flood_of_half_handshakes_moves_no_tick_and_keeps_nobody_out() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let page = || remote.agent.get("/metrics", "").body;
    let missed = || -> f64 {
        let page = page();
        let of = page.lines().filter(|line| line.starts_with("tpuscope_source_missed_ticks_total{"));
        of.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    let ticks = || {
        let answer = remote.agent.get("/api/v1/history?metric=host_memory_total_bytes", "");
        let history: Value = serde_json::from_str(&answer.body).expect("JSON");
        history["series"][0]["points"].as_array().map_or(0, Vec::len)
    };
    let status = |name: &str| {
        let folder = authority.of(name).display().to_string();
        run(&["--hosts", &remote.address.to_string(), "--tls-dir", &folder, "--host-timeout", "20s"])
    };
    until("a first tick", || ticks() > 1);
    let before = missed();
    let open = |_| {
        let mut stream = TcpStream::connect(remote.address).unwrap();
        let _ = stream.write_all(&HALF);
        stream
    };
    let half: Vec<TcpStream> = (0..200).map(open).collect();
    let during = ticks();
    let page_during = status("alice");
    assert_eq!(page_during.code, Some(0), "{page_during:?}");
    until("ticks during the flood", || ticks() > during + 1);
    let replaced = "tpuscope_refused_connections_total{listener=\"remote\",reason=\"replaced\"} ";
    assert!(metric(&page(), replaced) >= 100.0);
    drop(half);
    assert!((missed() - before).abs() < f64::EPSILON, "a tick was missed");
}

#[test]
fn an_address_that_fails_often_is_closed_at_once() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let series = "tpuscope_refused_connections_total{listener=\"remote\",reason=\"failure_limit\"} ";
    let limited = || metric(&remote.agent.get("/metrics", "").body, series);
    until("the limit", || {
        exchange(remote.address, b"GET / HTTP/1.0\r\n\r\n");
        limited() > 0.0
    });
    until("the line in the log", || {
        remote.agent.log().contains("too many failed TLS handshakes of an address")
    });
    // One that would be accepted is told.
    until("the reason at the other side", || {
        exchange(remote.address, b"GET / HTTP/1.0\r\n\r\n");
        let ended = remote.status(&authority.of("alice"), &["--json"]).json();
        ended["hosts"][0]["missing"]["kind"] == "too_many_failures"
    });
}

/// Accepts connections for ever and lets `answer` deal with each.
fn peer_that(answer: fn(TcpStream)) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || {
        // One host is dialled once.
        if let Ok((stream, _)) = listener.accept() {
            answer(stream);
        }
    });
    (address, accepting)
}

/// What a host does with its connection, by name, and what is said of it.
type BadHost = (&'static str, fn(TcpStream), &'static str);

fn pour_into(mut stream: TcpStream, bytes: &[u8]) {
    while stream.write_all(bytes).is_ok() {}
}

#[test]
fn a_host_that_speaks_no_tls_is_a_row_that_says_so() {
    let authority = Authority::usual();
    let folder = authority.of("alice").display().to_string();
    let reason = |address: SocketAddr| {
        let ended =
            run(&["--hosts", &address.to_string(), "--tls-dir", &folder, "--host-timeout", "3s", "--json"]);
        assert_eq!(ended.code, Some(18), "{ended:?}");
        let missing = ended.json()["hosts"][0]["missing"].clone();
        (missing["kind"].as_str().unwrap().to_owned(), missing["reason"].as_str().unwrap().to_owned())
    };
    let cases: [BadHost; 4] = [
        ("HTTP", |mut stream| drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")), "TLS"),
        ("zeros", |stream| pour_into(stream, &[0; 1 << 16]), "TLS"),
        ("silence", |mut stream| drop(stream.read_to_end(&mut Vec::new())), "did not answer within"),
        ("one byte", one_byte_at_a_time, "did not answer within"),
    ];
    for (name, answer, says) in cases {
        let (address, answering) = peer_that(answer);
        let (found, said) = reason(address);
        let kind = if says == "did not answer within" { "no_answer" } else { "not_tls" };
        assert!(found == kind && said.contains(says), "{name}: {found}: {said}");
        answering.join().unwrap();
    }
}

/// A valid record that comes one byte at a time.
fn one_byte_at_a_time(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    let record = [&[0x16, 0x03, 0x03, 0x01, 0x00][..], &[0; 0x100]].concat();
    let mut sink = [0; 1 << 12];
    for byte in record {
        // The time-out of the read is the pause.
        let closed = matches!(stream.read(&mut sink), Ok(0));
        if closed || stream.write_all(&[byte]).is_err() {
            return;
        }
    }
}

/// `openssl s_server` of the same authority, which speaks TLS without HTTP/2.
#[test]
fn a_host_without_http2_is_named() {
    let authority = Authority::usual();
    let here = authority.of("127.0.0.1");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("openssl")
        .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-cert"])
        .arg(here.join("cert.pem"))
        .arg("-key")
        .arg(here.join("key.pem"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("openssl is installed");
    until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let folder = authority.of("alice").display().to_string();
    let ended = run(&["--hosts", &format!("127.0.0.1:{port}"), "--tls-dir", &folder, "--host-timeout", "5s"]);
    assert!(ended.stdout.contains("without HTTP/2"), "{ended:?}");
    let _ = server.kill();
    let _ = server.wait();
}
