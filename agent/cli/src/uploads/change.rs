//! `tpuscope uploads retry` and `tpuscope uploads drop`.

use proto::tpuscope::v1::{ChangeUploadsRequest, UploadStatus, uploads_client::UploadsClient};
use server::protocol;
use store::destinations::DestinationName;
use xprof::session::SessionName;

use super::row;
use crate::{CommandResult, client, exit::Exit, failure::Failure, output, remedies};

/// Arguments of `uploads retry` and `uploads drop`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session whose uploads are meant; `--all` means those of all sessions
    #[arg(required_unless_present = "all")]
    session: Option<SessionName>,
    /// The uploads of all your sessions
    #[arg(long, conflicts_with = "session")]
    all: bool,
    /// Only those to this destination
    #[arg(long, value_name = "NAME")]
    to: Option<DestinationName>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/uploads-list.schema.json)
    #[arg(long)]
    json: bool,
}

impl Args {
    fn request(&self) -> ChangeUploadsRequest {
        ChangeUploadsRequest {
            peer: Some(protocol::own()),
            session: self.session.as_ref().map(ToString::to_string).unwrap_or_default(),
            destination: self.to.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn print(&self, done: &str, uploads: &[UploadStatus]) -> CommandResult {
        if self.json {
            output::json(&serde_json::json!({ "uploads": row::rows(uploads) }))?;
        } else if self.all && uploads.is_empty() {
            output::print("no upload waits or has failed\n")?;
        } else {
            for upload in uploads {
                let (session, destination) = (&upload.session, &upload.destination);
                output::print(&format!(
                    "{done} {} to {}\n",
                    output::one_line(session),
                    output::one_line(destination)
                ))?;
            }
        }
        match (&self.session, uploads) {
            (Some(session), []) => Err(remedies::no_upload(session, self.to.as_ref())),
            _ => Ok(Exit::Ok),
        }
    }
}

pub(super) fn retry(args: &Args) -> CommandResult {
    let reply = client::block_on(async {
        let mut uploads = UploadsClient::new(args.agent.connect().await?);
        let reply = client::within(client::CALL_TIMEOUT, uploads.retry(args.request())).await?;
        Ok::<_, Failure>(reply.into_inner())
    })?;
    args.print("tries again:", &reply.uploads)
}

pub(super) fn drop(args: &Args) -> CommandResult {
    let reply = client::block_on(async {
        let mut uploads = UploadsClient::new(args.agent.connect().await?);
        let reply = client::within(client::CALL_TIMEOUT, uploads.drop(args.request())).await?;
        Ok::<_, Failure>(reply.into_inner())
    })?;
    args.print("dropped:", &reply.uploads)
}
