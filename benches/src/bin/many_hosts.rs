//! `tpuscope capture --hosts` over 256 simulated hosts with bad clocks and networks: what it claims of clocks and starts, its time
//! beyond the window, and its memory; and how fast it copies one large part, beside a bare download over HTTP/2 and TLS.
//!
//! `TPUSCOPE_BENCH_HOSTS=1024` takes another number of hosts, and then shows the figures without the promises of 256.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use benches::{Cost, bare_http2::BareDownload, capture_window::median, measure, promise, tpuscope};
use fakes::{
    command::run,
    simulated_hosts::{BoundsCheck, SimulatedHosts, TrueHost},
};

/// The hosts for which the promises are.
const HOSTS: usize = 256;
/// Captures of all hosts.
const TRIALS: usize = 3;
/// The part of each host.
const PART: usize = 1 << 20;
/// How long before the window a host wants to know its start, as a real one with a near profiler.
const LEAD: Duration = Duration::from_millis(20);
/// The window.
const WINDOW: f64 = 1.0;
/// The large part of one host.
const LARGE: usize = 400_000_000;
/// Interleaved pairs of downloads.
const PAIRS: usize = 5;

const MIB: f64 = (1 << 20) as f64;

fn main() {
    benches::enter();
    let folder = tempfile::tempdir().unwrap();
    let identities = Identities::new(folder.path());
    let hosts = env::var("TPUSCOPE_BENCH_HOSTS").map_or(HOSTS, |hosts| hosts.parse().unwrap());
    let kept = [many(hosts, &identities), hosts != HOSTS || large(&identities)];
    if kept.contains(&false) {
        std::process::exit(1);
    }
}

/// Certificates of an agent at 127.0.0.1 and of an operator.
struct Identities<'f>(&'f Path);

impl<'f> Identities<'f> {
    fn new(folder: &'f Path) -> Self {
        for words in [
            &["certs", "init", "ca"][..],
            &["certs", "issue", "ca", "--agent", "127.0.0.1"],
            &["certs", "issue", "ca", "--operator", "bench"],
        ] {
            let ended = run(folder, words);
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
        Self(folder)
    }

    fn agent(&self) -> PathBuf {
        self.0.join("ca/127.0.0.1")
    }

    /// A capture of these hosts with a window of this length, which names the session.
    fn capture(&self, hosts: &SimulatedHosts, duration: &str, session: &str) -> Cost {
        let list = self.0.join("hosts");
        fs::write(&list, hosts.list()).unwrap();
        let (list, operator, out) =
            (list.display().to_string(), self.0.join("ca/bench").display().to_string(), self.out());
        let out = out.display().to_string();
        measure(
            &tpuscope(),
            &[
                "capture",
                "--hosts-file",
                &list,
                "--tls-dir",
                &operator,
                "--duration",
                duration,
                "--session",
                session,
                "--output",
                &out,
            ],
        )
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }

    fn session(&self, name: &str) -> PathBuf {
        self.out().join("plugins/profile").join(name)
    }
}

fn many(hosts: usize, identities: &Identities<'_>) -> bool {
    let seed = fastrand::u64(..);
    println!(
        "{hosts} hosts, clocks wrong by up to 10 s, delays of 0.2 to 20 ms, {TRIALS} captures, seed {seed}"
    );
    let mut random = fastrand::Rng::with_seed(seed);
    let truths: Vec<TrueHost> = (0..hosts).map(|_| TrueHost::random(&mut random)).collect();
    let simulated = SimulatedHosts::start(&truths, PART, LEAD, &identities.agent());
    let (mut beyond, mut peak, mut wrong, mut near) = (Vec::new(), 0_u64, 0, Vec::new());
    for trial in 0..TRIALS {
        let name = format!("trial-{trial}");
        let cost = identities.capture(&simulated, "1s", &name);
        let manifest = fs::read(identities.session(&name).join("manifest.json")).unwrap();
        let verdict = BoundsCheck::of(&serde_json::from_slice(&manifest).unwrap(), &simulated.starts());
        println!(
            "  {:.3} s beyond the window, {:.3} s of them after it, {:.1} MiB, {:.3} s CPU; largest error of a start {:.3} ms, {} \
             near hosts",
            cost.wall.as_secs_f64() - WINDOW,
            verdict.copied_after,
            cost.peak_rss as f64 / MIB,
            cost.cpu.as_secs_f64(),
            verdict.largest_error,
            verdict.near_errors.len()
        );
        wrong += verdict.wrong_offsets + verdict.wrong_starts;
        near.extend(verdict.near_p99());
        beyond.push(cost.wall.as_secs_f64() - WINDOW);
        peak = peak.max(cost.peak_rss);
        fs::remove_dir_all(identities.session(&name)).unwrap();
    }
    let honest = promise::at_most("clocks and starts outside of their stated bounds", wrong as f64, 0.0);
    if hosts != HOSTS {
        println!("  {:.2} ms beyond the window for each host", median(beyond) * 1000.0 / hosts as f64);
        return honest;
    }
    let kept = [
        honest,
        promise::at_least("captures with a host within 5 ms", near.len() as f64, 1.0),
        promise::at_most(
            "ms, p99 of the error of starts within 5 ms",
            near.into_iter().fold(0.0, f64::max),
            5.0,
        ),
        promise::at_most("seconds beyond the window", median(beyond), 1.5),
        promise::at_most("MiB of memory", peak as f64 / MIB, 96.0),
    ];
    !kept.contains(&false)
}

/// One large part, beside the download of the same bytes without anything else. The time of a capture of a small part is not
/// that of the copy.
fn large(identities: &Identities<'_>) -> bool {
    println!("a part of {} MB from one host, median of {PAIRS} interleaved pairs", LARGE / 1_000_000);
    let truth = [TrueHost { ahead_ns: 0, path: None }];
    let small = SimulatedHosts::start(&truth, PART, LEAD, &identities.agent());
    let large = SimulatedHosts::start(&truth, LARGE, LEAD, &identities.agent());
    let bare = BareDownload::start(LARGE, &identities.agent(), &identities.0.join("ca/bench"));
    let (mut ratios, mut more) = (Vec::new(), 0.0_f64);
    for pair in 0..PAIRS {
        let [first, second] = ["small", "large"].map(|size| format!("{size}-{pair}"));
        let base = identities.capture(&small, "1ms", &first);
        let cost = identities.capture(&large, "1ms", &second);
        let copy = cost.wall.saturating_sub(base.wall).as_secs_f64();
        let peer = bare.download(&identities.0.join("download")).as_secs_f64();
        println!(
            "  tpuscope {:.0} MB/s, bare {:.0} MB/s, {:.1} MiB more memory",
            LARGE as f64 / 1e6 / copy,
            LARGE as f64 / 1e6 / peer,
            (cost.peak_rss as f64 - base.peak_rss as f64) / MIB
        );
        ratios.push(peer / copy);
        more = more.max((cost.peak_rss as f64 - base.peak_rss as f64) / MIB);
        for session in [first, second] {
            fs::remove_dir_all(identities.session(&session)).unwrap();
        }
    }
    let kept = [
        promise::at_least("of the speed of a bare download", median(ratios), 0.8),
        promise::at_most("MiB more memory for the large part", more, 32.0),
    ];
    !kept.contains(&false)
}
