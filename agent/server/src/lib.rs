//! What the agent serves: all services on its Unix socket and over mutual TLS, read-only gRPC and HTTP on the loopback.
//!
//! Every gRPC call passes the [`auth_layer`], which applies the one table of rights in [`access`]. This crate must never
//! measure anything, let a caller choose a path, exceed its bounds, or wait without a deadline.

#![forbid(unsafe_code)]

pub mod access;
pub mod agent_socket;
pub mod auth_layer;
mod capture_events;
mod client_certificates;
pub mod connection_limits;
pub mod connections;
pub mod ended_jobs;
mod failure_limits;
mod file_backed;
mod goodput_messages;
pub mod grpc_captures;
pub mod grpc_goodput;
pub mod grpc_host;
pub mod grpc_jobs;
pub mod grpc_marks;
pub mod grpc_recorder;
pub mod grpc_server;
pub mod grpc_sessions;
pub mod grpc_uploads;
pub mod hook_users;
pub mod host_api;
mod host_captures;
pub mod http_server;
mod job_messages;
pub mod marks_listener;
mod messages;
pub mod own_metrics;
mod parts_upload;
pub mod peer;
pub mod protocol;
mod recorder_messages;
mod reflection;
mod refusals;
pub mod remote;
pub mod scrape;
mod session_grants;
mod session_imports;
pub mod session_messages;
pub mod settings;
mod step_messages;
pub mod upload_messages;
pub mod xprof;

/// The result of a listener's task. The error says why the listener failed.
pub type ServeResult = Result<(), String>;
