//! The web configuration file of the metrics listener.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use server::scrape::web_config::WebConfig;

fuzz_target!(|text: &str| {
    if let Err(error) = WebConfig::parse(Path::new("web.yml"), text) {
        assert_eq!(error.to_string().lines().count(), 1);
    }
});
