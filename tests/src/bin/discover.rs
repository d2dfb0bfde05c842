//! Device scan and discovery as a process of its own: inside a network or pid namespace, or as another user.
//! `discover CONFIG TICKS`: scans all processes TICKS times, and prints one JSON line with the chips and workloads of
//! the last scan.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test tool fails loudly")]
#![forbid(unsafe_code)]
use std::{env, fs};

use cli::settings::{Config, Layers, load};
use host::{chips, workloads::OwnerScanner};
use model::time::Timestamp;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, config, ticks] = &arguments[..] else { panic!("discover CONFIG TICKS") };
    let text = fs::read_to_string(config).unwrap();
    let layers = Layers { text: Some((config.as_ref(), &text)), ..Layers::default() };
    let Config { paths, device, workload, .. } = load(&layers).unwrap().config;
    let scan = chips::scan(&paths, &device);
    let interval = workload.scan_interval.get();
    let mut discovery = OwnerScanner::new(paths, workload, scan.chips.clone().into());
    let mut now = Timestamp(0);
    let mut workloads = discovery.tick(now);
    for _ in 1..ticks.parse::<u32>().unwrap() {
        now = now.plus(interval);
        discovery.request_full_scan();
        workloads = discovery.tick(now);
        assert!(discovery.was_full_scan());
    }
    let line =
        serde_json::json!({ "chips": scan.chips, "device_notes": scan.notes, "workloads": *workloads });
    println!("{line}");
}
