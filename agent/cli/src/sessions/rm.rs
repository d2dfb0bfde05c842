//! `tpuscope sessions rm`.

use indicatif::HumanBytes;
use proto::tpuscope::v1::{RemoveSessionRequest, sessions_client::SessionsClient};
use server::protocol;

use super::{agent_names, location::Location};
use crate::{CommandResult, client, exit::Exit, output, remedies};

/// Arguments of `sessions rm`.
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

pub(super) fn run(args: &Args) -> CommandResult {
    let names = agent_names::of(&args.sessions, "rm")?;
    let (removed, failures) = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let (mut removed, mut failures) = (Vec::new(), Vec::new());
        for &name in &names {
            let request = RemoveSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
            let freed = match client::within(client::CALL_TIMEOUT, sessions.remove(request))
                .await
                .map_err(remedies::session_in_use)
            {
                Ok(reply) => reply.into_inner().freed_bytes,
                // The other sessions are still removed.
                Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::Conflict) => {
                    failures.push(failure);
                    continue;
                }
                Err(failure) => {
                    failures.push(failure);
                    break;
                }
            };
            if !args.json {
                output::print(&format!("removed {name}: {} freed\n", HumanBytes(freed)))?;
            }
            removed.push(serde_json::json!({ "session": name, "size": freed }));
        }
        Ok((removed, failures))
    })?;
    if args.json {
        output::json(&serde_json::json!({ "removed": removed }))?;
    }
    remedies::each(failures)
}
