//! One mark from Python beside a bare `send` of the same bytes and beside the library's own call; and the live answer about a
//! job of 20,000 steps beside the library's, after each new step.
//!
//! Up to 0.0.16 the library's call is an RPC. Since 0.2.0 it leaves the RPC to a thread of the same program, so there the CPU time of
//! the whole program is compared.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::{
    ffi::OsStr,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use benches::{
    goodput_library::{self, peers, python, workspace},
    promise,
};
use fakes::{fake_host::FakeHost, running_agent::RunningAgent};
use goodput::{answer::LedgerAnswer, export::SeriesLabels};
use marks::ledgers::{MarkAnswer, MarkLedger, MarkLedgerQuestion, MarkLedgers};
use model::time::{Clock, ManualClock, Timestamp};
use serde_json::{Value, json};
use store::{
    marks::{MarkBatch, MarkLimits, Marks, NewMark},
    settings::MinFree,
    state::StateDb,
};

const CALLS: &str = "2000";
/// Calls that write at once.
const FEW_CALLS: &str = "300";
/// The last version of the library that writes at once, not in a thread.
const WRITES_AT_ONCE: &str = "0.0.16";
/// What is promised.
const SENDS: f64 = 3.0;
const LIBRARY_CALLS: f64 = 0.1;
/// The library leaves its work to a thread of the program: all of it is compared.
const LIBRARY_CPU: f64 = 0.2;
const FASTER: f64 = 100.0;

const START: f64 = 1_772_323_200.0;
const STEPS: u32 = 20_000;
/// New steps, after each of which a question is asked.
const NEW_STEPS: u32 = 30;
/// Marks that are stored at once.
const BATCH: usize = 500;

/// What the program of the peers measures, with the library in this version or, without one, the newest.
fn measured(version: Option<&str>, arguments: &[&OsStr]) -> impl Fn(&str) -> f64 + use<> {
    let mut path = workspace().join("python").into_os_string();
    if let Some(version) = version {
        path.push(":");
        path.push(peers().join("goodput-versions").join(version));
    }
    let output = Command::new(python())
        .arg(workspace().join("tests/peers/marks_calls.py"))
        .args(arguments)
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    move |name| figures[name].as_f64().unwrap()
}

fn calls() -> bool {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[marks]\nmax_rate = 100000\n");
    let socket = agent.home().path().join("marks.sock");
    let ours = measured(None, &["agent".as_ref(), socket.as_os_str(), CALLS.as_ref()]);
    let library = measured(None, &["library".as_ref(), CALLS.as_ref()]);
    let at_once = measured(Some(WRITES_AT_ONCE), &["library".as_ref(), FEW_CALLS.as_ref()]);
    assert!(ours("lost") < 1.0, "marks were dropped");
    let us = |nanoseconds: f64| nanoseconds / 1e3;
    println!(
        "one mark from Python, medians in us: send {:.1}, step {:.1}, sink {:.1}, a logger that does nothing {:.1}",
        us(ours("send")),
        us(ours("step")),
        us(ours("sink")),
        us(ours("nothing"))
    );
    println!(
        "  the library writes in a thread {:.1}, at once {:.1}",
        us(library("call")),
        us(at_once("call"))
    );
    println!(
        "CPU of the program for one mark, in us: sink {:.1}, library {:.1}",
        us(ours("cpu")),
        us(library("cpu"))
    );
    // Beside the library's thread a mark that is sent at all cannot be had for a tenth: this is the least.
    let least = (ours("nothing") + ours("send")) / library("call");
    println!(
        "the sink over the library's call that leaves the work to a thread: {:.3}; a recorder and a bare send {least:.3}",
        ours("sink") / library("call")
    );
    let kept = [
        promise::at_most("`Recorder.step` over a bare send", ours("step") / ours("send"), SENDS),
        promise::at_most("the recorder with the sink over a bare send", ours("sink") / ours("send"), SENDS),
        promise::at_most(
            "the sink over the library's logger that writes at once",
            ours("sink") / at_once("call"),
            LIBRARY_CALLS,
        ),
        promise::at_most(
            "CPU of the program for a mark, over the library's",
            ours("cpu") / library("cpu"),
            LIBRARY_CPU,
        ),
    ];
    kept.iter().all(|kept| *kept)
}

/// The entries of the job: a start, and a step every second and a half.
fn entries() -> Vec<(f64, Value)> {
    let mut entries = vec![(START, json!({ "job_name": "bench", "job_start_time": START }))];
    for step in 0..STEPS + NEW_STEPS {
        let at = START + 30.0 + 1.5 * f64::from(step);
        entries.push((at, json!({ "job_name": "bench", "step_count": step, "step_start_time": at })));
    }
    entries
}

/// The library's seconds for a question after each new step, and its answers.
fn library(entries: &[(f64, Value)], asked: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let rows = entries.iter().enumerate().map(|(at, (time, payload))| {
        json!({ "log_timestamp": time, "insert_id": format!("{at:08}"), "payload": payload })
    });
    let peer = goodput_library::ask(&rows.collect::<Vec<_>>(), asked);
    let numbers = |name: &str| peer[name].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    (numbers("seconds"), numbers("goodput_percent"))
}

fn question() -> MarkLedgerQuestion {
    MarkLedgerQuestion {
        ledger: MarkLedger::Exact,
        now: None,
        window: None,
        elastic: false,
        labels: SeriesLabels {
            location: "us-central1-a".into(),
            workload_id: "bench".into(),
            replica_id: "0".into(),
            accelerator_type: "TPU-v6e".into(),
            cluster_name: None,
        },
    }
}

struct Store {
    _folder: tempfile::TempDir,
    /// Stands at the time of the question.
    clock: Arc<ManualClock>,
    marks: Arc<Marks>,
    next: u64,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(nanoseconds(START)));
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let keep = Duration::from_secs(86_400);
        let limits = MarkLimits { keep, max_bytes: 1 << 30, min_free: MinFree::Share(0) };
        let marks = Arc::new(Marks::new(folder.path(), db, limits, clock.clone()));
        Self { _folder: folder, clock, marks, next: 1 }
    }

    fn add(&mut self, entries: &[(f64, Value)]) {
        for entries in entries.chunks(BATCH) {
            let marks = entries.iter().map(|(at, payload)| {
                let at = nanoseconds(*at);
                Some(NewMark { job: "bench".into(), workload: None, at, payload: payload.to_string() })
            });
            let batch = MarkBatch {
                uid: 0,
                numbered: Some(("r".into(), self.next)),
                marks: marks.collect(),
                refused_of: Vec::new(),
            };
            self.next += entries.len() as u64;
            self.marks.append(&[batch]).unwrap();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "half seconds of this century")]
fn nanoseconds(seconds: f64) -> Timestamp {
    Timestamp((seconds * 2.0) as i64 * 500_000_000)
}

fn answers() -> bool {
    let entries = entries();
    let (old, new) = entries.split_at(entries.len() - usize::try_from(NEW_STEPS).unwrap());
    let asked: Vec<f64> = old.last().into_iter().chain(new).map(|(at, _)| at + 0.5).collect();
    let (library_seconds, library_answers) = library(&entries, &asked);
    let mut store = Store::new();
    store.add(old);
    let job = store.marks.jobs(Some("bench"), None).unwrap()[0].number;
    let ledgers = MarkLedgers::new(Arc::clone(&store.marks), store.clock.clone());
    let mut seconds = Vec::new();
    for (at, (now, theirs)) in asked.iter().zip(&library_answers).enumerate() {
        if at > 0 {
            store.add(&new[at - 1..at]);
        }
        store.clock.step(nanoseconds(*now).0 - store.clock.now().0);
        let start = Instant::now();
        let (_, answer) = ledgers.ask(job, &question()).unwrap();
        let MarkAnswer::Exact(answer) = answer else { panic!("exact") };
        let text = serde_json::to_string(&answer).unwrap();
        seconds.push(start.elapsed().as_secs_f64());
        let LedgerAnswer::Job(answer) = answer else { panic!("an answer: {text}") };
        assert!((answer.goodput_percent - theirs).abs() < 1e-6, "the answers differ");
    }
    let first = (seconds[0] * 1e3, library_seconds[0] * 1e3);
    let (ours, theirs) = (median(&seconds[1..]), median(&library_seconds[1..]));
    println!(
        "the first answer about {STEPS} steps: ours, read from the disk, {:.1} ms, library {:.1} ms",
        first.0, first.1
    );
    println!("after each new step: ours {:.3} ms, library {:.1} ms", ours * 1e3, theirs * 1e3);
    promise::at_least("times faster than the library, live", theirs / ours, FASTER)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let (calls, answers) = (calls(), answers());
    if calls && answers { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
