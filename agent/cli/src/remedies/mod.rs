//! The one place that turns the typed errors of all crates into an exit code and a remedy.
//!
//! What a user of the command line should do about an error is said here. Lower crates give advice only in texts that
//! also reach users without the command line: refusals of the server, notes of discovery, reasons of missing targets.

mod agent;
mod arguments;
mod buckets;
mod capture;
mod certs;
mod connection;
mod exporters;
mod host_captures;
mod hosts;
mod jobs;
mod joined_sessions;
mod ledger;
mod libtpu;
mod marks;
mod otlp;
mod output;
mod profilers;
mod series;
mod settings;
mod slurm;
mod status;
mod steps;
mod stored_sessions;
mod traces;
mod uploads;

pub(crate) use agent::{
    agent_socket, remote_files, slurm_user, socket_group, state_dir, task_ended, tcp_address, web_config,
};
pub(crate) use arguments::arguments;
pub(crate) use buckets::{no_session_in_bucket, several_in_bucket, unread_bucket};
pub(crate) use capture::{
    KeptIn, capture_failure, interrupted_capture, interrupted_copy, interrupted_snapshot, interrupted_upload,
    kept_by_the_agent, long_window, missing_parts, of_failure, session_folder, store,
};
pub(crate) use certs::{
    authority, certified_list, certified_name, certified_twice, identity, name_without_one_host,
    own_validity, tls_dir,
};
pub(crate) use connection::{
    agent_ended_in_capture, agent_stopped_in_capture, call_timeout, connection_closed, no_answer,
    no_connection, not_removed, refused,
};
pub(crate) use exporters::{cloud_monitoring, event_files};
pub(crate) use host_captures::{
    hosts_capture, hosts_snapshot, min_hosts_over_hosts, missing_host, missing_hosts, option_of_one_host,
    window_over_limit,
};
pub(crate) use hosts::{
    container_without_pod, hosts, kubectl_wants_pods, no_container_name, no_way_to_hosts, not_reached,
    peer_id_without_tls, port_with_command, socket_of_another_host, srun_without_job,
};
pub(crate) use jobs::{job, not_executed};
pub(crate) use joined_sessions::{
    no_host_has, no_name_for_hosts, not_comparable, process_twice, same_session, session_twice,
    sessions_apart, several_jobs,
};
pub(crate) use ledger::{
    LogFault, NoAnswer, NoEntry, OtherEncoding, bad_observations, bad_queries, log_line, log_too_large,
    no_answer_of_log, no_entry, no_ledger, other_encoding, refused_observations, reversed_window,
    several_ledgers, unreadable_input, window_without_attempt,
};
pub(crate) use libtpu::{not_a_libtpu, partial_probe, probe, untrusted_library};
pub(crate) use marks::{
    end_of_step, no_answer_of_marks, no_marked_answer, number_without_step, phase_without_end, refused_mark,
    step_without_number,
};
pub(crate) use otlp::otlp;
pub(crate) use output::{event_file, manual_pages, unprinted};
pub(crate) use profilers::{open_profilers, records_of_profilers};
pub(crate) use series::{no_history, no_metric_contains};
pub(crate) use settings::{first_of_all, no_settings_file, settings_do_not_answer, settings_of_the_agent};
pub(crate) use slurm::{
    hook_variable, late_hook, no_slurm_configuration, report_file, unread_slurm_configuration,
};
pub(crate) use status::{no_chip, no_owner};
pub(crate) use steps::{
    interrupted_wait_for_step, no_step_number, several_jobs_have_steps, unpredictable_step,
};
pub(crate) use stored_sessions::{
    changed_path, each, faulty_session, import, imported_name, imported_url, listed_name, merged_session,
    no_files_of_older_agent, no_store, no_stored_session, not_a_session_name, several_sessions,
    unfit_session_name, unreadable_part,
};
pub(crate) use traces::{
    OutputConflict, TraceFileError, damaged_copy, export, fetch, merge, missing_copy, name_of_a_file,
    no_readable_part, no_session, not_a_folder, output_conflict, segment_is_a_folder, segment_twice,
    session_copy, standard_output, unchecked_copy, unreadable_trace, unwritten,
};
pub(crate) use uploads::{
    destinations, no_upload, not_uploaded, other_destinations, upload, uploads_not_done,
};
