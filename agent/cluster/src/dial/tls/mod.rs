//! A connection to an agent over mutual TLS: TCP, a handshake that proves both sides, and gRPC over it.
//!
//! Must never send a request before the other side has proved that it is an agent, and never wait without a limit.

mod verifier;

use std::{fmt, sync::Arc, time::Duration};

use bytes::BytesMut;
use jiff::Timestamp;
use model::untrusted::{MESSAGE, clean};
use rustls::{ClientConfig, client::Resumption, version::TLS13};
use rustls_pki_types::ServerName;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::Channel;

use super::{
    KEEPALIVE,
    fault::{DialError, DialFault},
    preamble::AfterPreamble,
    tcp,
};
use crate::{
    channel,
    going_away::{StopMark, WatchedStream},
    hosts::HostAddress,
    identity::{
        certificate::{CertificateFacts, Validity},
        files::{Identity, IdentityError, IdentityFiles},
        tls_fault::{TlsFault, TlsFaultKind},
    },
};

pub use verifier::ExpectedPeer;

/// The port of an agent that other hosts reach, where none is given.
pub const DEFAULT_PORT: u16 = 4393;
/// The protocol that both sides must choose.
const HTTP2: &[u8] = b"h2";
/// More than the frame that the agent begins with.
const FIRST_BYTES: usize = 1024;

/// Dials agents with a certificate.
pub struct TlsDialer {
    config: Arc<ClientConfig>,
    facts: CertificateFacts,
}

impl fmt::Debug for TlsDialer {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsDialer").finish_non_exhaustive()
    }
}

impl TlsDialer {
    /// A dialler with the certificate of these files, which expects this of the other side. Blocks.
    ///
    /// # Errors
    /// If the files cannot be used.
    pub fn new(files: &IdentityFiles, expected: ExpectedPeer) -> Result<Self, IdentityError> {
        let Identity { chain, key, authorities, facts, .. } = files.read()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = verifier::AgentVerifier::new(authorities, &provider, expected);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| files.refused(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key)
            .map_err(|error| files.refused(&error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // Each connection proves the agent anew.
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), facts })
    }

    /// Whether the certificate of this side is valid.
    pub fn validity_at(&self, now: Timestamp) -> Validity {
        self.facts.validity_at(now)
    }

    /// Connects to the agent of a host.
    ///
    /// # Errors
    /// Why it cannot be reached before `deadline`, which is `limit` after the begin.
    pub(super) async fn dial(
        &self,
        host: &HostAddress,
        limit: Duration,
        deadline: Instant,
    ) -> Result<(Channel, StopMark), DialError> {
        let name = ServerName::try_from(host.name().to_owned()).map_err(|_| {
            error(
                DialFault::UnknownName,
                format!("`{}` is neither a DNS name nor an IP address", host.name()),
            )
        })?;
        let stream = tcp::connect(host.name(), host.port().unwrap_or(DEFAULT_PORT), deadline).await?;
        let silent = || {
            let what = format!("it accepted the connection and did not answer within {limit:?}");
            error(DialFault::Silent, what)
        };
        let proved = timeout_at(deadline, self.prove(name, stream)).await;
        let stream = proved.unwrap_or_else(|_| Err(silent()))?;
        let stream = WatchedStream::new(stream);
        let stopped = stream.mark();
        match timeout_at(deadline, channel::over(stream, KEEPALIVE)).await {
            Ok(Ok(channel)) => Ok((channel, stopped)),
            Ok(Err(_)) => Err(error(DialFault::Lost, "it closed the connection".to_owned())),
            Err(_) => Err(silent()),
        }
    }

    /// The handshake. With TLS 1.3 the agent checks our certificate after our part of the handshake is done, so this waits
    /// for the first bytes of HTTP/2, which the agent sends without being asked.
    async fn prove(
        &self,
        name: ServerName<'static>,
        stream: TcpStream,
    ) -> Result<AfterPreamble<TlsStream<TcpStream>>, DialError> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let mut stream = connector.connect(name, stream).await.map_err(|error| of_io(&error))?;
        if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err(error(DialFault::NotTls, "it speaks TLS without HTTP/2".to_owned()));
        }
        let mut early = BytesMut::with_capacity(FIRST_BYTES);
        match stream.read_buf(&mut early).await {
            Ok(0) => Err(error(DialFault::Lost, "it closed the connection after the handshake".to_owned())),
            Ok(_) => Ok(AfterPreamble::new(early.freeze(), stream)),
            Err(error) => Err(of_io(&error)),
        }
    }
}

fn error(fault: DialFault, reason: String) -> DialError {
    DialError { fault, reason: clean(&reason, MESSAGE) }
}

/// The fault of a handshake, or of its connection.
fn of_io(error: &std::io::Error) -> DialError {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(of_tls) => {
            let TlsFault { kind, reason } = TlsFault::of(of_tls);
            DialError { fault: fault_of(kind), reason }
        }
        None => self::error(DialFault::Lost, format!("it closed the connection in the handshake: {error}")),
    }
}

fn fault_of(kind: TlsFaultKind) -> DialFault {
    match kind {
        TlsFaultKind::NotTls => DialFault::NotTls,
        TlsFaultKind::Validity => DialFault::PeerValidity,
        TlsFaultKind::Authority => DialFault::PeerAuthority,
        TlsFaultKind::OfAuthority => DialFault::PeerOfAuthority,
        TlsFaultKind::Name => DialFault::PeerName,
        TlsFaultKind::Id => DialFault::PeerId,
        TlsFaultKind::Limited => DialFault::TooManyFailures,
        TlsFaultKind::Role => DialFault::PeerRole,
        TlsFaultKind::OwnValidity => DialFault::OwnValidity,
        TlsFaultKind::OwnAuthority => DialFault::OwnAuthority,
        TlsFaultKind::OwnRole => DialFault::OwnRole,
        TlsFaultKind::Certificate | TlsFaultKind::Refused | TlsFaultKind::Other => DialFault::Handshake,
    }
}
