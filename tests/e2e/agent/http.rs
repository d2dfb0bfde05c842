//! HTTP within its bounds.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
};

use fakes::{
    fake_host::FakeHost,
    running_agent::{RunningAgent, exchange},
    wait::{LIMIT, eventually},
};
use serde_json::Value;

fn agent(settings: &str) -> (FakeHost, RunningAgent) {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, settings);
    (host, agent)
}

#[test]
fn answers_scrapers_probes_and_scripts() {
    let (_host, agent) = agent("[sampler]\nsim_chips = 2\n");
    assert_eq!(agent.get("/healthz", "").status, 200);
    assert_eq!(agent.get("/readyz", "").status, 200);
    assert!(agent.get("/", "").body.contains("/metrics"));
    assert_eq!(agent.get("/nothing", "").status, 404);
    let json = |path: &str| {
        let answer = agent.get(path, "");
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_str::<Value>(&answer.body).unwrap()
    };
    assert_eq!(json("/api/v1/status")["ready"], true);
    let metric = "host_memory_available_bytes";
    let samples = json(&format!("/api/v1/samples?metric={metric}"));
    let samples = samples["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 1, "{samples:?}");
    assert!(samples[0]["value"]["gauge"].as_f64().is_some_and(|value| value > 0.0), "{samples:?}");
    eventually("two points of history", || {
        let history = json(&format!("/api/v1/history?metric={metric}&last=10m"));
        let points = history["series"][0]["points"].as_array()?.len();
        (points >= 2).then_some(())
    });
    assert_eq!(agent.get("/api/v1/history", "").status, 400);
    let bad = agent.get("/api/v1/history?metric=x&last=5", "");
    assert!(bad.status == 400 && bad.body.contains("no unit"), "{bad:?}");
    let typo = agent.get("/api/v1/samples?metrc=X", "");
    assert!(
        typo.status == 400 && typo.body.contains("no parameter `metrc`; this page has: metric"),
        "{typo:?}"
    );
}

#[test]
fn refuses_what_it_must() {
    let (_host, agent) = agent("");
    let address = agent.http();
    let ask = |request: &str| exchange(address, request.as_bytes());
    // A browser that was sent here by somebody else's name.
    let rebound = ask("GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(rebound.status, 403, "{rebound:?}");
    assert!(!rebound.body.contains("tpuscope_"));
    let posted = ask(
        "POST /api/v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    );
    assert_eq!(posted.status, 405, "{posted:?}");
    let headers = format!("X-Long: {}\r\n", "x".repeat(64 << 10));
    let long = ask(&format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
    assert!(long.status >= 400 || long.status == 0, "{}", long.status);
    let garbage = ask("\u{1}\u{2}\u{3}\r\n\r\n");
    assert!(garbage.status == 400 || garbage.status == 0, "{garbage:?}");
    assert_eq!(agent.get("/healthz", "").status, 200);
}

/// Asks on a connection that stays, and reads all of the answer.
fn ask_again(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    Ok(String::from_utf8(answer).unwrap())
}

#[test]
fn those_who_hold_all_places_and_talk_keep_nobody_out() {
    let (_host, agent) = agent("[api]\nmax_connections = 4\n");
    let mut talking: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(agent.http()).unwrap()).collect();
    for stream in talking.iter_mut().rev() {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert!(ask_again(stream).unwrap().starts_with("HTTP/1.1 200"));
    }
    assert_eq!(agent.get("/metrics", "").status, 200);
    // Only the one that was quiet for the longest time had to go.
    assert!(ask_again(&mut talking[3]).is_err());
    for stream in &mut talking[..3] {
        assert!(ask_again(stream).is_ok());
    }
}

#[test]
fn mute_connections_make_room_and_are_closed() {
    let (_host, agent) = agent("[api]\nmax_connections = 4\n");
    let address = agent.http();
    let mut silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Who asks something gets a place at once: the oldest of the four makes room.
    assert_eq!(agent.get("/healthz", "").status, 200);
    assert_eq!(agent.get("/metrics", "").status, 200);
    silent[0].set_read_timeout(Some(LIMIT)).unwrap();
    assert!(matches!(silent[0].read(&mut [0; 16]), Ok(0) | Err(_)), "the oldest is closed");
    for stream in &mut silent {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert!(matches!(stream.read(&mut [0; 16]), Ok(0) | Err(_)), "a silent connection is closed");
    }
    eventually("room again", || (agent.get("/healthz", "").status == 200).then_some(()));
}
