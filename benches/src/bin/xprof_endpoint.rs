//! A profile through the agent's endpoint for clients of XProf against the same profile from the workload's own server: time
//! of one client for the same bytes, in interleaved pairs, and the memory of the agent.
//!
//! `BENCH_TRACE_MB` is the size of the trace (default 400). Its bytes do not matter: the endpoint passes them on unread.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use benches::{
    capture_window::{ROUNDS, median},
    daemon::free_address,
    profile_server, promise, tpuscope,
};
use bytes::{BufMut, Bytes, BytesMut};
use proto::tensorflow::{ProfileOptions, ProfileRequest};
use tokio::net::TcpStream;
use xprof::{
    client::TraceHead,
    framing::framed,
    service::{TraceCarrier, answer_head},
};

/// What is promised.
const LEAST_OF_OWN: f64 = 0.9;
const MOST_GROWTH_MIB: f64 = 16.0;
const MIB: f64 = 1_048_576.0;
/// The first trace, after which the agent's memory is taken.
const SMALL: u64 = 1 << 10;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The other processes of this bench.
        ["serve", bytes] => block_on(serve(bytes.parse().unwrap())),
        ["download", at] => block_on(download(at.to_owned())),
        _ => {
            if !compare() {
                std::process::exit(1);
            }
        }
    }
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

fn compare() -> bool {
    let megabytes: u64 = env::var("BENCH_TRACE_MB").map_or(400, |text| text.parse().unwrap());
    let (small, large) = (Workload::start(SMALL), Workload::start(megabytes << 20));
    let base = {
        let agent = Agent::start(&small.at);
        downloaded(&agent.at);
        agent.peak()
    };
    let agent = Agent::start(&large.at);
    // Both paths are warm then.
    let _warm = [downloaded(&large.at), downloaded(&agent.at)];
    let (mut own, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(downloaded(&large.at).as_secs_f64());
        ours.push(downloaded(&agent.at).as_secs_f64());
    }
    let growth = agent.peak().saturating_sub(base) as f64 / MIB;
    let pairs: Vec<f64> = own.iter().zip(&ours).map(|(own, ours)| own / ours).collect();
    println!("a profile of {megabytes} MiB, {ROUNDS} interleaved pairs, one client");
    println!("  from the workload's own server: median {:.3} s", median(own));
    println!("  through the agent:              median {:.3} s", median(ours));
    let speed = promise::at_least("of the speed of the workload's own server", median(pairs), LEAST_OF_OWN);
    println!("  memory of the agent after a small trace: {:.1} MiB", base as f64 / MIB);
    promise::at_most("MiB more while the large trace passes", growth, MOST_GROWTH_MIB) && speed
}

/// How long a client in a process of its own needs for one profile.
fn downloaded(at: &str) -> Duration {
    let mut client = Command::new(env::current_exe().unwrap());
    let output = client.args(["download", at]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let micros: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    Duration::from_micros(micros)
}

/// A process; killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A workload whose profiler answers with so many bytes.
struct Workload {
    _child: Killed,
    at: String,
}

impl Workload {
    fn start(bytes: u64) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        let mut child = command.args(["serve", &bytes.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
        let mut at = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut at).unwrap();
        Self { _child: Killed(child), at: at.trim().to_owned() }
    }
}

/// An agent that serves clients of XProf with the profile of one workload.
struct Agent {
    child: Killed,
    at: String,
    _home: tempfile::TempDir,
}

impl Agent {
    fn start(workload: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let at = free_address().to_string();
        // A procfs of nothing: processes of this machine are no workloads of the bench.
        fs::create_dir(home.path().join("proc")).unwrap();
        let settings = format!(
            "[agent]\nstate_dir = '{0}/state'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{0}/agent.sock'\n\
             xprof = '{at}'\n[paths]\nprocfs = '{0}/proc'\n\
             [[workload.endpoints]]\nkind = 'profiler'\naddress = '{workload}'\n",
            home.path().display()
        );
        let config = home.path().join("agent.toml");
        fs::write(&config, settings).unwrap();
        let child = Self::spawn(&config);
        let begin = Instant::now();
        while std::net::TcpStream::connect(&at).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the agent does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, at, _home: home }
    }

    fn spawn(config: &Path) -> Killed {
        let mut command = Command::new(tpuscope());
        command.arg("agent").arg("--config").arg(config);
        Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// The most memory that it had, in bytes.
    fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.0.id())).unwrap();
        let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        mark.trim().split(' ').next().unwrap().parse::<u64>().unwrap() * 1024
    }
}

async fn serve(bytes: u64) {
    let head = answer_head(TraceCarrier::XSpace, TraceHead { bytes, is_empty: false }).unwrap();
    let mut answer = BytesMut::with_capacity(head.len() + usize::try_from(bytes).unwrap());
    answer.put(head);
    answer.put_bytes(7, usize::try_from(bytes).unwrap());
    profile_server::serve(answer.freeze()).await;
}

/// One profile; prints the microseconds from the connection to the status.
async fn download(at: String) {
    let begin = Instant::now();
    let stream = TcpStream::connect(&at).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(8 << 20)
        .initial_connection_window_size(8 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    let uri = format!("http://{at}/tensorflow.ProfilerService/Profile");
    let post = http::Request::post(uri).header("content-type", "application/grpc").body(()).unwrap();
    let (response, mut request) = client.send_request(post, false).unwrap();
    request.send_data(framed(&one_millisecond()), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    let status = body.trailers().await.unwrap().unwrap();
    assert_eq!(status["grpc-status"], "0", "{status:?}");
    println!("{}", begin.elapsed().as_micros());
}

/// The shortest window: what is measured is the answer.
fn one_millisecond() -> ProfileRequest {
    ProfileRequest {
        duration_ms: 1,
        emit_xspace: true,
        opts: Some(ProfileOptions {
            version: 1,
            host_tracer_level: 1,
            duration_ms: 1,
            ..ProfileOptions::default()
        }),
        ..ProfileRequest::default()
    }
}
