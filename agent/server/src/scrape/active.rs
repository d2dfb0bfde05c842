//! The active web configuration, read again when its files change.
//!
//! Must never replace a configuration that works by one that is broken: the last good one stays active, and the reason is
//! logged once. Must never wait long for files on a disk that does not answer.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::ServerConfig;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::{
    basic_auth::BasicAuth,
    rate_limit::TokenBucket,
    tls,
    web_config::{WebConfig, WebConfigError},
};

/// The shortest interval between two checks of the files. They are checked only when a client connects.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time that a client waits for a check of the files. The check goes on without it.
const CHECK_LIMIT: Duration = Duration::from_secs(1);
/// Why a check of the files has no result.
const NO_ANSWER: &str = "its files, or the disk that they are on, do not answer";

/// The result of one reading of the files.
pub(super) struct Active {
    /// TLS; `None`: plaintext.
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// The users that may scrape; `None`: all clients.
    pub(super) users: Option<BasicAuth>,
    /// The rate limit of requests; `None`: no limit.
    pub(super) rate: Option<TokenBucket>,
    /// Headers of each response.
    pub(super) headers: Vec<(String, String)>,
    /// Whether clients are asked for a certificate.
    client_certificates: bool,
    stamps: Vec<Stamp>,
}

/// A path and what changes with its file: device, inode, length, time of change.
type Stamp = (PathBuf, Option<(u64, u64, u64, i64, i64)>);

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok();
    let found = found.map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()));
    (path.to_owned(), found)
}

impl Active {
    /// Reads the files; blocks.
    fn read(path: &Path) -> Result<Self, WebConfigError> {
        // Stamps come first: the next check detects a change that is made while the files are read.
        let own = stamp(path);
        let config = WebConfig::read(path)?;
        let mut stamps = vec![own];
        let mut server = None;
        let mut client_certificates = false;
        if let Some(section) = &config.tls_server_config {
            let files = [&section.cert_file, &section.key_file, &section.client_ca_file];
            stamps.extend(
                files.into_iter().filter(|file| !file.as_os_str().is_empty()).map(|file| stamp(file)),
            );
            server = Some(tls::server_config(section)?);
            client_certificates = !matches!(section.client_auth_type.as_str(), "" | "NoClientCert");
        }
        Ok(Self {
            tls: server,
            users: BasicAuth::new(&config.basic_auth_users),
            rate: config.rate_limit.map(|limit| TokenBucket::new(limit.interval, limit.burst)),
            headers: config.http_server_config.headers.into_iter().collect(),
            client_certificates,
            stamps,
        })
    }

    /// No authentication and no encryption.
    fn open() -> Self {
        Self {
            tls: None,
            users: None,
            rate: None,
            headers: Vec::new(),
            client_certificates: false,
            stamps: Vec::new(),
        }
    }

    /// What protects the page with the configuration before, and not with this one.
    fn no_longer_required(&self, before: &Self) -> Vec<&'static str> {
        let protection = |active: &Self| {
            [
                (active.tls.is_some(), "TLS"),
                (active.users.is_some(), "passwords"),
                (active.client_certificates, "client certificates"),
            ]
        };
        let pairs = protection(before).into_iter().zip(protection(self));
        pairs.filter(|((before, _), (now, _))| *before && !now).map(|((_, name), _)| name).collect()
    }

    fn is_current(&self) -> bool {
        self.stamps.iter().all(|before| stamp(&before.0) == *before)
    }
}

/// The configuration of one listener.
pub(super) struct Configuration {
    path: Option<PathBuf>,
    /// Whether a configuration without TLS may be served.
    plaintext: bool,
    state: Mutex<ConfigurationState>,
}

struct ConfigurationState {
    active: Arc<Active>,
    looked: Instant,
    /// Whether a check is not finished: there is at most one, because one that hangs cannot be ended.
    looking: bool,
    /// The last fault that was logged.
    fault: Option<String>,
}

/// A configuration without TLS where plaintext is not allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be used.
    #[error("api.metrics_web_config: {0}")]
    File(#[from] WebConfigError),
    /// Other hosts would receive the page without encryption.
    #[error("api.metrics: without TLS the page, and any password, would cross the network in clear")]
    Plaintext,
}

impl Configuration {
    /// Reads the configuration for the first time; blocks.
    pub(super) fn open(path: Option<PathBuf>, plaintext: bool) -> Result<Self, ConfigurationError> {
        let active = match &path {
            Some(path) => Active::read(path)?,
            None => Active::open(),
        };
        if active.tls.is_none() && !plaintext {
            return Err(ConfigurationError::Plaintext);
        }
        let state = ConfigurationState {
            active: Arc::new(active),
            looked: Instant::now(),
            looking: false,
            fault: None,
        };
        Ok(Self { path, plaintext, state: Mutex::new(state) })
    }

    /// The active configuration, after a check of the files if one is due.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<Active> {
        let (active, due) = {
            let mut state = self.state();
            let due = self.path.is_some() && !state.looking && state.looked.elapsed() >= CHECK_INTERVAL;
            if due {
                (state.looked, state.looking) = (Instant::now(), true);
            }
            (state.active.clone(), due)
        };
        if !due {
            return active;
        }
        let unfinished = UnfinishedCheck(Arc::clone(self));
        let check = tokio::task::spawn_blocking(move || unfinished.0.look());
        // Without a result (no answer in time, a panic in a parser) the last good configuration stays.
        if timeout(CHECK_LIMIT, check).await.is_err() {
            self.stays(&mut self.state(), NO_ANSWER);
        }
        self.state().active.clone()
    }

    /// The last good configuration stays. The log has each reason once.
    fn stays(&self, state: &mut ConfigurationState, why: &str) {
        if state.fault.as_deref() != Some(why) {
            warn!(error = why, "the web configuration of the metrics listener stays as it was");
            state.fault = Some(why.to_owned());
        }
    }

    fn look(&self) {
        let Some(path) = &self.path else { return };
        let active = self.state().active.clone();
        if active.is_current() {
            let mut state = self.state();
            if state.fault.as_deref() == Some(NO_ANSWER) {
                info!("the files of the web configuration of the metrics listener answer again");
                state.fault = None;
            }
            return;
        }
        let read = Active::read(path).map_err(ConfigurationError::from).and_then(|active| {
            if active.tls.is_none() && !self.plaintext {
                Err(ConfigurationError::Plaintext)
            } else {
                Ok(active)
            }
        });
        let mut state = self.state();
        match read {
            Ok(active) => {
                let path = path.display();
                let dropped = active.no_longer_required(&state.active);
                if dropped.is_empty() {
                    info!(%path, "web configuration of the metrics listener read again");
                } else {
                    let dropped = dropped.join(", ");
                    warn!(%path, "web configuration of the metrics listener read again; no longer required: {dropped}");
                }
                (state.active, state.fault) = (Arc::new(active), None);
            }
            Err(error) => self.stays(&mut state, &error.to_string()),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ConfigurationState> {
        // Replaced as a whole: never half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A check that is running; dropped at its end, however it ends.
struct UnfinishedCheck(Arc<Configuration>);

impl Drop for UnfinishedCheck {
    fn drop(&mut self) {
        self.0.state().looking = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_broken_successor_changes_nothing_and_a_good_one_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        fs::write(&file, "http_server_config: {headers: {X-Frame-Options: deny}}").unwrap();
        let configuration = Arc::new(Configuration::open(Some(file.clone()), true).unwrap());
        fs::write(&file, "nonsense").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(configuration.current().await.headers.len(), 1);
        fs::write(&file, "{}").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(configuration.current().await.headers.len(), 0);
    }

    #[test]
    fn what_a_new_file_no_longer_requires_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            Active::read(&file).unwrap()
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = rcgen::CertificateParams::new(vec!["h".to_owned()]).unwrap().self_signed(&key).unwrap();
        fs::write(folder.path().join("a.crt"), cert.pem()).unwrap();
        fs::write(folder.path().join("a.key"), key.serialize_pem()).unwrap();
        let tls = "tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n";
        let clients = "  client_ca_file: a.crt\n  client_auth_type: RequireAndVerifyClientCert\n";
        let users = format!("basic_auth_users: {{a: {}}}\n", bcrypt::hash("secret", 4).unwrap());
        let full = read(&format!("{tls}{clients}{users}"));
        assert_eq!(read("").no_longer_required(&full), ["TLS", "passwords", "client certificates"]);
        assert_eq!(read(&format!("{tls}{users}")).no_longer_required(&full), ["client certificates"]);
        assert_eq!(read(&format!("{tls}{clients}")).no_longer_required(&full), ["passwords"]);
        assert_eq!(full.no_longer_required(&read("")), [""; 0]);
    }

    #[test]
    fn plaintext_needs_a_word() {
        assert!(matches!(Configuration::open(None, false), Err(ConfigurationError::Plaintext)));
        assert!(Configuration::open(None, true).is_ok());
    }
}
