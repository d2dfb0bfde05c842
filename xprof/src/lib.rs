//! XProf traces, and nothing about this host.

#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "decoders take numbers as bits, positions are bounded by the file, and ratios are f64"
)]

pub mod analysis;
pub mod check;
pub mod client;
pub mod comparison;
pub mod export;
pub mod format;
pub mod framing;
pub mod grpc_status;
pub mod input;
pub mod loss;
pub mod merge;
pub mod reader;
pub mod service;
pub mod session;
mod versions;
pub mod wire;
pub mod wording;
