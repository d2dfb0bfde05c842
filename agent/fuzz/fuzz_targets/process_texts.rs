//! Texts of procfs about a process, separated by lines of `%`; its job and endpoints follow from them.
#![no_main]

use host::workloads::process_texts::{ProcessTexts, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut texts = data.split(|byte| *byte == b'%');
    let mut next = || texts.next().unwrap_or_default();
    let texts = ProcessTexts {
        environ: next(),
        net_tcp: next(),
        stat: next(),
        status: next(),
        cgroup: next(),
        maps: next(),
    };
    let (job, _) = decode(&texts);
    assert!(!job.id.is_empty());
});
