//! The reader and the analysis, by both sets of rules, on arbitrary bytes.
//!
//! A panic, a hang or an allocation beyond libFuzzer's limit is a finding; an error is not.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use xprof::{
    analysis::{self, Rules},
    reader::{Index, Reader},
};

fuzz_target!(|bytes: &[u8]| {
    let scanned = Index::scan(bytes, None);
    for rules in [Rules::True, Rules::Xprof] {
        let Ok(mut reader) = Reader::open(Cursor::new(bytes)) else { continue };
        assert!(scanned.is_ok(), "what a file gives, a stream gives too");
        let Ok(trace) = analysis::read(&mut reader, "host", false, "file", rules) else { continue };
        let Ok(mut reader) = Reader::open(Cursor::new(bytes)) else { continue };
        let Ok(other) = analysis::read(&mut reader, "other", true, "file", rules) else { continue };
        // Two hosts, so that alignment and pairing run as well.
        let report = analysis::session("s".to_owned(), vec![trace, other], Vec::new(), rules, Some(3));
        assert_eq!(report.hosts.len(), 2);
    }
});
