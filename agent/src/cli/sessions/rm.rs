//! `tpuscope sessions rm`.

use indicatif::HumanBytes;
use proto::tpuscope::v1::{RemoveSessionRequest, sessions_client::SessionsClient};
use xprof::session::SessionName;

use super::super::{
    Outcome, client,
    exit::{Exit, Failure},
    output,
};
use crate::api::hello;

/// Arguments of `sessions rm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sessions to remove
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<SessionName>,
    #[command(flatten)]
    agent: client::Socket,
    /// Print JSON: the sessions that were removed
    #[arg(long)]
    json: bool,
}

fn in_use(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Conflict => failure.remedy("wait until its capture ends, or end that first"),
        _ => failure,
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    let removed = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let mut removed = Vec::new();
        for name in &args.sessions {
            let request = RemoveSessionRequest { peer: Some(hello::own()), id: name.to_string() };
            let reply =
                client::within(client::ANSWER, sessions.remove(request)).await.map_err(in_use)?.into_inner();
            if !args.json {
                output::print(&format!("removed {name}: {} freed\n", HumanBytes(reply.freed_bytes)))?;
            }
            removed.push(serde_json::json!({ "session": name, "size": reply.freed_bytes }));
        }
        Ok(removed)
    })?;
    if args.json {
        output::json(&serde_json::json!({ "removed": removed }))?;
    }
    Ok(Exit::Ok)
}
