//! Settings section `[api.remote]`.

use std::path::PathBuf;

use cluster::identity::{files::IdentityFiles, role::Role};
use documented::{Documented, DocumentedFields};
use model::absolute_path;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::settings::ListenAny;

/// The listener for commands on other hosts: gRPC over mutual TLS, nothing else. `tpuscope certs` makes the files.
/// docs/security.md says what a caller may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteSettings {
    /// Address of the listener, such as "0.0.0.0:4393", or "off".
    pub listen: ListenAny,
    /// Certificate of this agent with its chain, PEM. The agent reads this file and the next two again after a change.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub cert: PathBuf,
    /// Private key of the certificate, PEM. Its mode must keep other users from reading it.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub key: PathBuf,
    /// Certificates of the authorities that sign the certificates of callers, PEM.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub client_ca: PathBuf,
    /// Roles of certificates that name none: { san = "spiffe://…", role = "operator" }. A certificate with the URI
    /// tpuscope:role:operator or tpuscope:role:viewer needs no entry. An entry overrides such a URI.
    pub allow: Vec<AllowedClient>,
}

/// A name in certificates, and the role of their holders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedClient {
    /// Exactly a URI, DNS name or IP address among the names of the certificate.
    #[serde(deserialize_with = "name")]
    pub san: String,
    /// The role.
    pub role: Role,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            listen: ListenAny::Off,
            cert: PathBuf::new(),
            key: PathBuf::new(),
            client_ca: PathBuf::new(),
            allow: Vec::new(),
        }
    }
}

impl RemoteSettings {
    /// The files, if all of them are set.
    pub fn files(&self) -> Option<IdentityFiles> {
        let all = [&self.cert, &self.key, &self.client_ca];
        all.iter().all(|path| !path.as_os_str().is_empty()).then(|| IdentityFiles {
            cert: self.cert.clone(),
            key: self.key.clone(),
            ca: self.client_ca.clone(),
        })
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.is_empty() {
        return Err(D::Error::custom(
            "expected a name in certificates, such as spiffe://DOMAIN/PATH, got an empty text",
        ));
    }
    Ok(name)
}
