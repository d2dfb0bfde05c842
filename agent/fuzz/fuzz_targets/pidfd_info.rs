//! The fdinfo text of a pidfd.
#![no_main]

use libfuzzer_sys::fuzz_target;
use server::peer::decode_pidfd_info;

fuzz_target!(|text: &str| {
    if let Some((pid, namespaces)) = decode_pidfd_info(text) {
        assert!(pid > 0 && namespaces > 0);
    }
});
