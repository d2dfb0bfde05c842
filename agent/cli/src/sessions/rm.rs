//! `tpuscope sessions rm`.

use std::collections::BTreeSet;

use indicatif::HumanBytes;
use proto::tpuscope::v1::{RemoveSessionReply, RemoveSessionRequest, sessions_client::SessionsClient};
use server::protocol;
use xprof::session::SessionName;

use super::{agent_names, location::Location};
use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, one_line},
    remedies,
    uploads::row,
};

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
        // A name that is given twice is removed once.
        let mut once = BTreeSet::new();
        for &name in names.iter().filter(|name| once.insert(**name)) {
            let request = RemoveSessionRequest { peer: Some(protocol::own()), id: name.to_string() };
            let reply = match client::within(client::CALL_TIMEOUT, sessions.remove(request))
                .await
                .map_err(remedies::not_removed)
            {
                Ok(reply) => reply.into_inner(),
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
                output::print(&text(name, &reply))?;
            }
            let uploads = row::rows(&reply.uploads);
            removed
                .push(serde_json::json!({ "session": name, "size": reply.freed_bytes, "given_up": uploads }));
        }
        Ok((removed, failures))
    })?;
    if args.json {
        output::json(&serde_json::json!({ "removed": removed }))?;
    }
    remedies::each(failures)
}

fn text(name: &SessionName, reply: &RemoveSessionReply) -> String {
    let mut text = format!("removed {name}: {} freed\n", HumanBytes(reply.freed_bytes));
    for upload in &reply.uploads {
        let destination = one_line(&upload.destination);
        text.push_str(&format!("  its upload to {destination} is given up"));
        if !upload.name_there.is_empty() {
            let at = format!("{}/plugins/profile/{}", upload.url, upload.name_there);
            text.push_str(&format!("; what was sent before stays at {}", one_line(&at)));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::UploadStatus;

    use super::*;

    #[test]
    fn an_upload_that_is_given_up_is_said_with_what_it_leaves() {
        let upload = |name_there: &str| UploadStatus {
            destination: "bucket".to_owned(),
            url: "gs://b/x".to_owned(),
            name_there: name_there.to_owned(),
            ..UploadStatus::default()
        };
        let reply =
            |uploads| RemoveSessionReply { freed_bytes: 1024, uploads, ..RemoveSessionReply::default() };
        let said = |uploads| text(&"s".parse().unwrap(), &reply(uploads));
        assert_eq!(said(vec![]), "removed s: 1.00 KiB freed\n");
        assert_eq!(said(vec![upload("")]), "removed s: 1.00 KiB freed\n  its upload to bucket is given up\n");
        assert!(said(vec![upload("s-h")]).ends_with("stays at gs://b/x/plugins/profile/s-h\n"));
    }
}
