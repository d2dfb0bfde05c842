//! Waits until a session is uploaded, and shows how far it is on standard error.

use std::{io::IsTerminal, time::Duration};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use proto::tpuscope::v1::{ListUploadsRequest, UploadStatus, uploads_client::UploadsClient};
use server::protocol;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;
use xprof::session::SessionName;

use crate::{client, failure::Failure, output, remedies};

/// The time between two questions to the agent.
const ASK: Duration = Duration::from_millis(200);
/// The time between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(10);

/// Waits until all uploads of the session are done, for at most `limit`. Returns them as they are then.
///
/// # Errors
/// If one failed for good or is not done in time, or the agent does not answer.
pub(crate) async fn wait(
    channel: Channel,
    session: &SessionName,
    limit: Duration,
) -> Result<Vec<UploadStatus>, Failure> {
    let mut client = UploadsClient::new(channel);
    let (bar, deadline) = (bar(), Instant::now() + limit);
    let mut line_at = Instant::now() + LINE;
    loop {
        let request = ListUploadsRequest { peer: Some(protocol::own()), session: session.to_string() };
        let reply = client::within(client::CALL_TIMEOUT, client.list(request)).await;
        let uploads = reply.map_err(|failure| remedies::not_uploaded(failure, session))?.into_inner().uploads;
        let left: Vec<_> = uploads.iter().filter(|upload| upload.state != "done").collect();
        let (bytes, sent) = left
            .iter()
            .fold((0, 0), |(bytes, sent), upload| (bytes + upload.bytes, sent + upload.sent_bytes));
        bar.set_length(bytes);
        bar.set_position(sent);
        if Instant::now() >= line_at && bar.is_hidden() {
            line_at = Instant::now() + LINE;
            output::print_error(&format!("uploading: {} of {}", HumanBytes(sent), HumanBytes(bytes)));
        }
        let failed = left.iter().any(|upload| upload.state == "failed");
        if left.is_empty() || failed || Instant::now() >= deadline {
            bar.finish_and_clear();
            return if left.is_empty() { Ok(uploads) } else { Err(remedies::uploads_not_done(&left, limit)) };
        }
        sleep(ASK).await;
    }
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("uploading {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
