//! The query of `/api/v1/history`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use server::http_server::history_query;

fuzz_target!(|query: &str| {
    let _ = history_query(query);
});
