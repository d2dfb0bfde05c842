//! Chips, owners, jobs and endpoints, with real processes where one machine can have them.

mod access;
mod bystander;
mod fixtures;
mod jax;
mod real;

use std::{path::Path, process::Command};

use fakes::{fake_host::FakeHost, harness::artifact};
use host::{settings::workload::Settings, workloads::OwnerScanner};
use model::{
    time::Timestamp,
    workload::{Owner, Workloads},
};

/// One full look at a host from this process.
fn look(host: &FakeHost, settings: Settings) -> Workloads {
    let mut discovery = OwnerScanner::new(host.paths(), settings, host.chips().into());
    Workloads::clone(&discovery.tick(Timestamp(0)))
}

/// The owner with this pid.
fn owner(workloads: &Workloads, pid: u32) -> &Owner {
    let found = workloads.owners.iter().find(|owner| owner.process.pid == pid);
    found.unwrap_or_else(|| panic!("{pid} is no owner in {workloads:#?}"))
}

/// What `discover` prints, run by `prefix`.
fn discover(mut command: Command, config: &Path, ticks: u32) -> serde_json::Value {
    let output = command.arg(config).arg(ticks.to_string()).output().expect("discover runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

/// The `discover` tool.
fn tool() -> std::path::PathBuf {
    artifact("discover")
}
