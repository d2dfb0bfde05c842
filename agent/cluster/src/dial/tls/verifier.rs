//! Whether the other side is the agent that was meant: rustls builds and checks the chain, then the name and the role
//! decide, or exactly one URI.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::identity::{role::Role, tls_fault::Unaccepted};

/// Who the other side must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedPeer {
    /// An agent: the certificate has the name that was dialled, and the role `agent`.
    NamedAgent,
    /// One whose certificate has exactly this URI, such as a SPIFFE id. Such certificates have no DNS name, so names and roles do not
    /// matter.
    Id(String),
}

/// The verifier of the certificates of agents.
#[derive(Debug)]
pub(super) struct AgentVerifier {
    authorities: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
    expected: ExpectedPeer,
}

impl AgentVerifier {
    pub(super) fn new(
        authorities: RootCertStore,
        provider: &Arc<CryptoProvider>,
        expected: ExpectedPeer,
    ) -> Self {
        Self { authorities, algorithms: provider.signature_verification_algorithms, expected }
    }

    /// Whether a certificate of a known authority is that of the expected side.
    fn check_identity(
        &self,
        certificate: &CertificateDer<'_>,
        parsed: &ParsedCertificate<'_>,
        name: &ServerName<'_>,
    ) -> Result<(), Error> {
        let uris = webpki::EndEntityCert::try_from(certificate)
            .map(|certificate| certificate.valid_uri_names().map(str::to_owned).collect::<Vec<_>>())
            .map_err(|_| Error::InvalidCertificate(rustls::CertificateError::BadEncoding))?;
        match &self.expected {
            ExpectedPeer::Id(id) if uris.iter().any(|uri| uri == id) => Ok(()),
            ExpectedPeer::Id(id) => {
                let found = if uris.is_empty() { "no URI".to_owned() } else { uris.join(", ") };
                Err(Unaccepted::Id(format!("its certificate has {found}, expected {id}")).into())
            }
            ExpectedPeer::NamedAgent => {
                verify_server_name(parsed, name)?;
                match Role::of_uris(uris.iter().map(String::as_str)) {
                    Ok(Some(Role::Agent)) => Ok(()),
                    Ok(Some(role)) => {
                        Err(Unaccepted::Role(format!("its certificate has the role {role}, expected agent"))
                            .into())
                    }
                    Ok(None) => Err(Unaccepted::Role(format!(
                        "its certificate has no role, expected the URI {}",
                        Role::Agent.uri()
                    ))
                    .into()),
                    Err(error) => {
                        Err(Unaccepted::Role(format!("the role of its certificate: {error}")).into())
                    }
                }
            }
        }
    }
}

impl ServerCertVerifier for AgentVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.authorities,
            intermediates,
            now,
            algorithms,
        )?;
        self.check_identity(end_entity, &parsed, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tls_fault::{TlsFault, TlsFaultKind};
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
    };

    struct Issuer {
        authority: CertifiedIssuer<'static, KeyPair>,
        time: UnixTime,
    }

    impl Issuer {
        fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            Self {
                authority,
                time: UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000)),
            }
        }

        fn params(names: &[&str], uris: &[&str]) -> CertificateParams {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let mut params = CertificateParams::new(names).unwrap();
            let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
            params.subject_alt_names.extend(uris);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params
        }

        fn signed(&self, params: &CertificateParams) -> CertificateDer<'static> {
            params.signed_by(&KeyPair::generate().unwrap(), &self.authority).unwrap().der().clone()
        }

        fn checked(
            &self,
            certificate: &CertificateDer<'_>,
            expected: ExpectedPeer,
        ) -> Result<(), (TlsFaultKind, String)> {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.der().clone()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = AgentVerifier::new(roots, &provider, expected);
            let name = ServerName::try_from("tpu-1").unwrap();
            let verified = verifier.verify_server_cert(certificate, &[], &name, &[], self.time);
            verified.map(|_| ()).map_err(|error| {
                let TlsFault { kind, reason } = TlsFault::of(&error);
                (kind, reason)
            })
        }
    }

    #[test]
    fn an_agent_has_its_name_and_its_role() {
        let issuer = Issuer::new();
        let checked = |names: &[&str], uris: &[&str]| {
            issuer.checked(&issuer.signed(&Issuer::params(names, uris)), ExpectedPeer::NamedAgent)
        };
        let agent = Role::Agent.uri();
        assert_eq!(checked(&["tpu-1"], &[&agent]), Ok(()));
        let (kind, reason) = checked(&["tpu-2", "10.0.0.7"], &[&agent]).unwrap_err();
        assert_eq!((kind, &*reason), (TlsFaultKind::Name, "its certificate is for tpu-2, 10.0.0.7"));
        let (kind, reason) = checked(&["tpu-1"], &["tpuscope:role:operator"]).unwrap_err();
        let wanted = "its certificate has the role operator, expected agent";
        assert_eq!((kind, &*reason), (TlsFaultKind::Role, wanted));
        let (kind, reason) = checked(&["tpu-1"], &[]).unwrap_err();
        assert!(kind == TlsFaultKind::Role && reason.contains("no role"), "{reason}");
        assert_eq!(checked(&["tpu-1"], &[&agent, "tpuscope:role:viewer"]).unwrap_err().0, TlsFaultKind::Role);
    }

    #[test]
    fn an_id_is_the_whole_proof() {
        let issuer = Issuer::new();
        let id = ExpectedPeer::Id("spiffe://cluster/agent".to_owned());
        let of = |uris: &[&str]| issuer.checked(&issuer.signed(&Issuer::params(&[], uris)), id.clone());
        assert_eq!(of(&["spiffe://cluster/agent"]), Ok(()));
        let (kind, reason) = of(&["spiffe://cluster/agent/x", "tpuscope:role:agent"]).unwrap_err();
        assert_eq!(kind, TlsFaultKind::Id);
        assert!(
            reason.contains("has spiffe://cluster/agent/x")
                && reason.contains("expected spiffe://cluster/agent")
        );
    }

    #[test]
    fn what_no_authority_signed_or_is_not_valid_now_is_refused() {
        let issuer = Issuer::new();
        let params = Issuer::params(&["tpu-1"], &["tpuscope:role:agent"]);
        let itself = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        // As `openssl req -x509` makes it.
        let mut of_authority = params.clone();
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let of_authority = of_authority.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        for expected in [ExpectedPeer::NamedAgent, ExpectedPeer::Id("tpuscope:role:agent".to_owned())] {
            let kind = |certificate: &CertificateDer<'_>| {
                issuer.checked(certificate, expected.clone()).unwrap_err().0
            };
            assert_eq!(kind(&itself), TlsFaultKind::Authority);
            assert_eq!(kind(&of_authority), TlsFaultKind::OfAuthority);
            let mut expired = params.clone();
            expired.not_after = rcgen::date_time_ymd(2026, 1, 1);
            assert_eq!(kind(&issuer.signed(&expired)), TlsFaultKind::Validity);
            let mut early = params.clone();
            early.not_before = rcgen::date_time_ymd(2030, 1, 1);
            assert_eq!(kind(&issuer.signed(&early)), TlsFaultKind::Validity);
            let mut client = params.clone();
            client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            assert_eq!(kind(&issuer.signed(&client)), TlsFaultKind::Role);
        }
    }
}
