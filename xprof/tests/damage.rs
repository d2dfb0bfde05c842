//! The analysis on damaged traces: an error or figures, never a panic.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use xprof::{
    analysis::{self, Rules},
    reader::Reader,
};

const FILES: [&str; 4] = [
    "multi_module_no_steps_devclock/t1v-n-iiii-w-0.xplane.pb",
    "sparse_core/t1v-n-llll-w-0.xplane.pb",
    "two_hosts_late/t1v-n-cccc-w-1.xplane.pb",
    "host_cpu_jax/workstation.xplane.pb",
];

fn vector(file: &str) -> Vec<u8> {
    let vectors: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden/xplane");
    fs::read(vectors.join(file)).expect("vendored vector")
}

/// Reads `bytes` as two hosts of one session; how many could be read.
fn analyse(bytes: &[u8], rules: Rules) -> usize {
    let read = |host: &str| {
        let mut reader = Reader::open(Cursor::new(bytes)).ok()?;
        analysis::read(&mut reader, host, true, "file", rules).ok()
    };
    let hosts: Vec<_> = ["a", "b"].iter().filter_map(|host| read(host)).collect();
    let report = analysis::session("s".to_owned(), hosts, Vec::new(), rules, None);
    report.hosts.len()
}

#[test]
fn a_trace_cut_anywhere_never_panics() {
    let bytes = vector(FILES[3]);
    for cut in 0..bytes.len() {
        analyse(&bytes[..cut], Rules::True);
        analyse(&bytes[..cut], Rules::Xprof);
    }
    assert_eq!(analyse(&bytes, Rules::True), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn changed_bytes_never_panic(
        file in prop::sample::select(&FILES[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = vector(file);
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        analyse(&bytes, Rules::True);
        analyse(&bytes, Rules::Xprof);
    }
}
