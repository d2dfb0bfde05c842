//! Fakes and harness of the end-to-end tests.
//!
//! A fake stands here only where the real thing needs a TPU or a cloud, and it speaks the real ABI or wire.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]
#![expect(clippy::disallowed_methods, reason = "the tests wait for processes in real time")]

pub mod bare_store;
pub mod bridged_networks;
pub mod command;
pub mod containers;
pub mod fake_agent;
pub mod fake_collector;
pub mod fake_gcs;
pub mod fake_grpc;
pub mod fake_host;
pub mod fake_host_service;
pub mod fake_monitoring;
pub mod fake_orbax;
pub mod fake_proc;
pub mod fake_profiler;
pub mod fake_runtime;
pub mod fake_workload;
pub mod fault_disk;
pub mod harness;
pub mod held_call;
pub mod hung_disk;
pub mod jax_job;
pub mod libtpu;
pub mod loopback_sshd;
pub mod net_ns;
pub mod otlp_peers;
pub mod pid_ns;
pub mod profiler_probe;
pub mod python_peer;
pub mod running_agent;
pub mod scripted_job;
pub mod server_thread;
pub mod set_clock;
pub mod simulated_hosts;
pub mod slurm_cluster;
pub mod small_disk;
pub mod wait;
