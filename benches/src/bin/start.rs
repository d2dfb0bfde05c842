//! From the start of the process to a page with a sample: the agent on a host with 8 chips and 500 other processes,
//! beside node_exporter, started in turns.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]

use std::{process::ExitCode, time::Duration};

use benches::{
    daemon::Daemon,
    other_processes::OtherProcesses,
    promise,
    services::{self, CHIPS, Services},
};
use fakes::fake_host::FakeHost;
use model::device::Generation;

const ROUNDS: usize = 15;
/// What the agent promises.
const MILLISECONDS: f64 = 200.0;

fn main() -> ExitCode {
    let _others = OtherProcesses::start(500, 26, 50);
    let host = FakeHost::with(Generation::V6e, u32::try_from(CHIPS).unwrap());
    let services = Services::start(&host, 1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (mut command, address, _folder) = services::agent(&host, &services.endpoints);
        let sampled = |page: &str| page.contains("\ntpu_hbm_used_bytes{");
        ours.push(Daemon::start_until(&mut command, address, "/metrics", sampled).1);
        let (mut command, address) = services::node_exporter();
        let sampled = |page: &str| page.contains("\nnode_memory_MemAvailable_bytes");
        theirs.push(Daemon::start_until(&mut command, address, "/metrics", sampled).1);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("start to first sample, median of {ROUNDS}: tpuscope {ours:.1?}, node_exporter {theirs:.1?}");
    println!("  the agent: {:.2} of node_exporter's time", ours.as_secs_f64() / theirs.as_secs_f64());
    let kept =
        promise::at_most("milliseconds from start to first sample", ours.as_secs_f64() * 1e3, MILLISECONDS);
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
