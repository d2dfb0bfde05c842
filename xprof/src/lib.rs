//! XProf traces, and nothing about this host.

#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod session;
