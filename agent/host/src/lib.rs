//! This machine: its chips (sysfs, /dev), the processes that own them, their endpoints and jobs.
//!
//! Must never open a chip, signal a process, or contact a port that the owner, a known default or the settings do not
//! name (with `workload.probe = "listeners"`: except each other port of an owner, once).

#![forbid(unsafe_code)]

pub mod boot_clock;
mod changes;
pub mod chip_indices;
mod chip_list;
pub mod chips;
pub mod discovery;
mod expected_chips;
pub mod own_metrics;
pub mod own_rights;
pub mod process_memory;
pub mod regular_file;
pub mod settings;
pub mod tcp_peer;
pub mod tcp_table;
pub mod tpu_env;
pub mod workloads;
