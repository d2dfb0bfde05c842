//! An authority of one's own: a folder with its certificate and key, which issues the certificates of agents and people.
//!
//! Must never replace a file, and never have a private key in a file that another user can read, not for an instant.

use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use jiff::Timestamp;
use model::untrusted::{MESSAGE, clean};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, DnsName};
use time::OffsetDateTime;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{
    certificate::{CertificateFacts, NotACertificate},
    files::{self, IdentityError},
    role::Role,
};

/// The authority's certificate in its folder.
pub const CA_FILE: &str = "ca.pem";
/// The authority's key in its folder.
pub const CA_KEY_FILE: &str = "ca-key.pem";
const CERT_FILE: &str = "cert.pem";
const KEY_FILE: &str = "key.pem";

const DAY_SECONDS: i64 = 86_400;
/// The longest name of a person.
const LONGEST_NAME: usize = 64;

/// A host as a certificate names it: a DNS name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertifiedHost {
    /// A DNS name.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// The name of a person or a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonName(String);

/// Why a certificate cannot have a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertifiedNameError {
    /// Not a host.
    #[error("`{0}` is no name of a host: expected a DNS name or an IP address, without a port")]
    Host(String),
    /// Not a person.
    #[error("`{0}` is no name: expected 1 to {LONGEST_NAME} letters, digits and . _ @ -, not first . or -")]
    Person(String),
}

/// Whose certificate it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSubject {
    /// The agent of a host, with all names that clients reach it by: at least one.
    Agent(Vec<CertifiedHost>),
    /// A client with this role.
    Client(Role, PersonName),
}

/// How long a certificate is valid, in days from now. It begins one day earlier, for clocks that are late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidDays(pub u16);

/// Why an authority cannot be made, or cannot issue.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file of the authority cannot be used.
    #[error(transparent)]
    Files(#[from] IdentityError),
    /// A file is there already.
    #[error("{} exists", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}: {error}", .path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The certificate is not that of an authority.
    #[error("{} is not the certificate of an authority", .0.display())]
    NotAnAuthority(PathBuf),
    /// The authority's key belongs to another certificate.
    #[error("the private key {} does not belong to {}", .key.display(), .cert.display())]
    OtherKey {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
    },
    /// The authority is not valid now.
    #[error("the authority {} {validity}", .path.display())]
    NotValid {
        /// The file of its certificate.
        path: PathBuf,
        /// What is wrong.
        validity: String,
    },
    /// The library that makes certificates refuses.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A certificate that was just made cannot be read.
    #[error("the certificate that was made cannot be read: {0}")]
    Made(#[from] NotACertificate),
    /// The clock is beyond what a certificate can hold.
    #[error("the clock of this host is wrong: {0}")]
    Clock(Timestamp),
}

/// A certificate with its files.
#[derive(Debug)]
pub struct Issued {
    /// Where the files are.
    pub folder: PathBuf,
    /// What the certificate says.
    pub facts: CertificateFacts,
}

impl FromStr for CertifiedHost {
    type Err = CertifiedNameError;

    fn from_str(text: &str) -> Result<Self, CertifiedNameError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match DnsName::try_from(text) {
            Ok(_) => Ok(Self::Name(text.to_owned())),
            Err(_) => Err(CertifiedNameError::Host(clean(text, MESSAGE))),
        }
    }
}

impl std::fmt::Display for CertifiedHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for PersonName {
    type Err = CertifiedNameError;

    fn from_str(text: &str) -> Result<Self, CertifiedNameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        let plain = (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(allowed);
        if plain && !text.starts_with(['.', '-']) {
            return Ok(Self(text.to_owned()));
        }
        Err(CertifiedNameError::Person(clean(text, MESSAGE)))
    }
}

impl CertificateSubject {
    fn role(&self) -> Role {
        match self {
            Self::Agent(_) => Role::Agent,
            Self::Client(role, _) => *role,
        }
    }

    /// The name that its folder has by default.
    pub fn folder_name(&self) -> String {
        match self {
            Self::Agent(hosts) => hosts.first().map(ToString::to_string).unwrap_or_default(),
            Self::Client(_, PersonName(name)) => name.clone(),
        }
    }

    fn names(&self) -> Result<Vec<SanType>, rcgen::Error> {
        let of_host = |host: &CertifiedHost| match host {
            CertifiedHost::Name(name) => Ok(SanType::DnsName(name.as_str().try_into()?)),
            CertifiedHost::Address(address) => Ok(SanType::IpAddress(*address)),
        };
        let hosts = if let Self::Agent(hosts) = self { hosts.iter() } else { [].iter() };
        let role = self.role().uri().try_into().map(SanType::URI);
        hosts.map(of_host).chain([role]).collect()
    }
}

/// Makes an authority in `folder`, which is created if need be. Blocks.
///
/// # Errors
/// If the folder has an authority, or cannot be written to.
pub fn create(folder: &Path, valid: ValidDays, now: Timestamp) -> Result<Issued, AuthorityError> {
    let key = KeyPair::generate()?;
    let mut mark = String::new();
    for byte in &key.public_key_raw()[1..5] {
        // Writing to a String cannot fail.
        let _ = write!(mark, "{byte:02x}");
    }
    let mut params = params(&format!("tpuscope authority {mark}"), valid, now)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    let files = [
        NewFile { name: CA_KEY_FILE, text: key.serialize_pem(), private: true },
        NewFile { name: CA_FILE, text: certificate.pem(), private: false },
    ];
    write_new(folder, &files)?;
    Ok(Issued { folder: folder.to_owned(), facts: CertificateFacts::of(certificate.der())? })
}

/// Issues a certificate of the authority in `authority`, with a new key, into `folder`, which is created if need be. It has
/// the names of [`IdentityFiles::in_folder`](files::IdentityFiles::in_folder). Blocks.
///
/// # Errors
/// If the authority cannot be used, or a file exists or cannot be written.
pub fn issue(
    authority: &Path,
    folder: &Path,
    subject: &CertificateSubject,
    valid: ValidDays,
    now: Timestamp,
) -> Result<Issued, AuthorityError> {
    let (issuer, ca, ends) = issuer(authority, now)?;
    let mut params = params(&subject.folder_name(), valid, now)?;
    params.not_after = params.not_after.min(date_time(ends)?);
    params.subject_alt_names = subject.names()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match subject {
        CertificateSubject::Agent(_) => {
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
        }
        CertificateSubject::Client(..) => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let files = [
        NewFile { name: KEY_FILE, text: key.serialize_pem(), private: true },
        NewFile { name: CERT_FILE, text: certificate.pem(), private: false },
        NewFile { name: CA_FILE, text: ca, private: false },
    ];
    write_new(folder, &files)?;
    Ok(Issued { folder: folder.to_owned(), facts: CertificateFacts::of(certificate.der())? })
}

/// Whether a certificate can be issued into `folder`: none of its files is there. Blocks.
///
/// # Errors
/// If one is.
pub fn check_free(folder: &Path) -> Result<(), AuthorityError> {
    nothing_there(folder, [KEY_FILE, CERT_FILE, CA_FILE])
}

/// Removes the files of a certificate that was issued by this program just now. Blocks.
pub fn take_back(issued: &Issued) {
    for file in [KEY_FILE, CERT_FILE, CA_FILE] {
        // What cannot be removed is named by the next attempt.
        let _ = fs::remove_file(issued.folder.join(file));
    }
    // Nothing else is in it, as a rule.
    let _ = fs::remove_dir(&issued.folder);
}

/// The authority of a folder, its certificate in PEM, and its end.
fn issuer(
    folder: &Path,
    now: Timestamp,
) -> Result<(Issuer<'static, KeyPair>, String, Timestamp), AuthorityError> {
    let (cert_path, key_path) = (folder.join(CA_FILE), folder.join(CA_KEY_FILE));
    let certificate = files::certificates(&cert_path)?.swap_remove(0);
    let facts = files::facts(&certificate, &cert_path)?;
    if !facts.is_authority {
        return Err(AuthorityError::NotAnAuthority(cert_path));
    }
    let key = KeyPair::try_from(&files::private_key(&key_path)?)
        .map_err(|error| IdentityError::NoKey { path: key_path.clone(), reason: error.to_string() })?;
    if !belongs(&key, &certificate) {
        return Err(AuthorityError::OtherKey { key: key_path, cert: cert_path });
    }
    if !matches!(facts.validity_at(now), super::certificate::Validity::Valid(_)) {
        let validity = facts.validity_at(now).to_string();
        return Err(AuthorityError::NotValid { path: cert_path, validity });
    }
    let pem = fs::read_to_string(&cert_path)
        .map_err(|error| IdentityError::Unreadable { path: cert_path.clone(), error })?;
    Ok((Issuer::from_ca_cert_der(&certificate, key)?, pem, facts.not_after))
}

fn belongs(key: &KeyPair, certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.public_key().raw == key.subject_public_key_info())
}

/// A certificate with this common name.
fn params(name: &str, valid: ValidDays, now: Timestamp) -> Result<CertificateParams, AuthorityError> {
    let at = |days: i64| {
        let seconds = now.as_second().saturating_add(days * DAY_SECONDS);
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| AuthorityError::Clock(now))
    };
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (at(-1)?, at(i64::from(valid.0))?);
    params.distinguished_name = DistinguishedName::new();
    // X.509 allows no longer ones.
    if name.len() <= LONGEST_NAME {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    Ok(params)
}

fn date_time(time: Timestamp) -> Result<OffsetDateTime, AuthorityError> {
    OffsetDateTime::from_unix_timestamp(time.as_second()).map_err(|_| AuthorityError::Clock(time))
}

/// A file to be made.
struct NewFile {
    name: &'static str,
    text: String,
    /// For its user alone.
    private: bool,
}

/// Writes all files, or none.
fn write_new(folder: &Path, files: &[NewFile]) -> Result<(), AuthorityError> {
    nothing_there(folder, files.iter().map(|file| file.name))?;
    let unwritable = |path: &Path, error| AuthorityError::Unwritable { path: path.to_owned(), error };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| unwritable(folder, error))?;
    for (number, file) in files.iter().enumerate() {
        let path = folder.join(file.name);
        if let Err(error) = write_file(&path, file) {
            // The files before are useless alone, and would be in the way of the next attempt.
            for written in &files[..number] {
                let _ = fs::remove_file(folder.join(written.name));
            }
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists => AuthorityError::Exists(path),
                _ => unwritable(&path, error),
            });
        }
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| unwritable(folder, error))
}

fn nothing_there<'n>(folder: &Path, names: impl IntoIterator<Item = &'n str>) -> Result<(), AuthorityError> {
    let taken = names.into_iter().map(|name| folder.join(name)).find(|path| path.symlink_metadata().is_ok());
    taken.map_or(Ok(()), |path| Err(AuthorityError::Exists(path)))
}

fn write_file(path: &Path, file: &NewFile) -> io::Result<()> {
    let mode = if file.private { 0o600 } else { 0o644 };
    let mut written = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let done = written.write_all(file.text.as_bytes()).and_then(|()| written.sync_all());
    if done.is_err() {
        let _ = fs::remove_file(path);
    }
    done
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::{super::files::IdentityFiles, *};

    const YEAR: ValidDays = ValidDays(365);

    fn now() -> Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn operator(name: &str) -> CertificateSubject {
        CertificateSubject::Client(Role::Operator, name.parse().unwrap())
    }

    #[test]
    fn an_authority_issues_what_rustls_accepts() {
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path().join("new/ca");
        let made = create(&authority, ValidDays(3650), now()).unwrap();
        assert!(made.facts.is_authority && made.facts.subject.starts_with("tpuscope authority "));
        assert_eq!((mode(&authority), mode(&authority.join(CA_KEY_FILE))), (0o700, 0o600));
        let hosts = ["tpu-1.example", "10.0.0.7", "fd00::7"].map(|host| host.parse().unwrap());
        let out = folder.path().join("tpu-1");
        let issued =
            issue(&authority, &out, &CertificateSubject::Agent(hosts.to_vec()), YEAR, now()).unwrap();
        assert_eq!(issued.facts.role, Ok(Some(Role::Agent)));
        assert_eq!(issued.facts.names(), ["tpu-1.example", "10.0.0.7", "fd00::7"]);
        assert_eq!(issued.facts.not_before.to_string(), "2026-11-29T12:00:00Z");
        assert_eq!(issued.facts.not_after.to_string(), "2027-11-30T12:00:00Z");
        assert_eq!(issued.facts.issuer, made.facts.subject);
        assert_eq!(mode(&out.join(KEY_FILE)), 0o600);
        let identity = IdentityFiles::in_folder(&out).read().unwrap();
        let leaf = webpki::EndEntityCert::try_from(&identity.chain[0]).unwrap();
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let time = std::time::Duration::from_secs(u64::try_from(now().as_second()).unwrap());
        let verified = leaf.verify_for_usage(
            algorithms.all,
            &identity.authorities.roots,
            &[],
            rustls_pki_types::UnixTime::since_unix_epoch(time),
            webpki::KeyUsage::server_auth(),
            None,
            None,
        );
        assert!(verified.is_ok(), "{:?}", verified.err());
    }

    #[test]
    fn no_file_is_ever_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path();
        create(authority, YEAR, now()).unwrap();
        let before = fs::read(authority.join(CA_KEY_FILE)).unwrap();
        assert!(matches!(create(authority, YEAR, now()), Err(AuthorityError::Exists(_))));
        assert_eq!(fs::read(authority.join(CA_KEY_FILE)).unwrap(), before);
        let out = authority.join("alice");
        issue(authority, &out, &operator("alice"), YEAR, now()).unwrap();
        let again = issue(authority, &out, &operator("alice"), YEAR, now());
        assert!(matches!(again, Err(AuthorityError::Exists(_))));
        // Not even one that leads nowhere.
        let out = authority.join("bob");
        fs::create_dir(&out).unwrap();
        std::os::unix::fs::symlink("/nowhere", out.join(CERT_FILE)).unwrap();
        let linked = issue(authority, &out, &operator("bob"), YEAR, now());
        assert!(matches!(linked, Err(AuthorityError::Exists(_))));
        assert!(!out.join(KEY_FILE).exists(), "no key is left alone");
    }

    #[test]
    fn an_authority_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (authority, out) = (folder.path().join("ca"), folder.path().join("out"));
        let refused = |now| {
            let said = issue(&authority, &out, &operator("alice"), YEAR, now).unwrap_err().to_string();
            said.replace(&format!("{}/", folder.path().display()), "")
        };
        assert!(refused(now()).starts_with("cannot read ca/ca.pem: No such file"));
        create(&authority, ValidDays(10), now()).unwrap();
        let later = "2026-12-11T00:00:00Z".parse().unwrap();
        assert_eq!(refused(later), "the authority ca/ca.pem expired at 2026-12-10T12:00:00Z");
        let issued = issue(&authority, &folder.path().join("x"), &operator("x"), YEAR, now()).unwrap();
        assert_eq!(issued.facts.not_after.to_string(), "2026-12-10T12:00:00Z", "never beyond the authority");
        fs::write(authority.join(CA_KEY_FILE), KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert_eq!(refused(now()), "the private key ca/ca-key.pem does not belong to ca/ca.pem");
        fs::set_permissions(authority.join(CA_KEY_FILE), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(now()).contains("has the mode 0644"), "{}", refused(now()));
        fs::copy(folder.path().join("x/cert.pem"), authority.join(CA_FILE)).unwrap();
        assert_eq!(refused(now()), "ca/ca.pem is not the certificate of an authority");
    }

    #[test]
    fn names_are_checked() {
        for good in ["tpu-1", "tpu_1.example.", "10.0.0.7", "::1"] {
            assert_eq!(good.parse::<CertifiedHost>().unwrap().to_string(), good);
        }
        for bad in ["", "tpu-1:4393", "a b", "*.example", "me@tpu-1", "-a", "ä", "a\u{1b}"] {
            assert!(matches!(bad.parse::<CertifiedHost>(), Err(CertifiedNameError::Host(_))), "{bad}");
        }
        assert!("alice@example.com".parse::<PersonName>().is_ok());
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(matches!(bad.parse::<PersonName>(), Err(CertifiedNameError::Person(_))), "{bad}");
        }
    }
}
