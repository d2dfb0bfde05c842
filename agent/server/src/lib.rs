//! What the agent serves: everything on its Unix socket, and what only looks on HTTP and gRPC of the loopback.
//!
//! Rights are decided here, at the edge ([`access`]), and nowhere below. Must never measure, and never let a
//! caller choose a path, hold more than its bounds, or wait without a deadline.

#![forbid(unsafe_code)]

pub mod accept;
pub mod access;
pub mod captures;
pub mod desk;
pub mod edge;
pub mod grpc;
pub mod hello;
pub mod host;
pub mod http;
pub mod places;
pub mod sessions;
pub mod settings;
pub mod socket;
mod wire;

/// How serving ends: an error says why. Ending without being told to is a fault too.
pub type Ended = Result<(), String>;
