//! `tpuscope sessions rm`.

use indicatif::HumanBytes;
use proto::tpuscope::v1::{RemoveSessionRequest, sessions_client::SessionsClient};
use server::protocol;
use xprof::session::SessionName;

use crate::{CommandResult, client, exit::Exit, failure::Failure, output, remedies};

/// Arguments of `sessions rm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of the sessions
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<SessionName>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (removed, failures) = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let (mut removed, mut failures) = (Vec::new(), Vec::new());
        for name in &args.sessions {
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
    all(failures)
}

/// The first failure, with the messages of all.
fn all(failures: Vec<Failure>) -> CommandResult {
    let what: Vec<_> = failures.iter().map(|failure| failure.what.clone()).collect();
    match failures.into_iter().next() {
        None => Ok(Exit::Ok),
        Some(first) => Err(Failure { what: what.join("; "), ..first }),
    }
}
