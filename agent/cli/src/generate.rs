//! `tpuscope completions` and `tpuscope man`, generated from the definition of the command line.

use std::{fs, path::PathBuf};

use clap::CommandFactory;

use super::{Cli, CommandResult, exit::Exit, output, remedies};

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell that the script is for
    shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder to write to; it is created if it does not exist
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tpuscope", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

pub(super) fn man(args: &ManArgs) -> CommandResult {
    let written = fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &args.dir));
    written.map_err(|error| remedies::manual_pages(&args.dir, &error))?;
    Ok(Exit::Ok)
}
