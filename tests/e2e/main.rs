//! End-to-end tests: the built `tpuscope` binary against real peers.

mod jax_peer;
mod service;
mod walls;
