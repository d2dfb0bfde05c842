//! Lists of hosts as a user writes them, and commands that reach them.
#![no_main]

use cluster::{hosts::listed, reach::CommandTemplate};
use libfuzzer_sys::fuzz_target;
use model::host_list::{LONGEST_NAME, MOST_HOSTS, expand};

fuzz_target!(|text: &str| {
    let names = expand(text).unwrap_or_default();
    assert!(names.len() <= MOST_HOSTS && names.iter().all(|name| (1..=LONGEST_NAME).contains(&name.len())));
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@-".contains(&byte);
    for host in listed(text).unwrap_or_default() {
        assert!(!host.name().starts_with('-') && host.name().bytes().all(allowed));
    }
    let _ = text.parse::<CommandTemplate>();
});
