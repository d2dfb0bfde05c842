//! The libtpu SDK, called in a child process.
//!
//! [`child`] is that process: the hidden subcommand of this binary, in a [`sandbox`]. [`process`] is its handle
//! on the agent's side; the two speak [`wire`]. [`trust`] says which library may be loaded, and by whom. Must never load a libtpu into the agent.

pub mod child;
pub mod process;
mod sandbox;
pub mod trust;
mod wire;
