//! The one place that turns the typed errors of all crates into an exit code and a remedy.
//!
//! Flags, commands and settings are named here and in the commands' own help, and nowhere below `cli`.

mod capture;

pub(crate) use capture::{Destination, capture, capture_failure, of_failure, session_folder, store};
