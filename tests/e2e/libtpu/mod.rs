//! libtpu through the child: the real ones, and a stand-in that misbehaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

mod probe;
