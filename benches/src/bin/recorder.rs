//! The recorder beside its peers, in one run: a window beside one of xprof's own client, draining beside none (pairs, ABBA), the
//! CPU of recording beside gzip -1 of the same bytes, a snapshot beside a bare gunzip of its segments.
//!
//! `RECORDER_BENCH_SCALE` (default 1) is how much of its full length each part has: 0.1 shows that the bench works.

use benches::recorder::{drain, recording, snapshot, windows};

fn main() {
    let parts = [windows::windows as fn() -> bool, drain::drain, recording::recording, snapshot::snapshot];
    let kept: Vec<bool> = parts.into_iter().map(|part| part()).collect();
    if kept.contains(&false) {
        std::process::exit(1);
    }
}
