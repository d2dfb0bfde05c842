//! The first goodput query over 20,000 steps, and over 2,000 custom events and 100 disruptions, against the
//! real library on the same entries in the same run; the cost of each new step; peak memory.
//!
//! Both sides start from entries in memory: no file and no network is in the times.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::{fs, time::Instant};

use benches::goodput_library;
use goodput::{
    entry::{EntryParser, LogEntry, ParsedLine},
    exact::{Calculator, CalculatorOptions},
    log::EventLog,
    time::Micros,
};
use serde_json::{Value, json};

const START: f64 = 1_772_323_200.0;
/// New steps whose cost is measured.
const NEW_STEPS: usize = 50;
/// Our first query is measured so often; the median counts.
const ROUNDS: usize = 21;
/// What is promised.
const RATIO: f64 = 50.0;

struct Job {
    payloads: Vec<(f64, Value)>,
    now: f64,
}

impl Job {
    fn push(&mut self, payload: Value) {
        self.payloads.push((self.now, payload));
    }

    /// `steps` steps; every `lose_every` steps a crash that loses 40; a custom event every `custom_every`.
    fn new(steps: i64, lose_every: i64, custom_every: i64) -> Self {
        let mut job = Self { payloads: Vec::new(), now: START };
        job.push(json!({ "job_start_time": START }));
        job.now += 30.0;
        let (mut step, mut next_crash) = (0, lose_every);
        while step < steps {
            let now = job.now;
            job.push(json!({ "step_count": step, "step_start_time": now }));
            if step % custom_every == custom_every - 1 {
                for edge in ["start", "end"] {
                    job.now += 0.25;
                    let mut event = json!({ "custom_badput_event_type": format!("kind {}", step % 7) });
                    event[format!("custom_badput_event_{edge}_time")] = job.now.into();
                    job.push(event);
                }
            }
            job.now += 1.5 + 0.01 * f64::from(u8::try_from(step % 17).unwrap());
            step += 1;
            if step == next_crash {
                next_crash += lose_every;
                step -= 40;
                job.now += 120.0;
                let now = job.now;
                job.push(json!({ "job_start_time": now }));
                job.now += 30.0;
            }
        }
        job
    }

    /// Steps that come one by one after the first query; returns the times of asking.
    fn go_on(&mut self, first: i64) -> Vec<f64> {
        let mut asked = vec![self.now];
        for step in first..first + i64::try_from(NEW_STEPS).unwrap() {
            self.now += 1.0;
            let now = self.now;
            self.push(json!({ "step_count": step, "step_start_time": now }));
            self.now += 0.5;
            asked.push(self.now);
        }
        asked
    }

    fn rows(&self) -> Vec<Value> {
        let rows = self.payloads.iter().enumerate().map(|(at, (time, payload))| {
            let mut payload = payload.clone();
            payload["job_name"] = "bench".into();
            json!({ "log_timestamp": time, "insert_id": format!("{at:08}"), "payload": payload })
        });
        rows.collect()
    }
}

fn entries(rows: &[Value]) -> Vec<LogEntry> {
    let reader = EntryParser::new("bench");
    let read = rows.iter().map(|row| {
        let time = Micros::from_seconds(row["log_timestamp"].as_f64().unwrap()).unwrap().to_string();
        let (time, id, payload) = (time.replacen(' ', "T", 1), &row["insert_id"], &row["payload"]);
        let line = format!(r#"{{"timestamp":"{time}","insertId":{id},"jsonPayload":{payload}}}"#);
        match reader.parse(line.as_bytes()).unwrap() {
            ParsedLine::Entry(entry) => *entry,
            ParsedLine::Skipped(reason) => panic!("{reason:?}: {line}"),
        }
    });
    read.collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn peak_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Measures one job on both sides; returns whether the promise holds.
fn compare(name: &str, mut job: Job, next_step: i64) -> bool {
    let asked = job.go_on(next_step);
    let rows = job.rows();
    let entries = entries(&rows);
    let at = |seconds: f64| Micros::from_seconds(seconds).unwrap();
    let mut firsts = Vec::new();
    let mut news = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..ROUNDS {
        let given = entries.clone();
        let began = Instant::now();
        let log = EventLog::from_entries(given).unwrap();
        let mut calculator = Calculator::new(CalculatorOptions::default());
        let first = calculator.cumulative(&log, at(asked[0]), None).unwrap();
        firsts.push(began.elapsed().as_secs_f64());
        answers = vec![first.goodput_percent];
        for now in &asked[1..] {
            let began = Instant::now();
            let answer = calculator.cumulative(&log, at(*now), None).unwrap();
            news.push(began.elapsed().as_secs_f64());
            answers.push(answer.goodput_percent);
        }
    }
    let peer = goodput_library::ask(&rows, &asked);
    for (ours, theirs) in answers.iter().zip(peer["goodput_percent"].as_array().unwrap()) {
        assert!((ours - theirs.as_f64().unwrap()).abs() < 1e-6, "the answers differ");
    }
    let seconds: Vec<f64> = peer["seconds"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
    let (first, new) = (median(firsts), median(news));
    let ratio = seconds[0] / first;
    println!("goodput, {name}, {} entries:", rows.len());
    println!(
        "  first query    ours {:8.3} ms  library {:8.1} ms  ratio {ratio:.0} (promised {RATIO:.0})",
        first * 1e3,
        seconds[0] * 1e3
    );
    let theirs = median(seconds[1..].to_vec());
    println!(
        "  each new step  ours {:8.3} ms  library {:8.1} ms  ratio {:.0}",
        new * 1e3,
        theirs * 1e3,
        theirs / new
    );
    let peak = peer["peak_kib"].as_f64().unwrap() / 1024.0;
    println!(
        "  peak memory    ours {:.0} MiB (both sides' input included)  library {peak:.0} MiB",
        peak_mib()
    );
    ratio >= RATIO
}

fn main() {
    let plain = compare("20,000 steps", Job::new(20_000, i64::MAX, 500), 20_000);
    let heavy = compare("2,000 custom events and 100 disruptions", Job::new(20_000, 200, 12), 20_000);
    assert!(plain && heavy, "the promise does not hold");
}
