//! Arbitrary text as a time: no panic, and what is printed is read as the same time.
#![no_main]

use goodput::time::{is_out_of_range, parse_instant};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Some(at) = parse_instant(text) else {
        is_out_of_range(text);
        return;
    };
    assert!(!is_out_of_range(text));
    let printed = at.to_string().replacen(' ', "T", 1);
    // A log's time stamps have nanoseconds in 64 bits: the years 1678 to 2261.
    if (-9_000_000_000_000_000..9_000_000_000_000_000).contains(&at.0) {
        assert_eq!(parse_instant(&printed), Some(at), "{printed}");
    }
});
