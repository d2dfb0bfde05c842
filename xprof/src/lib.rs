//! XProf traces, and nothing about this host.

#![forbid(unsafe_code)]

pub mod session;
pub mod check;
