//! Pages of an Orbax and Grain endpoint, separated by a zero byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sampling::sources::orbax_grain::decode_pages;

fuzz_target!(|text: &str| {
    let pages: Vec<&str> = text.split('\0').collect();
    let _ = decode_pages(&pages);
});
