//! What the agent serves: everything on its Unix socket, and what only looks on HTTP and gRPC of the loopback.
//!
//! Rights are decided here, at the auth_layer ([`access`]), and nowhere below. Must never measure, and never let a
//! caller choose a path, hold more than its bounds, or wait without a deadline.

#![forbid(unsafe_code)]

pub mod accept;
pub mod access;
pub mod auth_layer;
pub mod captures;
pub mod connection_limits;
pub mod grpc;
pub mod host;
pub mod host_api;
pub mod http;
pub mod own_metrics;
pub mod protocol;
pub mod scrape;
pub mod session_messages;
pub mod sessions;
pub mod settings;
pub mod socket;
mod wire;

/// How serving ends: an error says why. Ending without being told to is a fault too.
pub type Ended = Result<(), String>;
