//! `tpuscope sessions pin` and `sessions unpin`.

use proto::tpuscope::v1::{PinSessionRequest, sessions_client::SessionsClient};
use server::protocol;

use super::{agent_names, location::Location};
use crate::{CommandResult, client, exit::Exit, output, remedies};

/// Arguments of `sessions pin` and `sessions unpin`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of sessions of the agent
    #[arg(required = true, value_name = "SESSION", value_parser = Location::parser())]
    sessions: Vec<Location>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Pins the sessions, or unpins them.
pub(super) fn run(args: &Args, pinned: bool) -> CommandResult {
    let names = agent_names::of(&args.sessions, if pinned { "pin" } else { "unpin" })?;
    let (changed, failures) = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let (mut changed, mut failures) = (Vec::new(), Vec::new());
        for &name in &names {
            let request = PinSessionRequest { peer: Some(protocol::own()), id: name.to_string(), pinned };
            match client::within(client::CALL_TIMEOUT, sessions.pin(request)).await {
                Ok(_) => changed.push(name),
                // The other sessions are still changed.
                Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::Conflict) => {
                    failures.push(failure);
                }
                Err(failure) => {
                    failures.push(failure);
                    break;
                }
            }
        }
        Ok((changed, failures))
    })?;
    if args.json {
        output::json(&serde_json::json!({ "pinned": pinned, "sessions": changed }))?;
    } else {
        let done = if pinned { "pinned" } else { "unpinned" };
        output::print(&changed.iter().map(|name| format!("{done} {name}\n")).collect::<String>())?;
    }
    remedies::each(failures)
}
