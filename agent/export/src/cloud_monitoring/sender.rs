//! Sends one request after the other, each within a deadline.
//!
//! It works on the exporter's own thread, where reading the credentials may block. Must never try a request again.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::time::Clock;
use store::destinations::{GoogleAccount, SendRate, Transport};
use tokio::time::timeout;

use super::failure::{ExportFailure, ExportFailureKind, check, clock_difference};

/// The longest time for a request, its token included.
const DEADLINE: Duration = Duration::from_secs(10);

/// The connection to Cloud Monitoring.
pub(super) struct RequestSender {
    /// The key file; empty for the account of the machine.
    credentials: PathBuf,
    transport: Transport,
    /// Opened with the first request, and again after its credentials were refused.
    account: Option<GoogleAccount>,
    clock: Arc<dyn Clock>,
}

/// What is worth saying of a request whose points were all written.
pub(super) struct Written {
    /// How the clock of this host is wrong.
    pub(super) clock: Option<String>,
}

impl RequestSender {
    /// A sender without a connection.
    pub(super) fn new(credentials: PathBuf, clock: Arc<dyn Clock>) -> Self {
        let transport = Transport::new(DEADLINE, SendRate::default());
        Self { credentials, transport, account: None, clock }
    }

    /// Sends one request.
    ///
    /// # Errors
    /// If not all points were written.
    pub(super) async fn send(&mut self, url: &str, body: Vec<u8>) -> Result<Written, ExportFailure> {
        let account = match &mut self.account {
            Some(account) => account,
            none => none.insert(open(&self.credentials, &self.transport)?),
        };
        let sent = timeout(DEADLINE, account.post_json(url, body.into())).await;
        let late = |_| {
            let what = format!("no answer within {} s", DEADLINE.as_secs());
            ExportFailure::new(ExportFailureKind::Timeout, what)
        };
        let answer = sent.map_err(late)??;
        let now = self.clock.now();
        match check(&answer, now) {
            Ok(()) => Ok(Written { clock: clock_difference(&answer, now) }),
            Err(mut failure) => {
                match failure.kind {
                    ExportFailureKind::Permission | ExportFailureKind::Scope | ExportFailureKind::Account => {
                        failure.message = format!("{} (as {})", failure.message, account.identity());
                    }
                    ExportFailureKind::NoProject => {
                        failure.message = format!("{} (at {url})", failure.message);
                    }
                    _ => {}
                }
                if failure.kind == ExportFailureKind::Account {
                    self.account = None;
                }
                Err(failure)
            }
        }
    }
}

fn open(credentials: &Path, transport: &Transport) -> Result<GoogleAccount, ExportFailure> {
    let file = (!credentials.as_os_str().is_empty()).then_some(credentials);
    Ok(GoogleAccount::open(file, transport.clone())?)
}
