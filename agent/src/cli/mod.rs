//! The commands: each parses its arguments, calls one room, prints, and ends with an exit code of [`exit`].
//!
//! Must never hold logic that the daemon needs too.

mod agent;
mod capture;
pub mod client;
mod config;
pub mod exit;
mod generate;
mod goodput;
mod libtpu;
pub mod output;
mod sessions;
pub mod settings;
mod status;
mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand, error::ContextValue};

use exit::{Exit, Failure};

/// What every command returns.
pub type Outcome = Result<Exit, Failure>;

/// Metrics, traces and goodput of TPU hosts.
#[derive(Debug, Parser)]
#[command(name = "tpuscope", version, propagate_version = false, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: sample the chips, serve what is measured
    Agent(agent::Args),
    /// Record an XProf trace of the workloads of this host, or of named profilers
    Capture(Box<capture::Args>),
    /// Print or check settings
    Config(config::Args),
    /// Say what share of a job's time was progress, and where the rest went
    Goodput(Box<goodput::Args>),
    /// Read and rework recorded sessions
    #[command(subcommand)]
    Sessions(sessions::Command),
    /// Look at a libtpu
    Libtpu(libtpu::Args),
    /// The process that a libtpu is loaded in; the agent starts it
    #[command(hide = true)]
    LibtpuChild(libtpu::ChildArgs),
    /// Show the chips of this host, who holds them, and how they do
    Status(status::Args),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArgs),
    /// Write the manual pages into a folder
    Man(generate::ManArgs),
    /// Print the version and what this build can do
    Version(version::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            quote(&mut error);
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
            // Nothing is left to tell a user whose terminal is gone.
            let _ = error.print();
            return exit.into();
        }
    };
    match run(cli.command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::tell(&failure.to_string());
            failure.exit.into()
        }
    }
}

/// What an error repeats of the command line stays on its line, and short.
fn quote(error: &mut clap::Error) {
    /// So much of a value is shown.
    const SHOWN: usize = 80;
    let quoted = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => {
            let cut = if text.chars().count() > SHOWN { "…" } else { "" };
            let text: String = text.chars().take(SHOWN).collect();
            Some((kind, ContextValue::String(exit::one_line(&text) + cut)))
        }
        _ => None,
    });
    for (kind, value) in quoted.collect::<Vec<_>>() {
        error.insert(kind, value);
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Agent(args) => agent::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Goodput(args) => goodput::run(&args),
        Command::Sessions(command) => sessions::run(&command),
        Command::Libtpu(args) => libtpu::run(&args),
        Command::LibtpuChild(args) => libtpu::run_child(&args),
        Command::Status(args) => status::run(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
        Command::Version(args) => version::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
