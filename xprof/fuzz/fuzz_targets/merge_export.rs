//! Merge and export on arbitrary bytes: two segments, divided by a length that stands in front.
//!
//! A panic, a hang or an allocation beyond libFuzzer's limit is a finding; an error is not. What is merged must
//! read back with as many events, and what is exported must be JSON.

#![no_main]

use std::io::{self, Cursor};

use libfuzzer_sys::fuzz_target;
use xprof::{
    export::{ExportedHost, trace_events},
    input::{Input, ReadSeek},
    merge::merge,
    reader::Reader,
};

struct Bytes(Vec<u8>);

impl Input for Bytes {
    fn name(&self) -> String {
        "bytes".to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(Cursor::new(self.0.clone())))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((length, bytes)) = bytes.split_first_chunk() else { return };
    let at = usize::from(u16::from_le_bytes(*length)).min(bytes.len());
    let (first, second) = (Bytes(bytes[..at].to_vec()), Bytes(bytes[at..].to_vec()));
    for inputs in [&[&first as &dyn Input][..], &[&first, &second]] {
        let mut merged = Cursor::new(Vec::new());
        let Ok(report) = merge(inputs, &mut merged, &mut |_, _| {}) else { continue };
        let reader = Reader::open(Cursor::new(merged.into_inner())).expect("what is merged can be read");
        let lines = reader.index().planes.iter().flat_map(|plane| &plane.lines);
        assert_eq!(lines.map(|line| line.events).sum::<u64>(), report.events);
        assert_eq!(report.segments.iter().map(|segment| segment.events).sum::<u64>(), report.events);
    }
    let hosts = [
        ExportedHost { host: "a", input: &first, offset_ps: 0 },
        ExportedHost { host: "b", input: &second, offset_ps: i64::from(length[0]) - 100 },
    ];
    let mut json = Vec::new();
    if trace_events(&hosts, &mut json, &mut |_, _| {}).is_ok() {
        let text = std::str::from_utf8(&json).expect("JSON is text");
        assert!(text.starts_with('{') && text.ends_with("]}\n"));
    }
});
