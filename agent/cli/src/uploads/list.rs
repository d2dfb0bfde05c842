//! `tpuscope uploads list`.

use indicatif::HumanBytes;
use model::time::Timestamp;
use proto::tpuscope::v1::{ListUploadsRequest, UploadStatus, uploads_client::UploadsClient};
use server::protocol;
use xprof::session::SessionName;

use super::row;
use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, TextTable, one_line},
    remedies,
};

/// Arguments of `uploads list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the uploads of this session
    session: Option<SessionName>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/uploads-list.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let session = args.session.as_ref().map(ToString::to_string).unwrap_or_default();
    let uploads = client::block_on(async {
        let mut uploads = UploadsClient::new(args.agent.connect().await?);
        let request = ListUploadsRequest { peer: Some(protocol::own()), session };
        client::within(client::CALL_TIMEOUT, uploads.list(request)).await
    })?;
    let uploads = uploads.into_inner().uploads;
    if args.json {
        output::json(&serde_json::json!({ "uploads": row::rows(&uploads) }))?;
    } else if uploads.is_empty() {
        output::print("no uploads of sessions that you may read\n")?;
    } else {
        output::print(&page(&uploads))?;
    }
    Ok(Exit::Ok)
}

fn page(uploads: &[UploadStatus]) -> String {
    let mut table = TextTable::new(["SESSION", "DESTINATION", "STATE", "SIZE", "QUEUED (UTC)", "URL"]);
    for upload in uploads {
        let queued = Timestamp(upload.queued_unix_ns - upload.queued_unix_ns.rem_euclid(1_000_000_000));
        let name = if upload.name_there.is_empty() { &upload.session } else { &upload.name_there };
        table.row([
            upload.session.clone(),
            upload.destination.clone(),
            row::progress(upload),
            HumanBytes(upload.bytes).to_string(),
            queued.to_string(),
            format!("{}/plugins/profile/{name}", upload.url),
        ]);
    }
    let mut text = table.text();
    for upload in uploads.iter().filter(|upload| !upload.failure.is_empty()) {
        let (session, destination) = (one_line(&upload.session), one_line(&upload.destination));
        text.push_str(&format!("- {session} to {destination}: {}", one_line(&upload.failure)));
        let remedy = remedies::upload(&upload.failure_class, &upload.url);
        if !remedy.is_empty() {
            text.push_str(&format!("; {remedy}"));
        }
        text.push('\n');
    }
    text
}
