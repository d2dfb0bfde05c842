//! What is wrong with a TLS handshake, in words and as a kind, for both sides of a connection.

use std::error::Error as _;

use jiff::Timestamp;
use model::untrusted::{MESSAGE, clean};
use rustls::{AlertDescription, CertificateError, Error};
use rustls_pki_types::UnixTime;

use super::role::Role;

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFault {
    /// Its kind.
    pub kind: TlsFaultKind,
    /// One line about the other side.
    pub reason: String,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsFaultKind {
    /// The other side does not speak TLS, or not this version.
    NotTls,
    /// The certificate of the other side is not valid at this time.
    Validity,
    /// No trusted authority signed the certificate of the other side.
    Authority,
    /// The certificate of the other side is that of an authority itself.
    OfAuthority,
    /// The certificate of the other side is for another name.
    Name,
    /// The certificate of the other side has another URI than the one that is expected.
    Id,
    /// The certificate of the other side has another role.
    Role,
    /// The other side has no certificate, or a damaged one.
    Certificate,
    /// The other side finds that our certificate is not valid at this time.
    OwnValidity,
    /// The other side does not know our authority.
    OwnAuthority,
    /// The other side gives our certificate no role.
    OwnRole,
    /// The other side refuses this address for a time.
    Limited,
    /// The other side refuses for another reason.
    Refused,
    /// Anything else.
    Other,
}

/// A certificate that rustls accepts and this program does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unaccepted {
    /// It has another role.
    #[error("{0}")]
    Role(String),
    /// It has another name.
    #[error("{0}")]
    Name(String),
    /// It has another URI than the one that is expected.
    #[error("{0}")]
    Id(String),
}

impl From<Unaccepted> for Error {
    fn from(unaccepted: Unaccepted) -> Self {
        Self::InvalidCertificate(CertificateError::Other(rustls::OtherError(std::sync::Arc::new(unaccepted))))
    }
}

impl TlsFault {
    /// The fault behind an error of rustls.
    pub fn of(error: &Error) -> Self {
        use TlsFaultKind as K;
        let (kind, reason) = match error {
            Error::InvalidCertificate(error) => return Self::of_certificate(error),
            Error::NoCertificatesPresented => (K::Certificate, "it has no certificate".to_owned()),
            Error::InvalidMessage(_) | Error::PeerIncompatible(_) | Error::NoApplicationProtocol => {
                (K::NotTls, format!("it does not speak TLS 1.3 with HTTP/2: {error}"))
            }
            Error::AlertReceived(alert) => of_alert(*alert),
            other => (K::Other, other.to_string()),
        };
        Self { kind, reason: clean(&reason, MESSAGE) }
    }

    /// The fault of the certificate of the other side.
    fn of_certificate(error: &CertificateError) -> Self {
        use TlsFaultKind as K;
        let (kind, reason) = match error {
            CertificateError::ExpiredContext { not_after, .. } => {
                (K::Validity, format!("its certificate expired at {}", shown(*not_after)))
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                (K::Validity, format!("its certificate is not valid before {}", shown(*not_before)))
            }
            CertificateError::UnknownIssuer => {
                (K::Authority, "its certificate is signed by an unknown authority, or by itself".to_owned())
            }
            CertificateError::BadSignature => {
                let why =
                    "its certificate has a wrong signature, perhaps of another authority with the same name";
                (K::Authority, why.to_owned())
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                (K::Name, format!("its certificate is for {}", names_of_presented(presented)))
            }
            CertificateError::InvalidPurposeContext { .. } => {
                (K::Role, "its certificate is not for this side of a connection".to_owned())
            }
            CertificateError::Other(other) if is_authority(other) => {
                let why = "its certificate is that of an authority, perhaps signed by itself, and no host's";
                (K::OfAuthority, why.to_owned())
            }
            CertificateError::Other(other) => match other.0.downcast_ref::<Unaccepted>() {
                Some(Unaccepted::Role(reason)) => (K::Role, reason.clone()),
                Some(Unaccepted::Name(reason)) => (K::Name, reason.clone()),
                Some(Unaccepted::Id(reason)) => (K::Id, reason.clone()),
                None => (K::Certificate, in_words(error)),
            },
            _ => (K::Certificate, in_words(error)),
        };
        Self { kind, reason: clean(&reason, MESSAGE) }
    }
}

/// The record with which an agent refuses an address that had too many failed handshakes: an alert, fatal, `access_denied`.
pub const LIMITED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// What an alert of the other side means.
fn of_alert(alert: AlertDescription) -> (TlsFaultKind, String) {
    use TlsFaultKind as K;
    let (kind, reason) = match alert {
        AlertDescription::CertificateExpired => {
            (K::OwnValidity, "it refuses this certificate: expired, or not valid yet")
        }
        AlertDescription::UnknownCA => (K::OwnAuthority, "it refuses this certificate: unknown authority"),
        AlertDescription::DecryptError => (K::OwnAuthority, "it refuses this certificate: wrong signature"),
        AlertDescription::CertificateUnknown | AlertDescription::UnsupportedCertificate => {
            (K::OwnRole, "it refuses this certificate: no role there")
        }
        // What our agent sends before a handshake; see `LIMITED`.
        AlertDescription::AccessDenied => {
            (K::Limited, "it takes no connection from this address for now: too many handshakes failed")
        }
        AlertDescription::CertificateRequired => (K::Refused, "it wants a certificate"),
        AlertDescription::ProtocolVersion | AlertDescription::NoApplicationProtocol => {
            (K::NotTls, "it does not speak TLS 1.3 with HTTP/2")
        }
        other => return (K::Refused, format!("it refuses the connection: {other:?}")),
    };
    (kind, reason.to_owned())
}

/// Whether the certificate of a host is one of an authority, as `openssl req -x509` makes it.
fn is_authority(error: &rustls::OtherError) -> bool {
    matches!(error.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// `DnsName("a")` as rustls lists it becomes `a`. The URI of a role is no name.
fn names_of_presented(presented: &[String]) -> String {
    let plain = |name: &String| {
        let quoted = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        quoted.map_or_else(|| name.clone(), |name| name.trim_matches('"').to_owned())
    };
    let names: Vec<String> =
        presented.iter().map(plain).filter(|name| Role::of_uris([&**name]) == Ok(None)).collect();
    if names.is_empty() { "no host".to_owned() } else { names.join(", ") }
}

/// What is wrong with a certificate of this side.
pub fn own_certificate(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(cause) => in_words(cause),
        other => other.to_string(),
    }
}

/// What is wrong with a certificate.
pub fn in_words(error: &CertificateError) -> String {
    match error {
        CertificateError::BadEncoding => "it is not a valid X.509 certificate".to_owned(),
        CertificateError::Other(other) => match other.0.downcast_ref::<webpki::Error>() {
            Some(webpki::Error::UnsupportedCertVersion) => {
                "it has an old version of X.509: expected version 3, which `openssl req -x509 -addext \
                 subjectAltName=DNS:HOST` makes"
                    .to_owned()
            }
            Some(error) => error.to_string(),
            None => other.source().map_or_else(|| other.to_string(), ToString::to_string),
        },
        other => other.to_string(),
    }
}

fn shown(time: UnixTime) -> Timestamp {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    fn fault(error: CertificateError) -> (TlsFaultKind, String) {
        let TlsFault { kind, reason } = TlsFault::of(&Error::InvalidCertificate(error));
        (kind, reason)
    }

    #[test]
    fn each_certificate_has_its_words() {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(1_764_510_000));
        let expired = CertificateError::ExpiredContext { time, not_after: time };
        let wanted = (TlsFaultKind::Validity, "its certificate expired at 2025-11-30T13:40:00Z".to_owned());
        assert_eq!(fault(expired), wanted);
        let early = CertificateError::NotValidYetContext { time, not_before: time };
        assert!(fault(early).1.ends_with("is not valid before 2025-11-30T13:40:00Z"));
        assert_eq!(fault(CertificateError::UnknownIssuer).0, TlsFaultKind::Authority);
        let old =
            CertificateError::Other(rustls::OtherError(Arc::new(webpki::Error::UnsupportedCertVersion)));
        assert!(fault(old).1.starts_with("it has an old version of X.509: expected version 3"));
        let by_itself =
            CertificateError::Other(rustls::OtherError(Arc::new(webpki::Error::CaUsedAsEndEntity)));
        let why = "its certificate is that of an authority, perhaps signed by itself, and no host's";
        assert_eq!(fault(by_itself), (TlsFaultKind::OfAuthority, why.to_owned()));
        let role = Error::from(Unaccepted::Role("it has the role viewer".to_owned()));
        let wanted = TlsFault { kind: TlsFaultKind::Role, reason: "it has the role viewer".to_owned() };
        assert_eq!(TlsFault::of(&role), wanted);
    }

    #[test]
    fn names_are_shown_as_they_are() {
        let presented = ["DnsName(\"tpu-1\")", "IpAddress(10.0.0.7)", "tpuscope:role:agent", "x"];
        assert_eq!(names_of_presented(&presented.map(str::to_owned)), "tpu-1, 10.0.0.7, x");
        assert_eq!(names_of_presented(&["tpuscope:role:viewer".to_owned()]), "no host");
    }

    #[test]
    fn alerts_tell_what_the_other_side_found() {
        let kind = |alert| TlsFault::of(&Error::AlertReceived(alert)).kind;
        assert_eq!(kind(AlertDescription::CertificateExpired), TlsFaultKind::OwnValidity);
        assert_eq!(kind(AlertDescription::UnknownCA), TlsFaultKind::OwnAuthority);
        assert_eq!(kind(AlertDescription::CertificateUnknown), TlsFaultKind::OwnRole);
        assert_eq!(kind(AlertDescription::HandshakeFailure), TlsFaultKind::Refused);
    }
}
