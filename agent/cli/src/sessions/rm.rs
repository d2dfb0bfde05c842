//! `tpuscope sessions rm`.

use indicatif::HumanBytes;
use proto::tpuscope::v1::{RemoveSessionRequest, sessions_client::SessionsClient};
use server::protocol;
use xprof::session::SessionName;

use super::super::{
    Outcome, client,
    exit::{Exit, Failure},
    output,
};

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
    let (removed, failures) = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let (mut removed, mut failures) = (Vec::new(), Vec::new());
        for name in &args.sessions {
            let request = RemoveSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
            let freed = match client::within(client::ANSWER, sessions.remove(request)).await.map_err(in_use) {
                Ok(reply) => reply.into_inner().freed_bytes,
                // One session that is not there keeps none of the others.
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

/// How it ends: as its first failure, which names all of them.
fn all(failures: Vec<Failure>) -> Outcome {
    let what: Vec<_> = failures.iter().map(|failure| failure.what.clone()).collect();
    match failures.into_iter().next() {
        None => Ok(Exit::Ok),
        Some(first) => Err(Failure { what: what.join("; "), ..first }),
    }
}
