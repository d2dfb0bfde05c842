//! End-to-end tests: the built `tpuscope` binary against real peers.

mod service;
mod walls;
