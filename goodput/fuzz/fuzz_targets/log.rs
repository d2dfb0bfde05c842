//! Arbitrary log lines into the line reader, both ledgers and every kind of query: no panic, and the strict
//! ledger's invariants hold.
#![no_main]

use goodput::{
    answer::{Answer, ask},
    badput::{BadputType, Buckets},
    entry::{Entry, Line, Reader},
    exact::{Calculator, Options},
    export::Labels,
    log::Log,
    query::Query,
    strict,
};
use libfuzzer_sys::fuzz_target;

fn lost(buckets: &Buckets) -> f64 {
    buckets
        .iter()
        .filter(|(kind, _)| *kind != BadputType::DataLoadingAsync)
        .map(|(_, amount)| amount.sum())
        .sum()
}

fn check(answer: &Answer) {
    let (goodput, productive, lost, total) = match answer {
        Answer::Job(job) => (
            job.goodput_percent,
            job.productive_seconds,
            lost(&job.unproductive_seconds),
            job.total_elapsed_seconds,
        ),
        Answer::Window(window) => {
            (window.goodput_percent, window.goodput_percent, lost(&window.badput_percent), 100.0)
        }
        Answer::Failed(_) => return,
    };
    assert!((0.0..=100.0).contains(&goodput), "{goodput}");
    if total > 0.0 {
        assert!((productive + lost - total).abs() <= 1e-6 + total * 1e-9, "{productive} + {lost}: {total}");
    }
}

// The first line asks; the others are the log.
fuzz_target!(|data: &[u8]| {
    let mut lines = data.split(|byte| *byte == b'\n');
    let reader = Reader::new("j");
    let queries: Vec<Query> = lines.next().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
    let mut entries: Vec<Entry> = Vec::new();
    for line in lines {
        if let Ok(Line::Ours(entry)) = reader.line(line) {
            entries.push(*entry);
        }
    }
    let labels = Labels {
        location: "l".into(),
        workload_id: "j".into(),
        replica_id: "0".into(),
        accelerator_type: "a".into(),
        cluster_name: None,
    };
    let backwards: Vec<Entry> = entries.iter().rev().cloned().collect();
    let log = Log::from_entries(entries.clone()).expect("few entries");
    let elastic = log.is_elastic();
    let mut calculator = Calculator::new(Options { elastic, ..Options::default() });
    for query in queries.iter().take(16) {
        let exact = ask(&mut calculator, &log, query, &labels);
        serde_json::to_vec(&exact).expect("numbers that JSON can hold");
        let answer = strict::ask(&entries, query, &labels);
        check(&answer.answer);
        let other = strict::ask(&backwards, query, &labels);
        assert_eq!(serde_json::to_value(&answer).unwrap(), serde_json::to_value(&other).unwrap());
    }
});
