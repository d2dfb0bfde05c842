//! `tpuscope version`.

use super::{Outcome, exit::Exit};

/// Arguments of `version`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        println!("{}", serde_json::json!({ "name": "tpuscope", "version": version }));
    } else {
        println!("tpuscope {version}");
    }
    Ok(Exit::Ok)
}
