//! Eight times the input takes about eight times as long: measured as a ratio, never in seconds.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use goodput::entry::Reader;

/// What is linear grows 8 times, what is quadratic 64 times.
const MOST: u32 = 28;

/// The best of three: what disturbs a measurement only ever adds to it.
fn best<T>(work: impl Fn() -> T) -> Duration {
    let once = || {
        let began = Instant::now();
        black_box(work());
        began.elapsed()
    };
    (0..3).map(|_| once()).min().unwrap()
}

fn assert_linear<I, T>(small: usize, input: impl Fn(usize) -> I, work: impl Fn(&I) -> T) {
    let (small, large) = (input(small), input(small * 8));
    let (small, large) = (best(|| work(&small)), best(|| work(&large)));
    assert!(large < small * MOST, "{small:?} for one part, {large:?} for eight");
}

#[test]
fn a_payload_of_many_keys() {
    let line = |keys: usize| {
        let keys: String = (0..keys).map(|key| format!(r#","key{key}":{key}"#)).collect();
        format!(r#"{{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{{"job_name":"j"{keys}}}}}"#)
    };
    assert_linear(4_000, line, |line| Reader::new("j").line(line.as_bytes()).unwrap());
}
