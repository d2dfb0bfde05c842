//! The commands: each parses its arguments, calls one room, prints, and ends with an exit code of [`exit`].
//!
//! Must never hold logic that the daemon needs too.

#![forbid(unsafe_code)]

pub(crate) mod agent;
mod capture;
pub mod client;
mod config;
pub mod exit;
mod generate;
mod goodput;
mod libtpu;
pub mod lifecycle;
pub mod output;
mod remedies;
mod sessions;
pub mod settings;
pub mod settings_args;
mod status;
mod version;

use std::process::ExitCode;

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextValue, ErrorKind},
};
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
    /// Compute the share of a job's time that was progress, and the causes of the lost time
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
    /// Print the version
    Version(version::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_parsed(error).into(),
    };
    match run(cli.command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::tell(&failure.to_string());
            failure.exit.into()
        }
    }
}

/// Help and the version go out as they are; so does the help that a bare command gives. A mistake is told as any
/// other failure is.
fn not_parsed(mut error: clap::Error) -> Exit {
    let mistake = error.use_stderr();
    if !mistake || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nothing is left to tell a user whose terminal is gone.
        let _ = error.print();
        return if mistake { Exit::Usage } else { Exit::Ok };
    }
    quote(&mut error);
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    output::tell(&mistaken(&error.render().to_string(), &words).to_string());
    Exit::Usage
}

/// The parser's page of an error, in a line that says what is wrong and one that says what to do.
fn mistaken(page: &str, words: &[String]) -> Failure {
    let mut paragraphs =
        page.split("\n\n").map(|text| text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let tips = paragraphs.filter_map(|text| Some(text.strip_prefix("tip: ")?.replace(" tip: ", "; ")));
    let help = format!("`tpuscope{} --help` says how it is used", subcommand(words));
    Failure::new(Exit::Usage, what).remedy(tips.chain([help]).collect::<Vec<_>>().join("; "))
}

/// The subcommand that `words` begin with, each word after a space.
fn subcommand(words: &[String]) -> String {
    let mut command = &Cli::command();
    let mut spoken = String::new();
    for word in words {
        let Some(inner) = command.find_subcommand(word) else { break };
        command = inner;
        spoken += &format!(" {word}");
    }
    spoken
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
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_mistake_is_one_line_and_a_remedy() {
        let told = |arguments: &[&str]| {
            let error = Cli::try_parse_from(["tpuscope"].iter().chain(arguments)).expect_err("a mistake");
            let words: Vec<_> = arguments.iter().map(ToString::to_string).collect();
            mistaken(&error.render().to_string(), &words).to_string()
        };
        assert_eq!(
            told(&["capture", "--duratoin", "2s"]),
            "unexpected argument '--duratoin' found\n  a similar argument exists: '--duration'; \
             `tpuscope capture --help` says how it is used"
        );
        assert_eq!(
            told(&["sessions", "show"]),
            "the following required arguments were not provided: <PATH>\n  \
             `tpuscope sessions show --help` says how it is used"
        );
        assert_eq!(
            told(&["capture", "--duration", "2"]),
            "invalid value '2' for '--duration <DURATION>': `2` has no unit: write ns, us, ms, s, m, h or d, \
             as in `2s`\n  \
             `tpuscope capture --help` says how it is used"
        );
        assert_eq!(
            told(&["statsu"]),
            "unrecognized subcommand 'statsu'\n  a similar subcommand exists: 'status'; \
             `tpuscope --help` says how it is used"
        );
    }
}
