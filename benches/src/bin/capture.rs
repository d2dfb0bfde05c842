//! `tpuscope capture` against xprof's own client (time beyond the window), and against a bare HTTP/2 download of
//! the same bytes (throughput and memory while a large trace arrives), all in one run.
//!
//! `BENCH_TRACE_MB` is the size of the large trace (default 500). It is a real one, of a JAX job with the python
//! tracer on, repeated until it is large enough: an XSpace after an XSpace is one XSpace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use benches::{
    capture_window::{MOST_BEYOND, ROUNDS, WINDOW, beyond, median, xprof_beyond},
    profile_server, promise,
};
use bytes::{BufMut, Bytes, BytesMut};
use fakes::{
    harness::{tpuscope, workspace},
    jax_job::{JaxJob, RunningJaxJob},
};
use tokio::net::TcpStream;

/// What is promised.
const LEAST_OF_BARE: f64 = 0.8;
const MOST_GROWTH_MIB: f64 = 32.0;
const MIB: f64 = 1_048_576.0;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The other processes of this bench.
        ["serve", trace] => block_on(serve(PathBuf::from(trace))),
        ["download", at, file] => block_on(download(at.to_owned(), Some(PathBuf::from(file)))),
        ["download", at] => block_on(download(at.to_owned(), None)),
        _ => {
            let kept = beyond_the_window();
            if !(receiving() && kept) {
                std::process::exit(1);
            }
        }
    }
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

fn beyond_the_window() -> bool {
    println!("time beyond a window of {} s, median of {ROUNDS}", WINDOW.as_secs());
    let mut kept = true;
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    for count in [1, 2] {
        let targets: Vec<String> = jobs[..count].iter().map(RunningJaxJob::target).collect();
        let ours = median((0..ROUNDS).map(|_| ours_beyond(&targets)).collect());
        let peer = median((0..ROUNDS).map(|_| xprof_beyond(&targets)).collect());
        println!("  {count} target(s): tpuscope {ours:.3} s, xprof {peer:.3} s, ratio {:.1}", peer / ours);
        kept &= promise::at_most("seconds beyond the window", ours, MOST_BEYOND);
    }
    kept
}

fn ours_beyond(targets: &[String]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(tpuscope());
    command.args(["capture", "--duration", "1s", "--output"]).arg(folder.path());
    for target in targets {
        command.args(["--target", target]);
    }
    beyond(&mut command)
}

/// A process that ended: how long it ran and how much memory it had at most.
struct Ran {
    took: Duration,
    peak: u64,
}

fn watched(command: &mut Command) -> Ran {
    let begin = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    loop {
        // The high-water mark only rises, so the last look before the end tells it.
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: Option<u64> = mark.and_then(|mark| mark.trim().split(' ').next()?.parse().ok());
        peak = peak.max(kib.unwrap_or(0) * 1024);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{command:?}");
            return Ran { took: begin.elapsed(), peak };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn receiving() -> bool {
    let trace = large_trace();
    let size = fs::metadata(&trace).unwrap().len();
    let small = trace.with_extension("small.pb");
    let base = {
        let server = Server::start(&small);
        watched(&mut capture(&server, &trace)).peak
    };
    let server = Server::start(&trace);
    let this = env::current_exe().unwrap();
    let scratch = trace.with_extension("download");
    let (mut ours, mut to_file, mut to_nowhere) = (Vec::new(), Vec::new(), Vec::new());
    let mut peak = 0;
    for _ in 0..ROUNDS {
        to_nowhere.push(watched(Command::new(&this).args(["download", &server.at])).took);
        to_file.push(watched(Command::new(&this).args(["download", &server.at]).arg(&scratch)).took);
        let ran = watched(&mut capture(&server, &trace));
        peak = peak.max(ran.peak);
        ours.push(ran.took);
    }
    fs::remove_file(scratch).unwrap();
    let rate = |took: Vec<Duration>| {
        size as f64 / MIB / median(took.into_iter().map(|took| took.as_secs_f64()).collect())
    };
    let (ours, to_file, to_nowhere) = (rate(ours), rate(to_file), rate(to_nowhere));
    println!("receiving a trace of {:.0} MiB, median of {ROUNDS}, whole processes", size as f64 / MIB);
    println!("  tpuscope, checked, hashed, on disk and synced: {ours:.0} MiB/s");
    println!(
        "  bare HTTP/2 download to a synced file:         {to_file:.0} MiB/s, ratio {:.2}",
        ours / to_file
    );
    println!(
        "  bare HTTP/2 download to nowhere:               {to_nowhere:.0} MiB/s, ratio {:.2}",
        ours / to_nowhere
    );
    let growth = peak.saturating_sub(base) as f64 / MIB;
    let rate = promise::at_least("of the rate of a bare download to a file", ours / to_file, LEAST_OF_BARE);
    println!("  memory of a capture of a small trace: {:.1} MiB", base as f64 / MIB);
    promise::at_most("MiB more while the large trace arrives", growth, MOST_GROWTH_MIB) && rate
}

fn capture(server: &Server, near: &Path) -> Command {
    let output = near.with_extension("sessions");
    // Each capture starts on the same empty disk.
    let _ = fs::remove_dir_all(&output);
    let mut command = Command::new(tpuscope());
    command.args(["capture", "--target", &server.at, "--duration", "1ms", "--output"]).arg(output);
    command
}

/// A real trace, recorded once and kept, and a copy that is large enough.
fn large_trace() -> PathBuf {
    let megabytes: u64 = env::var("BENCH_TRACE_MB").map_or(500, |text| text.parse().unwrap());
    let folder = workspace().join("target/bench-data");
    fs::create_dir_all(&folder).unwrap();
    let large = folder.join(format!("capture-{megabytes}.pb"));
    let small = large.with_extension("small.pb");
    if large.exists() && small.exists() {
        return large;
    }
    let job = JaxJob::new().step_ms(1).calls(50_000).start();
    let recorded = folder.join("recorded");
    let _ = fs::remove_dir_all(&recorded);
    let mut command = Command::new(tpuscope());
    command.args(["capture", "--duration", "4s", "--python-tracer-level", "1", "--session", "s", "--output"]);
    assert!(command.arg(&recorded).args(["--target", &job.target()]).status().unwrap().success());
    drop(job);
    let session = recorded.join("plugins/profile/s");
    let part = fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path());
    let bytes = fs::read(part.filter(|path| path.extension().is_some_and(|end| end == "pb")).last().unwrap())
        .unwrap();
    println!("recorded {:.1} MiB of a real job with the python tracer on", bytes.len() as f64 / MIB);
    let mut file = File::create(&large).unwrap();
    let mut written = 0;
    while written < megabytes << 20 {
        file.write_all(&bytes).unwrap();
        written += bytes.len() as u64;
    }
    let job = JaxJob::new().start();
    let _ = fs::remove_dir_all(&recorded);
    let mut command = Command::new(tpuscope());
    command.args(["capture", "--duration", "100ms", "--session", "s", "--output"]).arg(&recorded);
    assert!(command.args(["--target", &job.target()]).status().unwrap().success());
    let part = fs::read_dir(recorded.join("plugins/profile/s")).unwrap().map(|entry| entry.unwrap().path());
    fs::copy(part.filter(|path| path.extension().is_some_and(|end| end == "pb")).last().unwrap(), &small)
        .unwrap();
    large
}

/// A process that serves one trace as a profiler does; killed on drop.
struct Server {
    child: std::process::Child,
    at: String,
}

impl Server {
    fn start(trace: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        let mut child = command.arg("serve").arg(trace).stdout(Stdio::piped()).spawn().unwrap();
        let mut at = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut at).unwrap();
        Self { child, at: at.trim().to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn serve(trace: PathBuf) {
    let trace = fs::read(trace).unwrap();
    let mut field = BytesMut::new();
    field.put_u8(0x42);
    prost::encoding::encode_varint(trace.len() as u64, &mut field);
    let mut answer = BytesMut::with_capacity(trace.len() + 16);
    answer.put_u8(0);
    answer.put_u32(u32::try_from(field.len() + trace.len()).unwrap());
    answer.put(field);
    answer.put(&trace[..]);
    profile_server::serve(answer.freeze()).await;
}

/// What any HTTP/2 client does: takes the body as it comes, with windows as large as ours.
async fn download(at: String, file: Option<PathBuf>) {
    let stream = TcpStream::connect(&at).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(8 << 20)
        .initial_connection_window_size(8 << 20)
        .max_frame_size(256 << 10)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    let request =
        http::Request::post(format!("http://{at}/tensorflow.ProfilerService/Profile")).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let mut file = file.map(|file| File::create(file).unwrap());
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        if let Some(file) = &mut file {
            file.write_all(&data).unwrap();
        }
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    if let Some(file) = file {
        file.sync_all().unwrap();
    }
}
