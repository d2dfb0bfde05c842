//! XProf traces, and nothing about this host.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod check;
pub mod client;
pub mod export;
pub mod format;
pub mod framing;
pub mod input;
pub mod loss;
pub mod merge;
pub mod reader;
pub mod session;
pub mod wire;
