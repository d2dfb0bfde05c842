//! Session folders of the user: their names.

use std::path::Path;

use model::time::Timestamp;
use xprof::session::{SessionError, SessionName, SessionWriter};

/// A writer of the named session, which must be new, or of one named after the time.
///
/// # Errors
/// If the session exists or is being written, or the folder cannot be written.
pub fn create(
    logdir: &Path,
    named: Option<SessionName>,
    now: Timestamp,
) -> Result<SessionWriter, SessionError> {
    if let Some(name) = named {
        return SessionWriter::create(logdir, name);
    }
    let name = SessionName::of_time(now.into());
    match SessionWriter::create(logdir, name.clone()) {
        // Two in one second.
        Err(SessionError::Exists(_) | SessionError::Running(_)) => {
            let name = format!("{name}_{:04x}", fastrand::u16(..)).parse().unwrap_or(name);
            SessionWriter::create(logdir, name)
        }
        other => other,
    }
}

/// The name of a session over several hosts that was given none: after the time, as the name of one host's session, and with
/// four random digits. Another command may capture other hosts in the same second, and all agents of a session keep it under
/// one name.
pub fn name_of_hosts(now: Timestamp) -> SessionName {
    let name = SessionName::of_time(now.into());
    format!("{name}_{:04x}", fastrand::u16(..)).parse().unwrap_or(name)
}
