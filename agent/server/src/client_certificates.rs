//! A verifier of client certificates: rustls checks the chain, then a further check decides.
//!
//! Must never accept a certificate that rustls does not verify.

use std::{fmt, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;

/// The further check of a certificate whose chain is verified.
pub(crate) trait CheckClient: fmt::Debug + Send + Sync + 'static {
    /// # Errors
    /// Why the certificate is refused.
    fn check(&self, certificate: &EndEntityCert<'_>) -> Result<(), Error>;
}

/// The verifier.
#[derive(Debug)]
pub(crate) struct CheckedClients<C> {
    chain: Arc<dyn ClientCertVerifier>,
    check: C,
}

impl<C: CheckClient> CheckedClients<C> {
    /// `chain` verifies first.
    pub(crate) fn new(chain: Arc<dyn ClientCertVerifier>, check: C) -> Self {
        Self { chain, check }
    }
}

impl<C: CheckClient> ClientCertVerifier for CheckedClients<C> {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = EndEntityCert::try_from(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        self.check.check(&certificate).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
