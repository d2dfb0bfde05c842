//! `tpuscope certs`: an authority of one's own, certificates of it, and what a certificate says.

mod issue;
mod show;

use std::path::PathBuf;

use clap::Subcommand;
use cluster::identity::authority::{self, ValidDays};
use jiff::Timestamp;
use model::time::{Clock, SystemClock};

use super::{CommandResult, exit::Exit, output, remedies};

/// The longest validity in days.
const MOST_DAYS: i64 = 20 * 365;

/// The commands of `certs`.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Make an authority: a certificate and the key that signs all others
    Init(InitArgs),
    /// Issue certificates of an authority, each with a new key, in a folder of its own
    Issue(issue::Args),
    /// Show what the certificates of a file say
    Show(show::Args),
}

/// Arguments of `certs init`.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// Folder for ca.pem and ca-key.pem, which are not replaced
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Days until the authority expires
    #[arg(long, value_name = "N", default_value = "3650", value_parser = days())]
    days: u16,
}

pub(super) fn run(command: &CertsCommand) -> CommandResult {
    match command {
        CertsCommand::Init(args) => init(args),
        CertsCommand::Issue(args) => issue::run(args),
        CertsCommand::Show(args) => show::run(args),
    }
}

fn days() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=MOST_DAYS)
}

fn now() -> Timestamp {
    SystemClock.now().into()
}

fn init(args: &InitArgs) -> CommandResult {
    let made = authority::create(&args.folder, ValidDays(args.days), now())
        .map_err(|error| remedies::authority(&error))?;
    let facts = &made.facts;
    output::print(&format!(
        "{}: {}, valid from {} to {}\nkeep ca-key.pem safe: who has it can issue certificates of all roles\n",
        made.folder.display(),
        facts.subject,
        facts.not_before,
        facts.not_after
    ))?;
    Ok(Exit::Ok)
}
