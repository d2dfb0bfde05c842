//! The server's side of a TLS handshake. Its cryptography runs on threads that may block, for two connections at a time.
//!
//! Must never run it on the thread that samples, keep more than some records of a peer, or wait for a peer without a limit.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, BytesMut};
use cluster::identity::tls_fault::{LIMITED, TlsFault};
use rustls::{ServerConfig, ServerConnection as TlsSession};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::active::HTTP2;
use crate::connections::ServerConnection;

/// The longest that a handshake may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Handshakes that compute at a time.
const AT_A_TIME: usize = 2;
/// The most bytes of a handshake. A chain of four certificates has about 6 KiB.
const MOST_BYTES: usize = 64 << 10;
/// Content type, version and length of a TLS record.
const RECORD_HEADER: usize = 5;
/// The longest record: 2^14 bytes and the overhead of encryption.
const MOST_RECORD: usize = (16 << 10) + 256;
/// How long a refused peer has to take the reason, before the connection is closed.
const ALERT_TIME: Duration = Duration::from_secs(1);

/// How long a peer whose address is refused has to send the begin of its handshake: a connection that is closed before
/// that is reset, and the reason may be lost.
const REFUSED_TIME: Duration = Duration::from_millis(200);

/// Tells a peer that its address had too many failed handshakes, and closes the connection. No cryptography.
pub(super) async fn refuse_address(mut connection: ServerConnection) {
    let tell = async {
        connection.write_all(&LIMITED).await?;
        connection.shutdown().await?;
        connection.read(&mut [0; 4 << 10]).await
    };
    // It may be gone.
    let _ = timeout(REFUSED_TIME, tell).await;
}

/// Runs handshakes. Clones share the limit.
#[derive(Debug, Clone)]
pub(super) struct Handshakes(Arc<Semaphore>);

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// It took too long.
    #[error("not finished in {} s", LIMIT.as_secs())]
    Late,
    /// The peer closed the connection without a word, as a check of the port does.
    #[error("nothing was sent")]
    Nothing,
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Ended(#[from] io::Error),
    /// The peer speaks something else.
    #[error("it speaks HTTP without TLS")]
    PlainHttp,
    /// The peer speaks something else.
    #[error("it does not speak TLS")]
    NotTls,
    /// The peer sends too much.
    #[error("more than {} KiB", MOST_BYTES >> 10)]
    TooLarge,
    /// The peer speaks TLS without HTTP/2.
    #[error("it does not ask for HTTP/2 (ALPN)")]
    NoHttp2,
    /// rustls refuses the peer, or the peer refuses the agent.
    #[error("{}", TlsFault::of(.0).reason)]
    Refused(#[from] rustls::Error),
    /// A bug in a library.
    #[error("the thread of the handshake panicked")]
    Panicked,
}

impl Default for Handshakes {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

impl Handshakes {
    /// The handshake of a connection, within its limit.
    ///
    /// # Errors
    /// Why it failed. The connection is closed.
    pub(super) async fn run(
        &self,
        config: Arc<ServerConfig>,
        mut connection: ServerConnection,
    ) -> Result<TlsStream<ServerConnection>, HandshakeError> {
        let shaken = timeout(LIMIT, self.shake(Arc::clone(&config), &mut connection)).await;
        match shaken.unwrap_or(Err(HandshakeError::Late)) {
            // The session has the keys already: this only puts the two together.
            Ok(session) => {
                Ok(TlsAcceptor::from(config).accept_with(connection, |fresh| *fresh = session).await?)
            }
            Err(error) => {
                if matches!(error, HandshakeError::Refused(_)) {
                    // Closed with unread bytes, a connection is reset, and the alert may be lost.
                    let _ = timeout(ALERT_TIME, read_to_end(&mut connection)).await;
                }
                Err(error)
            }
        }
    }

    async fn shake(
        &self,
        config: Arc<ServerConfig>,
        connection: &mut ServerConnection,
    ) -> Result<TlsSession, HandshakeError> {
        let mut session = TlsSession::new(config)?;
        let (mut received, mut total) = (BytesMut::with_capacity(4 << 10), 0);
        while session.is_handshaking() {
            let complete = loop {
                match complete_records(&received)? {
                    0 => {}
                    bytes => break bytes,
                }
                let bytes = connection.read_buf(&mut received).await?;
                total += bytes;
                match bytes {
                    0 if total == 0 => return Err(HandshakeError::Nothing),
                    0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    _ if total > MOST_BYTES => return Err(HandshakeError::TooLarge),
                    _ => {}
                }
            };
            let (processed, result) = self.process(session, received.split_to(complete)).await?;
            session = processed;
            // Also the alert that tells a refused peer why.
            let sent = send(&mut session, connection).await;
            result?;
            sent?;
        }
        if session.alpn_protocol() != Some(HTTP2) {
            return Err(HandshakeError::NoHttp2);
        }
        // What the peer sent after its part of the handshake.
        feed(&mut session, &received)?;
        Ok(session)
    }

    /// Gives records to the session, on a thread that may block.
    async fn process(
        &self,
        mut session: TlsSession,
        records: BytesMut,
    ) -> Result<(TlsSession, Result<(), rustls::Error>), HandshakeError> {
        let permit = Arc::clone(&self.0).acquire_owned().await;
        let process = move || {
            let _permit = permit;
            let result = feed(&mut session, &records);
            (session, result)
        };
        tokio::task::spawn_blocking(process).await.map_err(|_| HandshakeError::Panicked)
    }
}

/// The number of bytes in the complete records at the begin.
fn complete_records(bytes: &[u8]) -> Result<usize, HandshakeError> {
    let mut complete = 0;
    loop {
        let rest = &bytes[complete..];
        match rest {
            // Change of cipher, alert, handshake, data.
            [] | [20..=23] | [20..=23, 3, ..] => {}
            [b'A'..=b'Z', ..] => return Err(HandshakeError::PlainHttp),
            _ => return Err(HandshakeError::NotTls),
        }
        let Some(header) = rest.get(..RECORD_HEADER) else { return Ok(complete) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length > MOST_RECORD {
            return Err(HandshakeError::NotTls);
        }
        if rest.len() < RECORD_HEADER + length {
            return Ok(complete);
        }
        complete += RECORD_HEADER + length;
    }
}

fn feed(session: &mut TlsSession, mut bytes: &[u8]) -> Result<(), rustls::Error> {
    while bytes.has_remaining() {
        session.read_tls(&mut bytes).map_err(|error| rustls::Error::General(error.to_string()))?;
        session.process_new_packets()?;
    }
    Ok(())
}

/// Sends what the session has to send.
async fn send(session: &mut TlsSession, connection: &mut ServerConnection) -> io::Result<()> {
    while session.wants_write() {
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes)?;
        connection.write_all(&bytes).await?;
    }
    connection.flush().await
}

/// Reads until the peer closes, or has sent too much.
async fn read_to_end(connection: &mut ServerConnection) -> io::Result<()> {
    connection.shutdown().await?;
    let mut bytes = [0; 1 << 10];
    for _ in 0..MOST_BYTES / bytes.len() {
        if connection.read(&mut bytes).await? == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_whole_records_are_taken() {
        let record = [22, 3, 1, 0, 2, 7, 7];
        let two = [&record[..], &record[..]].concat();
        for cut in 0..two.len() {
            assert_eq!(complete_records(&two[..cut]).unwrap(), cut / 7 * 7, "{cut}");
        }
        assert_eq!(complete_records(&two).unwrap(), 14);
    }

    #[test]
    fn what_is_no_tls_is_refused_with_its_first_bytes() {
        for http in ["GET / HTTP/1.1", "PRI * HTTP/2.0", "P"] {
            assert!(matches!(complete_records(http.as_bytes()), Err(HandshakeError::PlainHttp)), "{http}");
        }
        for garbage in [&[0][..], &[22, 2], &[24, 3], &[22, 3, 3, 0xff, 0xff], b"\n"] {
            assert!(matches!(complete_records(garbage), Err(HandshakeError::NotTls)), "{garbage:?}");
        }
    }

    proptest! {
        #[test]
        fn never_more_than_there_is(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let complete = complete_records(&bytes).unwrap_or(0);
            prop_assert!(complete <= bytes.len());
        }
    }
}
