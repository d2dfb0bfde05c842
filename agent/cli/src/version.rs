//! `tpuscope version`.

use super::{CommandResult, exit::Exit, output};

/// Arguments of `version`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        let value = serde_json::json!({ "name": "tpuscope", "version": version });
        output::print(&format!("{value}\n"))?;
    } else {
        output::print(&format!("tpuscope {version}\n"))?;
    }
    Ok(Exit::Ok)
}
