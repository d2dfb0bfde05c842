//! Arbitrary log lines into the line reader, both ledgers and every kind of query: no panic, and the strict
//! ledger's invariants hold.
#![no_main]

use goodput::{
    answer::{LedgerAnswer, ask},
    badput::{BadputType, Buckets},
    entry::{LogEntry, ParsedLine, EntryParser},
    exact::{Calculator, CalculatorOptions},
    export::SeriesLabels,
    log::EventLog,
    query::LedgerQuery,
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

fn check(answer: &LedgerAnswer) {
    let (goodput, productive, lost, total) = match answer {
        LedgerAnswer::Job(job) => (
            job.goodput_percent,
            job.productive_seconds,
            lost(&job.unproductive_seconds),
            job.total_elapsed_seconds,
        ),
        LedgerAnswer::Window(window) => {
            (window.goodput_percent, window.goodput_percent, lost(&window.badput_percent), 100.0)
        }
        LedgerAnswer::Failed(_) => return,
    };
    assert!((0.0..=100.0).contains(&goodput), "{goodput}");
    if total > 0.0 {
        assert!((productive + lost - total).abs() <= 1e-6 + total * 1e-9, "{productive} + {lost}: {total}");
    }
}

// The first line asks; the others are the log.
fuzz_target!(|data: &[u8]| {
    let mut lines = data.split(|byte| *byte == b'\n');
    let parser = EntryParser::new("j");
    let queries: Vec<LedgerQuery> = lines.next().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
    let mut entries: Vec<LogEntry> = Vec::new();
    for line in lines {
        if let Ok(ParsedLine::Entry(entry)) = parser.parse(line) {
            entries.push(*entry);
        }
    }
    let labels = SeriesLabels {
        location: "l".into(),
        workload_id: "j".into(),
        replica_id: "0".into(),
        accelerator_type: "a".into(),
        cluster_name: None,
    };
    let log = EventLog::from_entries(entries).expect("few entries");
    // Of two entries with equal time and id the log has kept one.
    let backwards: Vec<LogEntry> = {
        let mut entries: Vec<LogEntry> = log.iter().cloned().collect();
        entries.reverse();
        entries
    };
    let backwards = EventLog::from_entries(backwards).expect("few entries");
    let elastic = log.is_elastic();
    let mut calculator = Calculator::new(CalculatorOptions { elastic, ..CalculatorOptions::default() });
    for query in queries.iter().take(16) {
        let exact = ask(&mut calculator, &log, query, &labels);
        serde_json::to_vec(&exact).expect("numbers that JSON can hold");
        let answer = strict::ask(&log, query, &labels);
        check(&answer.answer);
        let other = strict::ask(&backwards, query, &labels);
        assert_eq!(serde_json::to_value(&answer).unwrap(), serde_json::to_value(&other).unwrap());
    }
});
