//! End-to-end tests: the built `tpuscope` binary against real peers.

mod jax_peer;
mod libtpu;
mod service;
mod walls;
