//! Sends one request after the other, each within a deadline.
//!
//! It works on the exporter's own thread, where reading the credentials may block. Must never try a request again.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::time::Clock;
use store::destinations::{GoogleAccount, Transport};
use tokio::time::timeout;

use super::failure::{ExportFailure, ExportFailureKind, check, clock_difference};

/// The longest time for a request, its token included.
const DEADLINE: Duration = Duration::from_secs(10);
/// A connection is kept for the next round if that begins within this time: the service closes it after some minutes. A new one
/// costs more than all points of a round.
const LONGEST_KEPT: Duration = Duration::from_secs(180);

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
    /// A sender without a connection, whose rounds begin each `interval`.
    pub(super) fn new(credentials: PathBuf, interval: Duration, clock: Arc<dyn Clock>) -> Self {
        let until_next = interval + 2 * DEADLINE;
        let transport =
            Transport::kept_for(if until_next <= LONGEST_KEPT { until_next } else { 2 * DEADLINE });
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

#[cfg(test)]
mod tests {
    use model::time::SystemClock;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        sync::mpsc,
        time::{pause, resume, sleep},
    };

    use super::*;

    /// Answers each request, which ends in `}`.
    async fn answer(mut stream: TcpStream) {
        let mut request = Vec::new();
        while stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
            if request.ends_with(b"}") {
                request.clear();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_connection_is_kept_for_the_next_round() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connected, mut connections) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connected.send(()).unwrap();
                tokio::spawn(answer(stream));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key.json");
        let account = serde_json::json!({
            "gcs_base_url": url, "disable_oauth": true, "private_key": "", "private_key_id": "", "client_email": "",
        });
        std::fs::write(&key, account.to_string()).unwrap();
        let interval = Duration::from_secs(60);
        let mut sender = RequestSender::new(key, interval, Arc::new(SystemClock));
        for _ in 0..2 {
            sender.send(&url, b"{}".to_vec()).await.unwrap();
            pause();
            sleep(interval).await;
            resume();
        }
        connections.recv().await.unwrap();
        assert!(connections.try_recv().is_err(), "the second round had a connection of its own");
    }
}
