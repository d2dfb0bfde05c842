//! What the benches share: running a command and measuring its time and peak memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
