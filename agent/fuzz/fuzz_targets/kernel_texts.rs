//! Texts of procfs about the host.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sampling::sources::host::decode_text;

fuzz_target!(|text: &str| {
    for file in ["stat", "loadavg", "meminfo", "net/dev", "diskstats", "pressure/io"] {
        let _ = decode_text(file, text);
    }
});
