//! `tpuscope sessions prune`.

use std::time::Duration;

use indicatif::HumanBytes;
use proto::tpuscope::v1::{
    PruneSessionsReply, PruneSessionsRequest, PrunedSession, sessions_client::SessionsClient,
};
use server::protocol;

use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, one_line},
};

/// The longest time for the removal: many large files take a while.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Arguments of `sessions prune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/sessions-prune.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let dry_run = args.dry_run;
    let reply = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let request = PruneSessionsRequest { peer: Some(protocol::own()), dry_run };
        client::within(TIMEOUT, sessions.prune(request)).await
    })?;
    let PruneSessionsReply { sessions, age_not_applied, .. } = reply.into_inner();
    if args.json {
        let sessions: Vec<_> = sessions.iter().map(value).collect();
        output::json(
            &serde_json::json!({ "dry_run": dry_run, "sessions": sessions, "age_not_applied": age_not_applied }),
        )?;
    } else {
        output::print(&text(&sessions, dry_run, &age_not_applied))?;
    }
    Ok(Exit::Ok)
}

fn value(session: &PrunedSession) -> serde_json::Value {
    serde_json::json!({
        "session": session.id,
        "size": session.bytes,
        "limit": session.limit,
        "upload": session.upload,
    })
}

fn text(sessions: &[PrunedSession], dry_run: bool, age_not_applied: &str) -> String {
    let done = if dry_run { "would remove" } else { "removed" };
    let lost = |session: &PrunedSession| match session.upload.as_str() {
        "pending" => ", not yet uploaded",
        _ => "",
    };
    let line = |session: &PrunedSession| {
        let PrunedSession { id, bytes, limit, .. } = session;
        format!("{done} {id}: {} ({limit}{})\n", HumanBytes(*bytes), lost(session))
    };
    let mut text: String = sessions.iter().map(line).collect();
    match (sessions, age_not_applied) {
        ([], "") => text.push_str("no session exceeds the limits of the store\n"),
        (_, "") => {}
        (_, why) => text.push_str(&format!(
            "store.max_age removes nothing now, whatever the age of the sessions: {}\n",
            one_line(why)
        )),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_uploaded_is_marked() {
        let session = |id: &str, upload: &str| PrunedSession {
            id: id.to_owned(),
            bytes: 2048,
            limit: "store.max_size".to_owned(),
            upload: upload.to_owned(),
        };
        let sessions = [session("a", "local"), session("b", "pending")];
        assert_eq!(
            text(&sessions, true, ""),
            "would remove a: 2.00 KiB (store.max_size)\nwould remove b: 2.00 KiB (store.max_size, not yet uploaded)\n"
        );
        assert_eq!(text(&[], true, ""), "no session exceeds the limits of the store\n");
        let kept = text(&[], true, "the clock stepped");
        assert!(kept.contains("store.max_age removes nothing now") && !kept.contains("no session"), "{kept}");
    }
}
