//! Uploads to a Cloud Storage double: of one large session, beside a bare writer of the bucket library that sends the
//! same file, in turns; and how late the sampler is beside a busy upload, beside a bare timer in the same seconds.
//!
//! `UPLOAD_BENCH_MB` is the size of the session (default 1024), `UPLOAD_BENCH_SECONDS` how long the ticks are watched
//! (default 60).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

use std::{
    env,
    fs::{self, File},
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use benches::{daemon::Daemon, data, promise, tpuscope};
use fakes::{
    bare_store::bare_store,
    fake_gcs::{FakeGcs, GcsContents},
    fake_grpc::{GrpcServer, Reply, ServerAddress},
    fake_host_service::metrics,
};
use object_store::{buffered::BufWriter, path::Path as ObjectPath};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use xprof::session::{HostEntry, Manifest, PartFacts, SessionWriter, Tool};

const PAIRS: usize = 5;
/// What is promised.
const LEAST_OF_BARE: f64 = 0.9;
const MOST_GROWTH_MIB: f64 = 40.0;
const MOST_OF_BARE_LATENESS: f64 = 1.5;
const MIB: f64 = 1_048_576.0;
/// The time between two ticks.
const TICK: Duration = Duration::from_millis(250);
/// As the agent's unit has it.
const NICE: &str = "5";
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(600);
/// Enough sessions that the upload of all of them is not over before the ticks are watched.
const BUSY_SESSIONS: usize = 200;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The other processes of this bench.
        ["bare", url, file] => bare(url, Path::new(file)),
        ["timer", address] => timer(address.parse().unwrap()),
        _ => {
            let kept = throughput();
            if !(lateness() && kept) {
                std::process::exit(1);
            }
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn until(what: &str, mut check: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !check() {
        assert!(begin.elapsed() < LIMIT, "waited for {what}");
        sleep(Duration::from_millis(1));
    }
}

/// A session of one large part, made once and kept.
struct Session {
    part: PathBuf,
    manifest: Value,
}

impl Session {
    fn make() -> Self {
        let megabytes = number("UPLOAD_BENCH_MB", 1024);
        let logdir = data().join(format!("upload-{megabytes}"));
        let folder = logdir.join("plugins/profile/one");
        if !folder.join("manifest.json").exists() {
            let _ = fs::remove_dir_all(&logdir);
            let writer = SessionWriter::create(&logdir, "one".parse().unwrap()).unwrap();
            let mut part = writer.part(&"host".parse().unwrap()).unwrap();
            let mut piece = vec![0; 1 << 20];
            for number in 0..megabytes {
                piece.iter_mut().zip(number * 7919..).for_each(|(byte, at)| *byte = at.to_le_bytes()[0]);
                part.write_all(&piece).unwrap();
            }
            let entry = part.commit(PartFacts::default()).unwrap();
            let host = HostEntry {
                host: "host".parse().unwrap(),
                parts: vec![entry],
                clock: None,
                warnings: vec![],
            };
            let manifest = Manifest {
                version: 1,
                session: "one".to_owned(),
                id: None,
                tool: Tool::this(),
                created: None,
                window: None,
                tracer_levels: None,
                options: std::collections::BTreeMap::new(),
                at_step: None,
                hosts: vec![host],
                missing: vec![],
                warnings: vec![],
            };
            writer.finish(manifest).unwrap();
        }
        let manifest = serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
        Self { part: folder.join("host.xplane.pb"), manifest }
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.part).unwrap().len()
    }

    /// Reads the part once, so that whoever reads it next finds it in memory.
    fn warm(&self) {
        io::copy(&mut File::open(&self.part).unwrap(), &mut io::sink()).unwrap();
    }

    /// Puts a session of this part where an agent finds it.
    fn stage(&self, home: &Path, number: usize) {
        let name = format!("session-{number}");
        let folder = home.join("state/sessions/plugins/profile").join(&name);
        fs::create_dir_all(&folder).unwrap();
        fs::hard_link(&self.part, folder.join("host.xplane.pb")).unwrap();
        let mut manifest = self.manifest.clone();
        manifest["session"] = json!(name);
        manifest["id"] = json!(format!("{number:032x}"));
        fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    }
}

/// An agent that uploads all that it finds.
struct Agent {
    daemon: Daemon,
    pid: u32,
    _home: TempDir,
}

impl Agent {
    fn start(server: &FakeGcs, settings: &str, stage: impl FnOnce(&Path)) -> Self {
        // On the disk of the part, which is linked into it.
        let home = tempfile::tempdir_in(data()).unwrap();
        stage(home.path());
        fs::create_dir_all(home.path().join("proc")).unwrap();
        let text = format!(
            "[agent]\nstate_dir = '{0}/state'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{0}/agent.sock'\n\
             [paths]\nprocfs = '{0}/proc'\n[store]\nmax_size = '10TiB'\n\
             [[destination]]\nname = 'bucket'\nurl = 'gs://traces/runs'\nupload = 'always'\n\
             credentials = '{1}'\n{settings}",
            home.path().display(),
            server.credentials_file().display(),
        );
        let config = home.path().join("agent.toml");
        fs::write(&config, text).unwrap();
        let log = File::create(home.path().join("log")).unwrap();
        let mut command = Command::new("nice");
        command.args(["-n", NICE]).arg(tpuscope()).args(["agent", "--config"]).arg(&config);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let pid = child.id();
        let socket = home.path().join("agent.sock");
        until("the agent", || socket.exists());
        Self { daemon: child.into(), pid, _home: home }
    }

    /// A figure of its memory in MiB.
    fn mib(&self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().split(' ').next().unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

fn server() -> FakeGcs {
    FakeGcs::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), GcsContents::Discarded)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn throughput() -> bool {
    let session = Session::make();
    let size = session.bytes() as f64 / MIB;
    let at_rest = {
        let agent = Agent::start(&server(), "", |_| {});
        // Until all that it does at its start is done.
        sleep(Duration::from_secs(3));
        agent.mib("VmHWM")
    };
    let (mut ratios, mut ours, mut bares, mut peak) = (vec![], vec![], vec![], 0_f64);
    for number in 0..PAIRS {
        let (our, mib) = our_upload(&session, number);
        let bare = bare_upload(&session);
        println!("  pair {number}: tpuscope {:.0} MiB/s, bare {:.0} MiB/s", size / our, size / bare);
        ratios.push(bare / our);
        ours.push(size / our);
        bares.push(size / bare);
        peak = peak.max(mib);
    }
    println!("upload of {size:.0} MiB, median of {PAIRS} pairs");
    println!("  tpuscope, in parts, compared afterwards:   {:.0} MiB/s", median(ours));
    println!("  a bare BufWriter of the bucket library:    {:.0} MiB/s", median(bares));
    println!("  memory of an agent at rest: {at_rest:.1} MiB, at most during the uploads: {peak:.1} MiB");
    let rate = promise::at_least("of the rate of a bare writer", median(ratios), LEAST_OF_BARE);
    promise::at_most("MiB more during an upload", peak - at_rest, MOST_GROWTH_MIB) && rate
}

/// Seconds from the first request to the last, and the agent's peak memory in MiB.
fn our_upload(session: &Session, number: usize) -> (f64, f64) {
    let server = server();
    session.warm();
    let agent = Agent::start(&server, "", |home| session.stage(home, number));
    until("the first request", || server.request_count() > 0);
    let begin = Instant::now();
    let manifest = format!("runs/plugins/profile/session-{number}/manifest.json");
    until("the manifest", || server.has(&manifest));
    let took = begin.elapsed().as_secs_f64();
    assert_eq!(
        server.objects()[&format!("runs/plugins/profile/session-{number}/host.xplane.pb")].size,
        session.bytes()
    );
    (took, agent.mib("VmHWM"))
}

fn bare_upload(session: &Session) -> f64 {
    let server = server();
    session.warm();
    let mut command = Command::new("nice");
    command
        .args(["-n", NICE])
        .arg(env::current_exe().unwrap())
        .args(["bare", &server.url()])
        .arg(&session.part);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    assert_eq!(server.objects()["bare"].size, session.bytes());
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Sends a file as the library does it by itself, and says how many seconds that took.
fn bare(url: &str, file: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begin = Instant::now();
    runtime.block_on(async {
        let mut writer = BufWriter::new(Arc::new(bare_store(url, 0)), ObjectPath::from("bare"));
        let mut file = tokio::fs::File::open(file).await.unwrap();
        file.set_max_buf_size(1 << 20);
        tokio::io::copy_buf(&mut tokio::io::BufReader::with_capacity(1 << 20, file), &mut writer)
            .await
            .unwrap();
        writer.shutdown().await.unwrap();
    });
    println!("{}", begin.elapsed().as_secs_f64());
}

/// When ticks arrived.
type Arrivals = Arc<Mutex<Vec<Instant>>>;

fn lateness() -> bool {
    let session = Session::make();
    let seconds = number("UPLOAD_BENCH_SECONDS", 60);
    let (ours, bares) = (Arrivals::default(), Arrivals::default());
    let noted = ours.clone();
    let handler = move |_: &str, _: &[u8]| {
        noted.lock().unwrap().push(Instant::now());
        Reply::of(&metrics(8, 1))
    };
    let service =
        GrpcServer::start(ServerAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))), Arc::new(handler));
    let timer = start_timer(bares.clone());
    let server = server();
    let settings = format!(
        "[sampler]\ninterval = '{0}ms'\nidle_interval = '{0}ms'\n[[workload.endpoints]]\nkind = 'host_service'\n\
         address = '{1}'\n",
        TICK.as_millis(),
        service.address(),
    );
    let agent = Agent::start(&server, &settings, |home| {
        (0..BUSY_SESSIONS).for_each(|number| session.stage(home, number));
    });
    until("a part", || server.request_count() > 10);
    let from = Instant::now();
    sleep(Duration::from_secs(seconds));
    assert!(!server.has(&format!("runs/plugins/profile/session-{}/manifest.json", BUSY_SESSIONS - 1)));
    let sent: u64 = server.requests().iter().map(|request| request.received).sum();
    drop((agent.daemon, timer));
    let (ours, bares) = (late(&ours, from), late(&bares, from));
    println!("ticks beside an upload of {:.0} MiB/s, {seconds} s", sent as f64 / MIB / seconds as f64);
    for (who, late) in [("the sampler", &ours), ("a bare timer", &bares)] {
        println!(
            "  {who:<14} {:>5} ticks, late by {:.2} ms (median), {:.2} ms (p99), {:.2} ms (most)",
            late.len(),
            share(late, 0.5),
            share(late, 0.99),
            share(late, 1.0)
        );
    }
    let ratio = share(&ours, 0.99) / share(&bares, 0.99);
    promise::at_most("the sampler's lateness, as a share of a bare timer's", ratio, MOST_OF_BARE_LATENESS)
}

/// A process whose ticks arrive here as bytes.
fn start_timer(arrivals: Arrivals) -> Daemon {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut command = Command::new("nice");
    command.args(["-n", NICE]).arg(env::current_exe().unwrap()).arg("timer");
    let daemon = Daemon::start(command.arg(listener.local_addr().unwrap().to_string()));
    let mut stream = listener.accept().unwrap().0;
    thread::spawn(move || {
        while stream.read_exact(&mut [0]).is_ok() {
            arrivals.lock().unwrap().push(Instant::now());
        }
    });
    daemon
}

/// Sends a byte at each tick of an absolute schedule, as the sampler's is.
fn timer(address: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    runtime.block_on(async {
        let mut next = tokio::time::Instant::now();
        loop {
            next += TICK;
            tokio::time::sleep_until(next).await;
            if stream.write_all(&[1]).is_err() {
                return;
            }
        }
    });
}

/// Milliseconds that the arrivals after `from` were behind their schedule, in rising order. The earliest of them, beside
/// its place on the schedule, counts as punctual.
fn late(arrivals: &Arrivals, from: Instant) -> Vec<f64> {
    let arrivals = arrivals.lock().unwrap();
    let watched: Vec<_> = arrivals.iter().filter(|at| **at >= from).collect();
    assert!(watched.len() > 20, "too few ticks: {}", watched.len());
    let tick = TICK.as_secs_f64();
    let after = |at: &Instant| (*at - *watched[0]).as_secs_f64();
    let mut offsets: Vec<f64> =
        watched.iter().map(|at| after(at)).map(|after| after - (after / tick).round() * tick).collect();
    offsets.sort_by(f64::total_cmp);
    let earliest = offsets[0];
    offsets.into_iter().map(|offset| (offset - earliest) * 1000.0).collect()
}

fn share(sorted: &[f64], share: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let index = ((sorted.len() - 1) as f64 * share).round() as usize;
    sorted[index]
}
