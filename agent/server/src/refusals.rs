//! What a listener refuses: counted by listener and reason, and logged with the number since the last line, at most every
//! 10 s for each reason.
//!
//! Must never log once for each refusal: any process or host can cause them as often as it likes.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use metrics::counter;
use tokio::time::Instant;
use tracing::{field, info, warn};

use super::own_metrics::{REFUSED_CONNECTIONS, REFUSED_REQUESTS};

/// The shortest time between two log lines about one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusalReason {
    /// The socket and `api.remote`: all slots that the user or role may have are in use. The new connection is closed.
    NoSlot,
    /// TCP: all slots are in use. The least active connection is closed.
    Replaced,
    /// The other end of the connection cannot be determined.
    UnknownPeer,
    /// The TLS handshake failed or was not finished in time.
    Handshake,
    /// A request without the right user name and password (401).
    Unauthorized,
    /// Too many requests: `rate_limit` of the web configuration (429).
    RateLimit,
    /// Too many failed or waiting password checks of one address (429).
    PasswordLimit,
    /// Too many failed handshakes of one address.
    FailureLimit,
}

impl RefusalReason {
    /// The counter and the value of its label `reason`.
    pub(crate) fn metric(self) -> (&'static str, &'static str) {
        match self {
            Self::NoSlot => (REFUSED_CONNECTIONS, "no_slot"),
            Self::Replaced => (REFUSED_CONNECTIONS, "replaced"),
            Self::UnknownPeer => (REFUSED_CONNECTIONS, "unknown_peer"),
            Self::Handshake => (REFUSED_CONNECTIONS, "tls_handshake"),
            Self::Unauthorized => (REFUSED_REQUESTS, "unauthorized"),
            Self::RateLimit => (REFUSED_REQUESTS, "rate_limit"),
            Self::PasswordLimit => (REFUSED_REQUESTS, "password_limit"),
            Self::FailureLimit => (REFUSED_CONNECTIONS, "failure_limit"),
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::NoSlot => "too many connections (api.max_connections): connection closed",
            Self::Replaced => "too many connections (api.max_connections): the least active one was closed",
            Self::UnknownPeer => "cannot tell the peer of a connection: connection closed",
            Self::Handshake => "TLS handshake failed: connection closed",
            Self::Unauthorized => "request without a right user name and password (401)",
            Self::RateLimit => "too many requests (rate_limit): request refused (429)",
            Self::PasswordLimit => "too many failed or waiting password checks: request refused (429)",
            Self::FailureLimit => "too many failed TLS handshakes of an address: connection closed",
        }
    }
}

/// Who was refused, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RefusedPeer {
    /// The user of a process of this host.
    pub(crate) uid: Option<u32>,
    /// The address of a TCP connection.
    pub(crate) address: Option<IpAddr>,
}

/// The refusals of one listener. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Refusals(Arc<SharedRefusals>);

#[derive(Debug)]
struct SharedRefusals {
    listener: &'static str,
    unlogged: Mutex<BTreeMap<RefusalReason, Unlogged>>,
}

/// Refusals since the last line about them.
#[derive(Debug, Default)]
struct Unlogged {
    count: u64,
    last: RefusedPeer,
    detail: Option<String>,
    logged: Option<Instant>,
    /// A task will log them.
    scheduled: bool,
}

impl Refusals {
    /// For a listener with this name.
    pub(crate) fn of(listener: &'static str) -> Self {
        Self(Arc::new(SharedRefusals { listener, unlogged: Mutex::default() }))
    }

    /// Counts one refusal. `detail` adds to the log line.
    pub(crate) fn add(&self, reason: RefusalReason, peer: RefusedPeer, detail: Option<String>) {
        let (metric, label) = reason.metric();
        counter!(metric, "listener" => self.0.listener, "reason" => label).increment(1);
        let now = Instant::now();
        let mut unlogged = self.unlogged();
        let entry = unlogged.entry(reason).or_default();
        (entry.count, entry.last, entry.detail) = (entry.count + 1, peer, detail);
        let due = entry.logged.map_or(now, |logged| logged + LOG_INTERVAL);
        if due <= now {
            entry.log(self.0.listener, reason, now);
        } else if !entry.scheduled {
            entry.scheduled = true;
            let this = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep_until(due).await;
                this.log(reason);
            });
        }
    }

    /// Logs what was not logged yet.
    pub(crate) fn flush(&self) {
        let reasons: Vec<_> = self.unlogged().keys().copied().collect();
        reasons.into_iter().for_each(|reason| self.log(reason));
    }

    fn log(&self, reason: RefusalReason) {
        if let Some(entry) = self.unlogged().get_mut(&reason) {
            entry.log(self.0.listener, reason, Instant::now());
        }
    }

    fn unlogged(&self) -> MutexGuard<'_, BTreeMap<RefusalReason, Unlogged>> {
        // Only numbers, of which each is right by itself.
        self.0.unlogged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unlogged {
    fn log(&mut self, listener: &'static str, reason: RefusalReason, now: Instant) {
        self.scheduled = false;
        if self.count == 0 {
            return;
        }
        let (refused, uid, peer) = (self.count, self.last.uid, self.last.address.map(field::display));
        let detail = self.detail.take().map_or_else(String::new, |detail| format!(": {detail}"));
        let message = reason.message();
        if matches!(reason, RefusalReason::NoSlot | RefusalReason::Replaced | RefusalReason::UnknownPeer) {
            warn!(listener, refused, uid, peer, "{message}{detail}");
        } else {
            info!(listener, refused, uid, peer, "{message}{detail}");
        }
        (self.count, self.logged) = (0, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::*;

    /// The log as text.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_refusal_is_in_a_line_and_lines_are_bounded() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        let _default = tracing::subscriber::set_default(subscriber);
        let refusals = Refusals::of("socket");
        let user = RefusedPeer { uid: Some(65534), address: None };
        refusals.add(RefusalReason::NoSlot, user, None);
        assert_eq!(
            lines.take(),
            [
                " WARN too many connections (api.max_connections): connection closed listener=\"socket\" refused=1 uid=65534"
            ]
        );
        for _ in 0..284 {
            refusals.add(RefusalReason::NoSlot, user, None);
        }
        assert_eq!(lines.take(), [""; 0]);
        tokio::time::sleep(LOG_INTERVAL + Duration::from_millis(1)).await;
        let flushed = lines.take();
        assert_eq!(flushed.len(), 1, "{flushed:?}");
        assert!(flushed[0].ends_with("refused=284 uid=65534"), "{flushed:?}");
        // Another reason has a line of its own, with the address and the reason.
        let peer = RefusedPeer { uid: None, address: Some([10, 0, 0, 7].into()) };
        refusals.add(RefusalReason::Handshake, peer, Some("eof".to_owned()));
        let line = lines.take();
        assert!(
            line[0].ends_with("connection closed: eof listener=\"socket\" refused=1 peer=10.0.0.7"),
            "{line:?}"
        );
        // A stop loses nothing.
        refusals.add(RefusalReason::Handshake, peer, None);
        refusals.flush();
        assert_eq!(lines.take().len(), 1);
        refusals.flush();
        assert_eq!(lines.take(), [""; 0]);
    }
}
