//! From the start of the process to a page with a sample: the agent beside node_exporter, taken in turns.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const ROUNDS: usize = 15;
/// What the agent promises.
const PROMISE: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(30);

/// A daemon that is ended with its value.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let program = std::env::current_exe().unwrap().with_file_name("tpuscope");
    let home = std::env::temp_dir().join(format!("tpuscope-bench-start-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(first_page(agent(&program, &home), "\nhost_memory_available_bytes"));
        theirs.push(first_page(exporter(), "\nnode_memory_MemAvailable_bytes"));
    }
    std::fs::remove_dir_all(&home).unwrap();
    let (ours, theirs) = (median(ours), median(theirs));
    println!("start to first sample, median of {ROUNDS}: tpuscope {ours:.1?}, node_exporter {theirs:.1?}");
    println!("  ratio {:.2}", ours.as_secs_f64() / theirs.as_secs_f64());
    assert!(ours <= PROMISE, "the promise is {PROMISE:?}");
}

fn agent(program: &Path, home: &Path) -> impl Fn(SocketAddr) -> Command {
    move |address| {
        let mut command = Command::new(program);
        command.arg("agent").arg("--socket").arg(home.join("agent.sock"));
        command.arg("--set").arg(format!("agent.state_dir={}", home.display()));
        command.arg("--set").arg(format!("api.http={address}")).args(["--set", "api.grpc=off"]);
        command
    }
}

fn exporter() -> impl Fn(SocketAddr) -> Command {
    |address| {
        let mut command = Command::new("prometheus-node-exporter");
        command.arg(format!("--web.listen-address={address}"));
        command
    }
}

fn first_page(command: impl Fn(SocketAddr) -> Command, sample: &str) -> Duration {
    // A port that was free a moment ago: whoever takes it in between fails the bench, and does not bend it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = command(address);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let _daemon = Daemon(command.spawn().unwrap());
    loop {
        if page(address).is_some_and(|page| page.contains(sample)) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < LIMIT, "no page with {sample}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn page(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    Some(page)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
