//! `tpuscope sessions list`.

use indicatif::HumanBytes;
use model::time::Timestamp;
use proto::tpuscope::v1::{ListSessionsRequest, SessionSummary, sessions_client::SessionsClient};
use server::protocol;

use super::super::{
    CommandResult, client,
    exit::Exit,
    output::{self, TextTable},
};

/// Arguments of `sessions list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/sessions-list.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let reply = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let request = ListSessionsRequest { peer: Some(protocol::own()) };
        client::within(client::CALL_TIMEOUT, sessions.list(request)).await
    })?;
    let sessions = reply.into_inner().sessions;
    if args.json {
        output::json(&serde_json::json!({ "sessions": sessions.iter().map(value).collect::<Vec<_>>() }))?;
    } else if sessions.is_empty() {
        output::print("no sessions; `tpuscope capture` records one\n")?;
    } else {
        output::print(&table(&sessions))?;
    }
    Ok(Exit::Ok)
}

fn value(session: &SessionSummary) -> serde_json::Value {
    serde_json::json!({
        "session": session.id,
        "folder": session.path,
        "created": session.created_unix_ns.map(Timestamp),
        "size": session.bytes,
        "parts": session.parts,
        "complete": !session.partial,
        "warnings": session.warnings,
    })
}

fn table(sessions: &[SessionSummary]) -> String {
    let mut table = TextTable::new(["SESSION", "CREATED", "PARTS", "SIZE", "STATE"]);
    for session in sessions {
        let state = if session.partial { "partial" } else { "complete" };
        let state = match session.warnings.len() {
            0 => state.to_owned(),
            1 => format!("{state}, 1 warning"),
            count => format!("{state}, {count} warnings"),
        };
        let created = session.created_unix_ns.map(|ns| Timestamp(ns - ns.rem_euclid(1_000_000_000)));
        table.row([
            session.id.clone(),
            created.map_or_else(|| "unknown".to_owned(), |created| created.to_string()),
            session.parts.to_string(),
            HumanBytes(session.bytes).to_string(),
            state,
        ]);
    }
    table.text()
}
