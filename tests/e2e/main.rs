//! End-to-end tests: the built `tpuscope` binary against real peers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]
#![expect(clippy::cast_precision_loss, reason = "figures of tests are small")]
#![expect(clippy::disallowed_methods, reason = "the tests wait for processes in real time")]

mod agent;
mod booted;
mod capture_agent;
mod capture_bad;
mod capture_hosts;
mod capture_real;
mod cloud_monitoring;
mod continuous;
mod diff;
mod discovery;
mod documented;
mod fleet;
mod goodput;
mod host_capture;
mod hosts;
mod jax_peer;
mod jobs;
mod libtpu;
mod marks;
mod mcp;
mod merge_real;
mod otlp;
mod previous_release;
mod profiler_agent;
mod recorder;
mod schema;
mod service;
mod sessions_as_one;
mod sessions_by_name;
mod sessions_in_bucket;
mod sessions_merge_export;
mod shared_port;
mod show;
mod sidecar;
mod slurm;
mod slurm_hooks;
mod sources;
mod state;
mod tensorboard;
mod uploads;
mod xprof_endpoint;
