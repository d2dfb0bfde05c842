//! Host lists as Slurm writes them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::host_list::expand;

fuzz_target!(|text: &str| {
    let hosts = expand(text).unwrap_or_default();
    assert!(hosts.len() <= 65_536 && hosts.iter().all(|host| !host.is_empty()));
});
