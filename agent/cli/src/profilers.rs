//! What stops continuous profiling when the agent cannot: the guard process, and the command of the unit.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use ::sessions::continuous::{self, Continuous, GuardCommand, guard};
use store::lock::{Lock, LockError};

use super::{CommandResult, client, exit::Exit, failure::Failure, remedies, settings_args};
use crate::settings::Config;

/// How long `stop-profilers` tries; systemd gives it `TimeoutStopSec=`, which is 15 s.
const LIMIT: Duration = Duration::from_secs(12);
/// The variable in which systemd names the state directory of a unit.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

/// Arguments of `stop-profilers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: settings_args::Args,
}

/// How the agent starts its guard.
pub(crate) fn guard_command(state_dir: &Path) -> GuardCommand {
    GuardCommand {
        // Not the path: a binary replaced by an upgrade would speak another protocol.
        program: PathBuf::from("/proc/self/exe"),
        words: vec![guard::SUBCOMMAND.into(), Continuous::records(state_dir).into()],
    }
}

/// Runs the guard if these words ask for it. It comes before the parser of the command line, whose memory it would keep.
pub(crate) fn guard(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if words.nth(1).as_deref() != Some(OsStr::new(guard::SUBCOMMAND)) {
        return None;
    }
    let records = PathBuf::from(words.next()?);
    Some(match guard::run(&records) {
        Ok(()) => Exit::Ok.into(),
        // Nobody reads its standard error; the agent sees the end of its output.
        Err(_) => Exit::Internal.into(),
    })
}

pub(super) fn stop(args: &Args) -> CommandResult {
    let state_dir = state_dir(&args.settings);
    // An agent that runs stops its sessions itself.
    let _state = match Lock::in_dir(&state_dir, "agent.lock") {
        Ok(lock) => lock,
        Err(LockError::Held { .. }) => return Ok(Exit::Ok),
        Err(error) => return Err(remedies::state_dir(&error, &state_dir)),
    };
    let open = client::block_on(async {
        continuous::stop_left_by_dead_agent(&state_dir, LIMIT)
            .await
            .map_err(|error| remedies::records_of_profilers(&error, &state_dir))
    })?;
    if open.is_empty() { Ok(Exit::Ok) } else { Err(remedies::open_profilers(&open)) }
}

/// That of the settings. Settings that became wrong while the agent ran must not keep a session open.
fn state_dir(settings: &settings_args::Args) -> PathBuf {
    let of_unit = || env::var_os(STATE_DIRECTORY).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    match settings.of_agent() {
        Ok(loaded) => loaded.config.agent.state_dir,
        Err(Failure { .. }) => of_unit().unwrap_or_else(|| Config::default().agent.state_dir),
    }
}
