//! TLS of the metrics listener: a rustls configuration from a web configuration file.
//!
//! One crypto provider (ring). Must never accept a client certificate that is not verified: the modes of Go that accept a
//! certificate without verification are refused.

use std::{path::Path, sync::Arc};

use cluster::identity::{
    certificate::{self, CertificateFacts, carries},
    tls_fault::{in_words, own_certificate},
};
use rustls::{
    CipherSuite, Error, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::CryptoProvider,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::web_config::{TlsServerConfig, WebConfigError, read_text};
use crate::client_certificates::{CheckClient, CheckedClients};

/// Go's names of the cipher suites, with rustls' ids.
const SUITES: [(&str, CipherSuite); 9] = [
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// The server configuration that `tls` describes. Reads the files that it names; blocks.
///
/// # Errors
/// If a file cannot be read, or a value is not supported.
pub(super) fn server_config(tls: &TlsServerConfig) -> Result<Arc<ServerConfig>, WebConfigError> {
    let provider = Arc::new(provider(tls)?);
    let cert = Pem::cert(tls);
    let key = Pem::key(tls);
    let chain = cert.certificates()?;
    let private = PrivateKeyDer::from_pem_slice(key.text()?.as_bytes())
        .map_err(|error| value(key.setting(), format!("no private key in PEM: {error}")))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions(tls)?)
        .map_err(|error| value("tls_server_config.min_version", error.to_string()))?;
    let builder = match client_verifier(tls, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config =
        builder.with_single_cert(chain, private).map_err(|error| unusable(&error, &cert, &key))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// What the certificate of the agent says.
pub(super) fn certificate(tls: &TlsServerConfig) -> Option<CertificateFacts> {
    let chain = Pem::cert(tls).certificates().ok()?;
    CertificateFacts::of(chain.first()?).ok()
}

fn value(key: &'static str, reason: String) -> WebConfigError {
    WebConfigError::Value { key, reason }
}

/// Why rustls refuses the agent's own certificate and key.
fn unusable(error: &Error, cert: &Pem<'_>, key: &Pem<'_>) -> WebConfigError {
    match error {
        Error::InconsistentKeys(_) => value(
            key.setting(),
            format!("the private key does not belong to the certificate of {}", cert.setting()),
        ),
        Error::InvalidCertificate(cause) => {
            value(cert.setting(), format!("the agent's certificate cannot be used: {}", in_words(cause)))
        }
        other => value(key.setting(), format!("the private key cannot be used: {other}")),
    }
}

/// A value in PEM: as a text of the configuration, or in a file.
struct Pem<'a> {
    text: &'a str,
    text_setting: &'static str,
    file: &'a Path,
    file_setting: &'static str,
}

impl<'a> Pem<'a> {
    fn cert(tls: &'a TlsServerConfig) -> Self {
        Self {
            text: &tls.cert,
            text_setting: "tls_server_config.cert",
            file: &tls.cert_file,
            file_setting: "tls_server_config.cert_file",
        }
    }

    fn key(tls: &'a TlsServerConfig) -> Self {
        Self {
            text: &tls.key,
            text_setting: "tls_server_config.key",
            file: &tls.key_file,
            file_setting: "tls_server_config.key_file",
        }
    }

    fn client_ca(tls: &'a TlsServerConfig) -> Self {
        Self {
            text: &tls.client_ca,
            text_setting: "tls_server_config.client_ca",
            file: &tls.client_ca_file,
            file_setting: "tls_server_config.client_ca_file",
        }
    }

    /// The setting that is used.
    fn setting(&self) -> &'static str {
        if self.text.is_empty() { self.file_setting } else { self.text_setting }
    }

    /// The PEM. Exactly one of the two must be set.
    fn text(&self) -> Result<String, WebConfigError> {
        match (self.text.is_empty(), self.file.as_os_str().is_empty()) {
            (false, true) => Ok(self.text.to_owned()),
            (true, false) => read_text(self.file),
            (true, true) => Err(value(self.setting(), "missing".to_owned())),
            (false, false) => Err(value(self.setting(), "given twice: as text and as a file".to_owned())),
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
        let pem = self.text()?;
        certificate::of_pem(&pem).map_err(|error| value(self.setting(), error.to_string()))
    }
}

/// ring, with the suites and curves that were chosen.
fn provider(tls: &TlsServerConfig) -> Result<CryptoProvider, WebConfigError> {
    let mut provider = rustls::crypto::ring::default_provider();
    if !tls.cipher_suites.is_empty() {
        let mut chosen = Vec::new();
        for name in &tls.cipher_suites {
            let known = SUITES.iter().find(|(go, _)| go == name);
            let Some((_, id)) = known else {
                let reason = format!("`{}` is not supported", name.escape_debug());
                return Err(value("tls_server_config.cipher_suites", reason));
            };
            chosen.push(*id);
        }
        // As in Go, the list says which suites of TLS 1.2 may be used; those of TLS 1.3 cannot be disabled.
        provider.cipher_suites.retain(|suite| {
            suite.version().version == rustls::ProtocolVersion::TLSv1_3 || chosen.contains(&suite.suite())
        });
    }
    if !tls.curve_preferences.is_empty() {
        let mut groups = Vec::new();
        for name in &tls.curve_preferences {
            groups.push(match name.as_str() {
                "X25519" => rustls::crypto::ring::kx_group::X25519,
                "CurveP256" => rustls::crypto::ring::kx_group::SECP256R1,
                "CurveP384" => rustls::crypto::ring::kx_group::SECP384R1,
                other => {
                    let reason = format!("`{}` is not supported", other.escape_debug());
                    return Err(value("tls_server_config.curve_preferences", reason));
                }
            });
        }
        provider.kx_groups = groups;
    }
    Ok(provider)
}

/// TLS 1.2 is the lowest version of rustls. It is also the lowest version for a file that allows older ones.
fn versions(tls: &TlsServerConfig) -> Result<Vec<&'static SupportedProtocolVersion>, WebConfigError> {
    let unknown =
        |key, text: &str| value(key, format!("expected TLS12 or TLS13, got `{}`", text.escape_debug()));
    let low = match tls.min_version.as_str() {
        "" | "TLS10" | "TLS11" | "TLS12" => 12,
        "TLS13" => 13,
        other => return Err(unknown("tls_server_config.min_version", other)),
    };
    let high = match tls.max_version.as_str() {
        "" | "TLS13" => 13,
        "TLS12" => 12,
        other => return Err(unknown("tls_server_config.max_version", other)),
    };
    let chosen: Vec<_> = [(12, &TLS12), (13, &TLS13)]
        .into_iter()
        .filter(|(n, _)| (low..=high).contains(n))
        .map(|(_, v)| v)
        .collect();
    if chosen.is_empty() {
        let reason = "max_version is lower than min_version".to_owned();
        return Err(value("tls_server_config.max_version", reason));
    }
    Ok(chosen)
}

/// The verifier of client certificates; `None`: clients need no certificate.
fn client_verifier(
    tls: &TlsServerConfig,
    provider: Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, WebConfigError> {
    const KEY: &str = "tls_server_config.client_auth_type";
    let has_ca = !tls.client_ca.is_empty() || !tls.client_ca_file.as_os_str().is_empty();
    let optional = match tls.client_auth_type.as_str() {
        "" | "NoClientCert" if has_ca => {
            return Err(value(
                KEY,
                "client_ca_file is set, but clients are not asked for a certificate".to_owned(),
            ));
        }
        "" | "NoClientCert" if !tls.client_allowed_sans.is_empty() => {
            return Err(value(
                KEY,
                "client_allowed_sans is set, but clients are not asked for a certificate".to_owned(),
            ));
        }
        "" | "NoClientCert" => return Ok(None),
        "VerifyClientCertIfGiven" => true,
        "RequireAndVerifyClientCert" => false,
        "RequestClientCert" | "RequireAnyClientCert" => {
            let reason = format!(
                "{} accepts any certificate: set RequireAndVerifyClientCert and client_ca_file",
                tls.client_auth_type
            );
            return Err(value(KEY, reason));
        }
        other => return Err(value(KEY, format!("unknown value `{}`", other.escape_debug()))),
    };
    let ca = Pem::client_ca(tls);
    let mut roots = RootCertStore::empty();
    for certificate in ca.certificates()? {
        roots.add(certificate).map_err(|error| {
            let why = own_certificate(&error);
            value(ca.setting(), format!("the certificate of an authority cannot be used: {why}"))
        })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    let inner = builder.build().map_err(|error| value(ca.setting(), error.to_string()))?;
    if tls.client_allowed_sans.is_empty() {
        return Ok(Some(inner));
    }
    Ok(Some(Arc::new(CheckedClients::new(inner, AllowedNames(tls.client_allowed_sans.clone())))))
}

/// One of these names must be in the certificate.
#[derive(Debug)]
struct AllowedNames(Vec<String>);

impl CheckClient for AllowedNames {
    fn check(&self, certificate: &webpki::EndEntityCert<'_>) -> Result<(), Error> {
        if self.0.iter().any(|name| carries(certificate, name)) {
            return Ok(());
        }
        Err(Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn tls() -> TlsServerConfig {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["h".to_owned()]).unwrap().self_signed(&key).unwrap();
        TlsServerConfig { cert: cert.pem(), key: key.serialize_pem(), ..TlsServerConfig::default() }
    }

    fn refused(tls: &TlsServerConfig) -> String {
        server_config(tls).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_certificate_and_its_key_are_enough() {
        let config = server_config(&tls()).unwrap();
        assert_eq!(config.alpn_protocols, [b"http/1.1"]);
    }

    #[test]
    fn unverified_client_certificates_are_refused() {
        for mode in ["RequestClientCert", "RequireAnyClientCert"] {
            let tls = TlsServerConfig { client_auth_type: mode.to_owned(), ..tls() };
            assert!(refused(&tls).contains("accepts any certificate"), "{mode}");
        }
        let tls = TlsServerConfig { client_ca: "x".to_owned(), ..tls() };
        assert!(refused(&tls).contains("not asked for a certificate"));
    }

    #[test]
    fn faults_name_their_key() {
        let missing = TlsServerConfig { key: String::new(), ..tls() };
        assert_eq!(refused(&missing), "tls_server_config.key_file: missing");
        let foreign = TlsServerConfig { key: KeyPair::generate().unwrap().serialize_pem(), ..tls() };
        assert_eq!(
            refused(&foreign),
            "tls_server_config.key: the private key does not belong to the certificate of tls_server_config.cert"
        );
        let text = TlsServerConfig { cert: "nonsense".to_owned(), ..tls() };
        assert_eq!(refused(&text), "tls_server_config.cert: no certificate in PEM");
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let damaged = refused(&TlsServerConfig { cert: junk.to_owned(), ..tls() });
        let start = "tls_server_config.cert: the agent's certificate cannot be used: ";
        assert!(damaged.starts_with(start) && !damaged.contains('('), "{damaged}");
        let required = "RequireAndVerifyClientCert".to_owned();
        let authority = TlsServerConfig { client_ca: junk.to_owned(), client_auth_type: required, ..tls() };
        let said = refused(&authority);
        let start = "tls_server_config.client_ca: the certificate of an authority cannot be used: ";
        assert!(said.starts_with(start), "{said}");
        let version = TlsServerConfig { min_version: "SSL3".to_owned(), ..tls() };
        assert_eq!(refused(&version), "tls_server_config.min_version: expected TLS12 or TLS13, got `SSL3`");
        let reversed =
            TlsServerConfig { min_version: "TLS13".to_owned(), max_version: "TLS12".to_owned(), ..tls() };
        assert!(refused(&reversed).contains("lower than min_version"));
        let suite = TlsServerConfig { cipher_suites: vec!["TLS_RSA_WITH_RC4_128_SHA".to_owned()], ..tls() };
        assert!(refused(&suite).contains("`TLS_RSA_WITH_RC4_128_SHA` is not supported"));
        let curve = TlsServerConfig { curve_preferences: vec!["CurveP521".to_owned()], ..tls() };
        assert!(refused(&curve).contains("`CurveP521` is not supported"));
    }
}
