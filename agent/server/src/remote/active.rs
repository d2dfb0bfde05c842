//! What the files of `[api.remote]` make: the TLS configuration, the roles of callers, and when it expires.

use std::{sync::Arc, time::Duration};

use cluster::identity::{
    certificate::{CertificateFacts, Validity, carries},
    files::{IdentityError, IdentityFiles},
    role::{Role, RoleError},
    tls_fault::Unaccepted,
};
use model::time::Timestamp;
use rustls::{
    Error, ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use webpki::EndEntityCert;

use super::settings::AllowedClient;
use crate::{
    client_certificates::{CheckClient, CheckedClients},
    file_backed::{FileBacked, FileStamp, FromFiles},
};

/// The protocol that both sides must choose.
pub(super) const HTTP2: &[u8] = b"h2";
/// How long before its end a certificate is warned of.
const WARNED_BEFORE: Duration = Duration::from_secs(30 * 86_400);

/// What the listener has of its files at present.
pub(super) type RemoteFiles = FileBacked<RemoteTls>;

/// The files, and the roles that the settings give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteSource {
    pub(super) files: IdentityFiles,
    pub(super) allow: Vec<AllowedClient>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A file cannot be used.
    #[error("api.remote: {0}")]
    Files(#[from] IdentityError),
    /// The agent's own certificate is that of a client.
    #[error(
        "api.remote.cert: the certificate has the role {0}: expected one that `tpuscope certs issue --agent` made"
    )]
    Role(Role),
    /// The agent's own certificate has no single role.
    #[error("api.remote.cert: the role of the certificate: {0}")]
    Roles(#[from] RoleError),
    /// The authorities cannot be used.
    #[error("api.remote.client_ca: {0}")]
    Authorities(String),
    /// Not all files are set.
    #[error(
        "api.remote.listen is set: api.remote.cert, api.remote.key and api.remote.client_ca must be set too"
    )]
    Missing,
}

/// The configuration of one reading of the files.
pub(super) struct RemoteTls {
    pub(super) config: Arc<ServerConfig>,
    pub(super) roles: CallerRoles,
    files: IdentityFiles,
    cert: CertificateFacts,
    /// The authority that is valid for the longest time: while one is replaced, the file has both.
    ca: CertificateFacts,
}

/// Which roles callers have.
#[derive(Debug, Clone)]
pub(super) struct CallerRoles(Arc<[AllowedClient]>);

impl CallerRoles {
    /// The role of a certificate whose chain is verified.
    pub(super) fn of(&self, certificate: &EndEntityCert<'_>) -> Result<Role, Unaccepted> {
        if let Some(allowed) = self.0.iter().find(|allowed| carries(certificate, &allowed.san)) {
            return Ok(allowed.role);
        }
        match Role::of_uris(certificate.valid_uri_names()) {
            Ok(Some(role)) => Ok(role),
            Ok(None) => Err(Unaccepted::Role(
                "its certificate has no role, and api.remote.allow has none of its names".to_owned(),
            )),
            Err(error) => Err(Unaccepted::Role(format!("the role of its certificate: {error}"))),
        }
    }
}

impl CheckClient for CallerRoles {
    fn check(&self, certificate: &EndEntityCert<'_>) -> Result<(), Error> {
        Ok(self.of(certificate).map(drop)?)
    }
}

impl FromFiles for RemoteTls {
    const NAME: &'static str = "certificate of the remote listener";
    type Files = RemoteSource;
    type Error = RemoteError;

    fn read(source: &RemoteSource) -> Result<(Self, Vec<FileStamp>), RemoteError> {
        let files = source.files.clone();
        let stamps = files.paths().map(FileStamp::of).to_vec();
        let identity = files.read()?;
        match identity.facts.role.clone()? {
            None | Some(Role::Agent) => {}
            Some(role) => return Err(RemoteError::Role(role)),
        }
        let ca = identity.authority_facts.into_iter().max_by_key(|facts| facts.not_after);
        let ca = ca.ok_or_else(|| RemoteError::Authorities("no certificate in PEM".to_owned()))?;
        let roles = CallerRoles(source.allow.clone().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = WebPkiClientVerifier::builder_with_provider(
            Arc::new(identity.authorities),
            Arc::clone(&provider),
        )
        .build()
        .map_err(|error| RemoteError::Authorities(error.to_string()))?;
        let refused = |error: Error| RemoteError::Files(files.refused(&error));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(Arc::new(CheckedClients::new(chain, roles.clone())))
            .with_single_cert(identity.chain, identity.key)
            .map_err(refused)?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // A resumed session would skip the check of the caller's certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let active = Self { config: Arc::new(config), roles, cert: identity.facts, ca, files };
        Ok((active, stamps))
    }

    fn warning(&self, _before: &Self) -> Option<String> {
        None
    }

    fn refusal(&self, before: &Self, now: Timestamp) -> Option<String> {
        let both = [(&self.cert, &before.cert, &self.files.cert), (&self.ca, &before.ca, &self.files.ca)];
        both.into_iter().find_map(|(new, old, path)| {
            let validity = new.is_no_successor_of(old, now.into())?;
            Some(format!("the certificate in {} {validity}, and the one in use is valid", path.display()))
        })
    }
}

impl RemoteTls {
    /// When the agent's certificate and the last of the authorities end to be valid, each with the name of its setting.
    pub(super) fn ends(&self) -> [(&'static str, jiff::Timestamp); 2] {
        [("cert", self.cert.not_after), ("client_ca", self.ca.not_after)]
    }

    /// What an administrator should know of the validity of the certificates.
    pub(super) fn warnings(&self, now: Timestamp) -> Vec<String> {
        let both = [(&self.cert, &self.files.cert, "certificate"), (&self.ca, &self.files.ca, "authority")];
        both.into_iter()
            .filter_map(|(facts, path, what)| {
                let validity = facts.validity_at(now.into());
                let long = matches!(validity, Validity::Valid(left) if left > WARNED_BEFORE);
                (!long).then(|| {
                    format!("api.remote: the {what} {} {validity}; replace the file", path.display())
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn role(names: &[&str], uris: &[&str], allow: &[(&str, Role)]) -> Result<Role, String> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let allow = allow.iter().map(|(san, role)| AllowedClient { san: (*san).to_owned(), role: *role });
        let roles = CallerRoles(allow.collect());
        let parsed = EndEntityCert::try_from(certificate.der()).unwrap();
        roles.of(&parsed).map_err(|error| error.to_string())
    }

    #[test]
    fn a_role_comes_from_the_settings_or_else_from_the_certificate() {
        let operator = "tpuscope:role:operator";
        assert_eq!(role(&[], &[operator], &[]), Ok(Role::Operator));
        assert_eq!(role(&["dash.example"], &[operator], &[("dash.example", Role::Viewer)]), Ok(Role::Viewer));
        assert_eq!(role(&["10.0.0.7"], &[], &[("10.0.0.7", Role::Operator)]), Ok(Role::Operator));
        let spiffe = [("spiffe://x/a", Role::Viewer), ("spiffe://x/b", Role::Operator)];
        assert_eq!(role(&[], &["spiffe://x/b"], &spiffe), Ok(Role::Operator));
        for other in ["spiffe://x/a/b", "spiffe://x/", "spiffe://X/a"] {
            assert!(role(&[], &[other], &spiffe).unwrap_err().contains("has none of its names"), "{other}");
        }
        assert!(
            role(&[], &[operator, "tpuscope:role:viewer"], &[]).unwrap_err().contains("more than one role")
        );
        assert!(role(&[], &["tpuscope:role:root"], &[]).unwrap_err().contains("`root` is no role"));
    }
}
