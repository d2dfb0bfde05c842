//! The one place that turns the typed errors of all crates into an exit code and a remedy.
//!
//! What a user of the command line should do about an error is said here. Lower crates give advice only in texts that
//! also reach users without the command line: refusals of the server, notes of discovery, reasons of missing targets.

mod agent;
mod arguments;
mod capture;
mod connection;
mod libtpu;
mod settings;
mod traces;

pub(crate) use agent::{agent_socket, socket_group, state_dir, tcp_address, web_config};
pub(crate) use arguments::arguments;
pub(crate) use capture::{Destination, capture_failure, of_failure, session_folder, store};
pub(crate) use connection::{
    agent_ended_in_capture, agent_stopped_in_capture, call_timeout, connection_closed, no_answer,
    no_connection, refused, session_in_use,
};
pub(crate) use libtpu::{not_a_libtpu, probe, untrusted_library};
pub(crate) use settings::no_settings_file;
pub(crate) use traces::{
    OutputConflict, TraceFileError, export, merge, no_session, not_a_folder, output_conflict, session_copy,
    unwritten,
};
