//! The recorder beside its peers, in one run: a window beside one of xprof's own client, draining beside none (pairs, ABBA), the
//! CPU of recording beside gzip -1 of the same bytes, a snapshot beside a bare gunzip of its segments.
//!
//! `RECORDER_BENCH_SCALE` (default 1) is how much of its full length each part has: 0.1 shows that the bench works.
//! `RECORDER_BENCH_PART` runs one of `windows`, `drain`, `recording` and `snapshot`.

use benches::recorder::{drain, recording, snapshot, windows};

fn main() {
    let parts = [
        ("windows", windows::windows as fn() -> bool),
        ("drain", drain::drain),
        ("recording", recording::recording),
        ("snapshot", snapshot::snapshot),
    ];
    let only = std::env::var("RECORDER_BENCH_PART").ok();
    let wanted = parts.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name));
    let kept: Vec<bool> = wanted.map(|(_, part)| part()).collect();
    if kept.is_empty() || kept.contains(&false) {
        std::process::exit(1);
    }
}
