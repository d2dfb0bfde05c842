//! The command line: one module per command. A command parses its arguments, calls one crate, prints the result, and ends
//! with an exit code of [`exit`]. Errors become exit codes and remedies in [`remedies`].
//!
//! Must never hold logic that the daemon needs too.

#![forbid(unsafe_code)]

pub(crate) mod agent;
mod capture;
mod certs;
pub mod client;
mod config;
mod deadline;
mod dial_stdio;
pub mod exit;
pub mod failure;
mod generate;
mod goodput;
mod hosts;
mod jobs;
mod libtpu;
pub mod lifecycle;
mod mark;
pub mod mcp;
pub mod output;
mod output_path;
mod profilers;
mod recorder;
mod remedies;
mod run;
mod runtime_thread;
mod series;
mod sessions;
pub mod settings;
pub mod settings_args;
mod slurm;
mod status;
mod uploads;
mod version;
mod xprof_writer;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand, error::ErrorKind};
use exit::Exit;
use failure::Failure;

/// The result of a command.
pub type CommandResult = Result<Exit, Failure>;

/// Metrics, traces and goodput of TPU hosts.
#[derive(Debug, Parser)]
#[command(name = "tpuscope", version, propagate_version = false, max_term_width = 110)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line of the agent alone. Its parser is small: an agent would remember for ever what all other commands take.
#[derive(Debug, Parser)]
#[command(name = "tpuscope", version, propagate_version = false, max_term_width = 110)]
struct AgentCli {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Run the daemon: sample the chips and serve the measurements
    Agent(agent::Args),
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: sample the chips and serve the measurements
    Agent(agent::Args),
    /// Record an XProf trace of the workloads on this host, or of the given profilers
    Capture(Box<capture::Args>),
    /// Switch the recorder for your jobs, and show what it keeps of them
    #[command(subcommand)]
    Recorder(recorder::RecorderCommand),
    /// Make a session of what the recorder has of the past
    Snapshot(Box<capture::snapshot::Args>),
    /// Make certificates for agents, operators and viewers on other hosts, and show them
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Print the default settings or the settings in force, or check a settings file
    Config(config::Args),
    /// Compute the share of a job's time that was progress, and the causes of the lost time
    Goodput(Box<goodput::Args>),
    /// List the jobs of this host over time, and show what changed between two attempts
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Run a command as a job that the agent knows
    Run(run::Args),
    /// Mark a step, a phase or an event of your own for `tpuscope goodput`
    Mark(mark::Args),
    /// List, copy, remove, analyze, merge and export recorded sessions
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// List, retry and drop uploads of sessions to the destinations of the settings
    #[command(subcommand)]
    Uploads(uploads::UploadsCommand),
    /// Inspect a libtpu library
    Libtpu(libtpu::Args),
    /// Load a libtpu library for the agent, which starts this command
    #[command(hide = true)]
    LibtpuChild(libtpu::ChildArgs),
    /// Show the chips, their owners and their load, of this host or of many
    Status(Box<status::Args>),
    /// The hooks of Slurm, their set-up, and reports of jobs
    #[command(subcommand)]
    Slurm(slurm::SlurmCommand),
    /// Serve the agent's measurements to a model, as tools of the Model Context Protocol on standard input and output
    Mcp(mcp::Args),
    /// Connect standard input and output to the agent, for a tpuscope on another host
    DialStdio(dial_stdio::Args),
    /// Kill the commands of a tpuscope that died, which starts this command
    #[command(hide = true)]
    DialGuard,
    /// Write a trace for a client of XProf, for the agent, which starts this command
    #[command(hide = true)]
    XprofWriter(xprof_writer::Args),
    /// Stop what an agent that was killed has left in workloads, which the systemd unit starts
    #[command(hide = true)]
    StopProfilers(profilers::Args),
    /// Print the latest value of every series of the host and its workloads
    Metrics(series::metrics::Args),
    /// Print the past values of a metric; of a counter its rise per second
    History(series::history::Args),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArgs),
    /// Write the manual pages to a folder
    Man(generate::ManArgs),
    /// Print the version
    Version(version::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if let Some(ended) = profilers::guard(std::env::args_os()) {
        return ended;
    }
    let command = match parse(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => return not_parsed(&error).into(),
    };
    match run(command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::print_error(&failure.to_string());
            failure.exit.into()
        }
    }
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Command, clap::Error> {
    let words: Vec<_> = words.collect();
    if words.get(1).is_some_and(|word| word == "agent") {
        let AgentCommand::Agent(args) = AgentCli::try_parse_from(words)?.command;
        return Ok(Command::Agent(args));
    }
    Ok(Cli::try_parse_from(words)?.command)
}

/// Prints help and the version as the parser made them. A mistake is printed like any other failure.
fn not_parsed(error: &clap::Error) -> Exit {
    let mistake = error.use_stderr();
    if !mistake || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A failure to print is ignored: there is nowhere to report it.
        let _ = error.print();
        return if mistake { Exit::Usage } else { Exit::Ok };
    }
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let failure = remedies::arguments(error, &words);
    output::print_error(&failure.to_string());
    failure.exit
}

fn run(command: Command) -> CommandResult {
    match command {
        Command::Agent(args) => agent::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Recorder(command) => recorder::run(&command),
        Command::Snapshot(args) => capture::snapshot::run(&args),
        Command::Certs(command) => certs::run(&command),
        Command::Config(args) => config::run(&args),
        Command::Goodput(args) => goodput::run(&args),
        Command::Jobs(command) => jobs::run(&command),
        Command::Run(args) => run::run(&args),
        Command::Mark(args) => mark::run(&args),
        Command::Sessions(command) => sessions::run(&command),
        Command::Uploads(command) => uploads::run(&command),
        Command::Libtpu(args) => libtpu::run(&args),
        Command::LibtpuChild(args) => libtpu::run_child(&args),
        Command::Status(args) => status::run(&args),
        Command::Slurm(command) => slurm::run(&command),
        Command::Mcp(args) => mcp::run(&args),
        Command::DialStdio(args) => dial_stdio::run(&args),
        Command::DialGuard => dial_stdio::guard(),
        Command::XprofWriter(args) => xprof_writer::run(&args),
        Command::StopProfilers(args) => profilers::stop(&args),
        Command::Metrics(args) => series::metrics::run(&args),
        Command::History(args) => series::history::run(&args),
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
        AgentCli::command().debug_assert();
    }

    #[test]
    fn the_agent_has_one_command_line() {
        let help = |mut all: clap::Command| {
            all.build();
            all.find_subcommand_mut("agent").unwrap().render_long_help().to_string()
        };
        assert_eq!(help(AgentCli::command()), help(Cli::command()));
        let parsed = |words: &[&str]| parse(words.iter().map(OsString::from)).map_err(|error| error.kind());
        assert!(matches!(parsed(&["tpuscope", "agent"]), Ok(Command::Agent(_))));
        assert_eq!(parsed(&["tpuscope", "agent", "--nix"]).unwrap_err(), ErrorKind::UnknownArgument);
        assert!(matches!(parsed(&["tpuscope", "version"]), Ok(Command::Version(_))));
    }
}
