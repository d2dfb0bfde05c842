//! The active web configuration, read again when its files change.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cluster::identity::certificate::CertificateFacts;
use model::time::Timestamp;
use rustls::ServerConfig;

use super::{
    basic_auth::BasicAuth,
    rate_limit::TokenBucket,
    tls,
    web_config::{WebConfig, WebConfigError},
};
use crate::file_backed::{FileBacked, FileStamp, FromFiles};

/// The configuration of one listener.
pub(super) type Configuration = FileBacked<Active>;

/// Where the configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigurationSource {
    /// The web configuration file, if there is one.
    pub(super) path: Option<PathBuf>,
    /// Whether a configuration without TLS may be served.
    pub(super) plaintext: bool,
}

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
    /// What the certificate of the agent says.
    certificate: Option<CertificateFacts>,
}

impl Active {
    /// Reads the files; blocks.
    fn of_file(path: &Path) -> Result<(Self, Vec<FileStamp>), WebConfigError> {
        let own = FileStamp::of(path);
        let config = WebConfig::read(path)?;
        let mut stamps = vec![own];
        let mut server = None;
        let mut client_certificates = false;
        let mut certificate = None;
        if let Some(section) = &config.tls_server_config {
            let files = [&section.cert_file, &section.key_file, &section.client_ca_file];
            stamps.extend(
                files.into_iter().filter(|file| !file.as_os_str().is_empty()).map(|file| FileStamp::of(file)),
            );
            server = Some(tls::server_config(section)?);
            certificate = tls::certificate(section);
            client_certificates = !matches!(section.client_auth_type.as_str(), "" | "NoClientCert");
        }
        let active = Self {
            tls: server,
            users: BasicAuth::new(&config.basic_auth_users),
            rate: config.rate_limit.map(|limit| TokenBucket::new(limit.interval, limit.burst)),
            headers: config.http_server_config.headers.into_iter().collect(),
            client_certificates,
            certificate,
        };
        Ok((active, stamps))
    }

    /// No authentication and no encryption.
    fn open() -> Self {
        Self {
            tls: None,
            users: None,
            rate: None,
            headers: Vec::new(),
            client_certificates: false,
            certificate: None,
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
}

impl FromFiles for Active {
    const NAME: &'static str = "web configuration of the metrics listener";
    type Files = ConfigurationSource;
    type Error = ConfigurationError;

    fn read(source: &ConfigurationSource) -> Result<(Self, Vec<FileStamp>), ConfigurationError> {
        let (active, stamps) = match &source.path {
            Some(path) => Self::of_file(path)?,
            None => (Self::open(), Vec::new()),
        };
        if active.tls.is_none() && !source.plaintext {
            return Err(ConfigurationError::Plaintext);
        }
        Ok((active, stamps))
    }

    fn warning(&self, before: &Self) -> Option<String> {
        let dropped = self.no_longer_required(before);
        (!dropped.is_empty()).then(|| format!("no longer required: {}", dropped.join(", ")))
    }

    fn refusal(&self, before: &Self, now: Timestamp) -> Option<String> {
        let (new, old) = (self.certificate.as_ref()?, before.certificate.as_ref()?);
        let validity = new.is_no_successor_of(old, now.into())?;
        Some(format!("api.metrics_web_config: the new certificate {validity}, and the one in use is valid"))
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_new_file_no_longer_requires_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.yml");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            Active::of_file(&file).unwrap().0
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
        let open = |plaintext| {
            let clock = std::sync::Arc::new(model::time::SystemClock);
            Configuration::open(ConfigurationSource { path: None, plaintext }, clock)
        };
        assert!(matches!(open(false), Err(ConfigurationError::Plaintext)));
        assert!(open(true).is_ok());
    }
}
