//! What a certificate says: its names, its role, its authority and its validity.
//!
//! Must never decide whether a certificate is genuine: that is rustls' work, and comes first where the certificate is a
//! peer's.

use std::{fmt, net::IpAddr, time::Duration};

use jiff::Timestamp;
use model::untrusted::{MESSAGE, clean};
use rustls_pki_types::{
    CertificateDer, ServerName,
    pem::{self, PemObject},
};
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer, time::ASN1Time, x509::X509Name,
};

use super::role::{Role, RoleError};

/// What a certificate says of itself. All texts are fit to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The common name of its subject, or else the whole subject; may be empty.
    pub subject: String,
    /// The same of the authority that signed it.
    pub issuer: String,
    /// Its serial number, in hex digits.
    pub serial: String,
    /// Its DNS names.
    pub dns_names: Vec<String>,
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Its URIs.
    pub uris: Vec<String>,
    /// Its role; `None`: it has none of ours.
    pub role: Result<Option<Role>, RoleError>,
    /// Whether it may sign others.
    pub is_authority: bool,
    /// When it begins to be valid.
    pub not_before: Timestamp,
    /// When it ends to be valid.
    pub not_after: Timestamp,
}

/// The bytes are no X.509 certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a valid X.509 certificate")]
pub struct NotACertificate;

/// Why a PEM text has no certificates to give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// It has none.
    #[error("no certificate in PEM")]
    Nothing,
    /// It is damaged.
    #[error("{0}")]
    Damaged(String),
}

/// All certificates of a text in PEM, at least one.
///
/// # Errors
/// If there is none, or the text is damaged.
pub fn of_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if found.is_empty() => Err(PemError::Nothing),
        Ok(found) => Ok(found),
        Err(error) => Err(PemError::Damaged(damage(&error))),
    }
}

/// What is wrong with a text in PEM. The library shows lines as lists of numbers.
pub(super) fn damage(error: &pem::Error) -> String {
    let quoted = |line: &[u8]| clean(String::from_utf8_lossy(line).trim_end(), MESSAGE);
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("it is cut off: the line `{}` is missing", quoted(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("its line `{}` is damaged: expected -----BEGIN …-----", quoted(line))
        }
        pem::Error::Base64Decode(_) => "a line of it is not Base64".to_owned(),
        other => clean(&other.to_string(), MESSAGE),
    }
}

impl CertificateFacts {
    /// Reads a certificate.
    ///
    /// # Errors
    /// If it is none.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, NotACertificate> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| NotACertificate)?;
        let names = parsed.subject_alternative_name().map_err(|_| NotACertificate)?;
        let (mut dns_names, mut addresses, mut uris) = (Vec::new(), Vec::new(), Vec::new());
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => dns_names.push(clean(name, MESSAGE)),
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
                _ => {}
            }
        }
        let role = Role::of_uris(uris.iter().map(String::as_str));
        let validity = parsed.validity();
        Ok(Self {
            subject: shown(parsed.subject()),
            issuer: shown(parsed.issuer()),
            serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            dns_names,
            addresses,
            uris: uris.iter().map(|uri| clean(uri, MESSAGE)).collect(),
            role,
            is_authority: parsed.is_ca(),
            not_before: time(validity.not_before),
            not_after: time(validity.not_after),
        })
    }

    /// Whose it is, for a log: its subject, or else its first name.
    pub fn shown_name(&self) -> String {
        let other_uris = self.uris.iter().filter(|uri| !matches!(Role::of_uris([&***uri]), Ok(Some(_))));
        let mut names = [&self.subject].into_iter().chain(&self.dns_names).chain(other_uris);
        let first = names.find(|name| !name.is_empty()).cloned();
        let address = || self.addresses.first().map(ToString::to_string);
        first.or_else(address).unwrap_or_else(|| format!("serial {}", self.serial))
    }

    /// All names but that of the role.
    pub fn names(&self) -> Vec<String> {
        let other_uris = self.uris.iter().filter(|uri| !matches!(Role::of_uris([&***uri]), Ok(Some(_))));
        let addresses = self.addresses.iter().map(ToString::to_string);
        self.dns_names.iter().cloned().chain(addresses).chain(other_uris.cloned()).collect()
    }

    /// Why it must not take the place of `before`: that one is valid at this time, and it is not.
    pub fn is_no_successor_of(&self, before: &Self, now: Timestamp) -> Option<Validity> {
        let is_valid = |validity: &Validity| matches!(validity, Validity::Valid(_));
        let validity = self.validity_at(now);
        (is_valid(&before.validity_at(now)) && !is_valid(&validity)).then_some(validity)
    }

    /// Whether it is valid at this time.
    pub fn validity_at(&self, now: Timestamp) -> Validity {
        if now < self.not_before {
            return Validity::NotYet(self.not_before);
        }
        match Duration::try_from(self.not_after.duration_since(now)) {
            Ok(left) if !left.is_zero() => Validity::Valid(left),
            _ => Validity::Expired(self.not_after),
        }
    }
}

/// Whether a certificate is valid at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// For so long.
    Valid(Duration),
    /// Not before this time.
    NotYet(Timestamp),
    /// No longer since this time.
    Expired(Timestamp),
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid(left) => match left.as_secs() / 86_400 {
                0 => f.write_str("expires within a day"),
                1 => f.write_str("expires in 1 day"),
                days => write!(f, "expires in {days} days"),
            },
            Self::NotYet(from) => write!(f, "is not valid before {from}"),
            Self::Expired(at) => write!(f, "expired at {at}"),
        }
    }
}

/// Whether a certificate has exactly `name` as a DNS name, URI or IP address.
pub fn carries(certificate: &webpki::EndEntityCert<'_>, name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        let subject = ServerName::IpAddress(address.into());
        return certificate.verify_is_valid_for_subject_name(&subject).is_ok();
    }
    certificate.valid_dns_names().any(|dns| dns == name)
        || certificate.valid_uri_names().any(|uri| uri == name)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    v4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

fn shown(name: &X509Name<'_>) -> String {
    let common = name.iter_common_name().next().and_then(|name| name.as_str().ok());
    clean(&common.map_or_else(|| name.to_string(), str::to_owned), MESSAGE)
}

/// A time beyond what can be shown is the last one that can.
fn time(time: ASN1Time) -> Timestamp {
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[&str], uris: &[&str]) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "a\u{1b}b");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 3, 1);
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn names_role_and_validity_are_read() {
        let names = ["tpu-1.example", "10.0.0.7", "fd00::7"];
        let facts =
            CertificateFacts::of(&certificate(&names, &["tpuscope:role:agent", "spiffe://x/y"])).unwrap();
        assert_eq!(facts.role, Ok(Some(Role::Agent)));
        assert_eq!(facts.names(), ["tpu-1.example", "10.0.0.7", "fd00::7", "spiffe://x/y"]);
        assert_eq!((facts.subject.as_str(), facts.is_authority), ("a\u{fffd}b", false));
        let at = |text: &str| facts.validity_at(text.parse().unwrap()).to_string();
        assert_eq!(at("2025-12-31T23:59:59Z"), "is not valid before 2026-01-01T00:00:00Z");
        assert_eq!(at("2026-02-20T00:00:00Z"), "expires in 9 days");
        assert_eq!(at("2026-02-27T12:00:00Z"), "expires in 1 day");
        assert_eq!(at("2026-02-28T12:00:00Z"), "expires within a day");
        assert_eq!(at("2026-03-01T00:00:00Z"), "expired at 2026-03-01T00:00:00Z");
    }

    #[test]
    fn only_a_valid_certificate_takes_the_place_of_a_valid_one() {
        let facts = |begin: &str, end: &str| {
            let mut facts = CertificateFacts::of(&certificate(&["h"], &[])).unwrap();
            (facts.not_before, facts.not_after) = (begin.parse().unwrap(), end.parse().unwrap());
            facts
        };
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let valid = facts("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z");
        let expired = facts("2026-01-01T00:00:00Z", "2026-05-01T00:00:00Z");
        let early = facts("2026-07-01T00:00:00Z", "2027-01-01T00:00:00Z");
        assert_eq!(expired.is_no_successor_of(&valid, now), Some(Validity::Expired(expired.not_after)));
        assert_eq!(early.is_no_successor_of(&valid, now), Some(Validity::NotYet(early.not_before)));
        assert_eq!(valid.is_no_successor_of(&valid, now), None);
        // Where neither is valid the new one is as good.
        assert_eq!(early.is_no_successor_of(&expired, now), None);
    }

    #[test]
    fn a_holder_always_has_a_name() {
        let mut facts =
            CertificateFacts::of(&certificate(&["h"], &["tpuscope:role:viewer", "urn:x"])).unwrap();
        assert_eq!(facts.shown_name(), "a\u{fffd}b");
        facts.subject.clear();
        assert_eq!(facts.shown_name(), "h");
        facts.dns_names.clear();
        assert_eq!(facts.shown_name(), "urn:x");
        facts.uris.clear();
        facts.addresses.push([10, 0, 0, 7].into());
        assert_eq!(facts.shown_name(), "10.0.0.7");
        facts.addresses.clear();
        assert_eq!(facts.shown_name(), format!("serial {}", facts.serial));
    }

    #[test]
    fn names_are_compared_letter_for_letter() {
        let der = certificate(&["prometheus.example", "10.0.0.7"], &["spiffe://x/y"]);
        let certificate = webpki::EndEntityCert::try_from(&der).unwrap();
        for (name, carried) in [
            ("prometheus.example", true),
            ("10.0.0.7", true),
            ("spiffe://x/y", true),
            ("spiffe://x", false),
            ("example", false),
            ("*.example", false),
            ("10.0.0.8", false),
            ("", false),
        ] {
            assert_eq!(carries(&certificate, name), carried, "{name}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        assert_eq!(of_pem("nonsense"), Err(PemError::Nothing));
        let junk = of_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert_eq!(CertificateFacts::of(&junk[0]), Err(NotACertificate));
        assert!(matches!(of_pem("-----BEGIN CERTIFICATE-----\n!\n"), Err(PemError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn damaged_certificates_never_panic(at in 0_usize..400, byte in any::<u8>(), cut in 0_usize..400) {
            let mut der = certificate(&["h", "10.0.0.7"], &["tpuscope:role:agent"]).to_vec();
            let at = at % der.len();
            der[at] = byte;
            let cut = cut % der.len();
            let _ = CertificateFacts::of(&der.clone().into()).map(|facts| facts.shown_name());
            der.truncate(cut);
            prop_assert!(CertificateFacts::of(&der.into()).is_err());
        }
    }
}
