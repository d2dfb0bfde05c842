//! `tpuscope config`.

use std::path::{Path, PathBuf};

use super::{CommandResult, exit::Exit, output, output::one_line, settings_args};
use crate::settings;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a settings file with every setting, its default and its description
    Default {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a settings file and the TPUSCOPE_* variables
    Check {
        /// Settings file [default: /etc/tpuscope/tpuscope.toml, if it exists]
        file: Option<PathBuf>,
        /// Print JSON: the result of the check and the effective settings
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.command {
        Command::Default { json: false } => output::print(&settings::commented())?,
        Command::Default { json: true } => output::json(&settings::Config::default())?,
        Command::Check { file, json } => return check(file.as_deref(), *json),
    }
    Ok(Exit::Ok)
}

fn check(file: Option<&Path>, json: bool) -> CommandResult {
    let checked = settings_args::load(file, &[]).and_then(|config| {
        settings_args::check_here(&config)?;
        Ok(config)
    });
    let name = file.unwrap_or(Path::new(settings::FILE));
    match checked {
        Ok(config) if json => output::json(&serde_json::json!({ "ok": true, "settings": config }))?,
        Ok(_) if name.exists() => output::print(&format!("{}: ok\n", one_line(&name.display().to_string())))?,
        Ok(_) => output::print(&format!("{} does not exist; the defaults apply\n", name.display()))?,
        Err(failure) if json => {
            let report = serde_json::json!({ "ok": false, "error": failure.what, "remedy": failure.remedy });
            output::json(&report)?;
            return Ok(failure.exit);
        }
        Err(failure) => return Err(failure),
    }
    Ok(Exit::Ok)
}
