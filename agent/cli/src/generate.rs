//! `tpuscope completions` and `tpuscope man`, generated from the definition of the command line.

use std::{fs, io::ErrorKind, path::PathBuf};

use clap::CommandFactory;

use super::{Cli, CommandResult, exit::Exit, failure::Failure, output};

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
    written.map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Exit::NoSpace,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Exit::Permission,
            // The path is a file, or the file system has no folders.
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists | ErrorKind::NotFound => Exit::Permission,
            _ => Exit::Internal,
        };
        Failure::new(exit, format!("cannot write the manual pages to {}: {error}", args.dir.display()))
            .remedy("name a folder that you can write to")
    })?;
    Ok(Exit::Ok)
}
