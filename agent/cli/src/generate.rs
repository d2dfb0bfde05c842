//! `tpuscope completions` and `tpuscope man`: made from the same definitions that parse the command line.

use std::{fs, io::ErrorKind, path::PathBuf};

use clap::CommandFactory;

use super::{
    Cli, Outcome,
    exit::{Exit, Failure},
    output,
};

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// For which shell
    shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder that the pages are written to; made where it is missing
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tpuscope", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

pub(super) fn man(args: &ManArgs) -> Outcome {
    let written = fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &args.dir));
    written.map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Exit::NoSpace,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Exit::Permission,
            // A file is in the way, or the file system makes no folders.
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists | ErrorKind::NotFound => Exit::Permission,
            _ => Exit::Internal,
        };
        Failure::new(exit, format!("cannot write pages to {}: {error}", args.dir.display()))
            .remedy("name a folder that you may write")
    })?;
    Ok(Exit::Ok)
}
