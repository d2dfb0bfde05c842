//! The files of an identity: a certificate with its chain, its private key, and the authorities that are trusted.
//!
//! Must never read a file without a limit, or use a private key that every user can read.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use host::regular_file;
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::{
    certificate::{self, CertificateFacts, PemError},
    tls_fault,
};

/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// What every user may do with a file.
const EVERYBODY: u32 = 0o007;

/// The names of the files in a folder: ours, and those of a Kubernetes secret of the type `kubernetes.io/tls`.
const NAMES: [[&str; 3]; 2] = [["cert.pem", "key.pem", "ca.pem"], ["tls.crt", "tls.key", "ca.crt"]];

/// Where the files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, and after it those between it and its authority, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities that sign the certificates of the other side, in PEM.
    pub ca: PathBuf,
}

/// What the files have.
#[derive(Debug)]
pub struct Identity {
    /// The certificate and its chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// What the certificate says.
    pub facts: CertificateFacts,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// The authorities of the other side.
    pub authorities: RootCertStore,
    /// What their certificates say.
    pub authority_facts: Vec<CertificateFacts>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file is larger than 1 MiB.
    #[error("{} is larger than 1 MiB: expected a file in PEM", .0.display())]
    TooLarge(PathBuf),
    /// Every user can use the private key.
    #[error("{} has the mode {mode:04o}, with which every user can use the private key", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// No private key in a file.
    #[error("{}: no private key in PEM: {reason}", .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// No usable certificate in a file.
    #[error("{}: {reason}", .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The private key belongs to another certificate.
    #[error("the private key {} does not belong to the certificate {}", .key.display(), .cert.display())]
    OtherKey {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
    },
    /// The private key cannot be used for TLS.
    #[error("{}: the private key cannot be used: {reason}", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl IdentityFiles {
    /// The files in a folder: `cert.pem`, `key.pem` and `ca.pem`, or else `tls.crt`, `tls.key` and `ca.crt`. Blocks.
    pub fn in_folder(folder: &Path) -> Self {
        let [ours, secret] = NAMES.map(|names| names.map(|name| folder.join(name)));
        let [cert, key, ca] = if !ours[0].exists() && secret[0].exists() { secret } else { ours };
        Self { cert, key, ca }
    }

    /// All paths.
    pub fn paths(&self) -> [&Path; 3] {
        [&self.cert, &self.key, &self.ca]
    }

    /// Reads and checks the files. Blocks.
    ///
    /// # Errors
    /// The first fault.
    pub fn read(&self) -> Result<Identity, IdentityError> {
        let chain = certificates(&self.cert)?;
        let facts = facts(&chain[0], &self.cert)?;
        let key = private_key(&self.key)?;
        let trusted = certificates(&self.ca)?;
        let mut authorities = RootCertStore::empty();
        let mut authority_facts = Vec::with_capacity(trusted.len());
        for authority in trusted {
            authority_facts.push(self::facts(&authority, &self.ca)?);
            authorities.add(authority).map_err(|error| {
                let reason = format!(
                    "the certificate of an authority cannot be used: {}",
                    tls_fault::own_certificate(&error)
                );
                IdentityError::Certificate { path: self.ca.clone(), reason }
            })?;
        }
        Ok(Identity { chain, facts, key, authorities, authority_facts })
    }

    /// Why rustls refuses the certificate with the key.
    pub fn refused(&self, error: &rustls::Error) -> IdentityError {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                IdentityError::OtherKey { key: self.key.clone(), cert: self.cert.clone() }
            }
            rustls::Error::InvalidCertificate(_) => {
                let reason = format!("the certificate cannot be used: {}", tls_fault::own_certificate(error));
                IdentityError::Certificate { path: self.cert.clone(), reason }
            }
            other => IdentityError::Key { path: self.key.clone(), reason: other.to_string() },
        }
    }
}

/// The certificates of a file in PEM, at least one. Blocks.
///
/// # Errors
/// If the file cannot be read, or has none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = read_text(open(path)?, path)?;
    certificate::of_pem(&text).map_err(|error| {
        let is_key = error == PemError::Nothing && text.contains("PRIVATE KEY-----");
        let reason =
            if is_key { "it has a private key, and no certificate".into() } else { error.to_string() };
        IdentityError::Certificate { path: path.to_owned(), reason }
    })
}

/// What a certificate of a file says.
///
/// # Errors
/// If it is none.
pub fn facts(certificate: &CertificateDer<'_>, path: &Path) -> Result<CertificateFacts, IdentityError> {
    CertificateFacts::of(certificate)
        .map_err(|error| IdentityError::Certificate { path: path.to_owned(), reason: error.to_string() })
}

/// The text of a private key that not every user can use. Blocks.
///
/// # Errors
/// If the file cannot be read, or its mode is too open.
fn private_text(path: &Path) -> Result<String, IdentityError> {
    let file = open(path)?;
    let metadata =
        file.metadata().map_err(|error| IdentityError::Unreadable { path: path.to_owned(), error })?;
    let mode = metadata.mode() & 0o7777;
    if mode & EVERYBODY != 0 {
        return Err(IdentityError::Exposed { path: path.to_owned(), mode });
    }
    read_text(file, path)
}

/// The private key of a file in PEM that not every user can use. Blocks.
///
/// # Errors
/// If the file cannot be read, its mode is too open, or it has no key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    PrivateKeyDer::from_pem_slice(private_text(path)?.as_bytes())
        .map_err(|error| IdentityError::NoKey { path: path.to_owned(), reason: certificate::damage(&error) })
}

fn open(path: &Path) -> Result<File, IdentityError> {
    regular_file::open(path).map_err(|error| IdentityError::Unreadable { path: path.to_owned(), error })
}

/// PEM is ASCII; what is not UTF-8 is found when it is parsed.
fn read_text(file: File, path: &Path) -> Result<String, IdentityError> {
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| IdentityError::Unreadable { path: path.to_owned(), error })?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(IdentityError::TooLarge(path.to_owned()));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A folder with a certificate that signs itself.
    fn folder(names: [&str; 3]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["h".to_owned()]).unwrap().self_signed(&key).unwrap();
        let [cert_name, key_name, ca_name] = names.map(|name| folder.path().join(name));
        fs::write(&cert_name, cert.pem()).unwrap();
        fs::write(&ca_name, cert.pem()).unwrap();
        fs::write(&key_name, key.serialize_pem()).unwrap();
        fs::set_permissions(&key_name, Permissions::from_mode(0o640)).unwrap();
        folder
    }

    #[test]
    fn both_layouts_of_a_folder_are_read() {
        for names in NAMES {
            let folder = folder(names);
            let read = IdentityFiles::in_folder(folder.path()).read().unwrap();
            assert_eq!(read.facts.dns_names, ["h"]);
            assert_eq!((read.authorities.len(), read.authority_facts.len()), (1, 1));
        }
    }

    #[test]
    fn each_fault_names_its_file() {
        let folder = folder(NAMES[0]);
        let files = IdentityFiles::in_folder(folder.path());
        let refused = || {
            let said = files.read().unwrap_err().to_string();
            said.replace(&format!("{}/", folder.path().display()), "")
        };
        let mode = |mode| fs::set_permissions(&files.key, Permissions::from_mode(mode)).unwrap();
        for open in [0o644, 0o604, 0o602] {
            mode(open);
            let wanted =
                format!("key.pem has the mode {open:04o}, with which every user can use the private key");
            assert_eq!(refused(), wanted);
        }
        mode(0o600);
        fs::write(&files.key, "nonsense").unwrap();
        assert!(refused().starts_with("key.pem: no private key in PEM: "), "{}", refused());
        fs::write(&files.cert, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert_eq!(refused(), "cert.pem: it has a private key, and no certificate");
        fs::write(&files.cert, [0xff; 10]).unwrap();
        assert_eq!(refused(), "cert.pem: no certificate in PEM");
        fs::write(&files.cert, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert_eq!(refused(), "cert.pem is larger than 1 MiB: expected a file in PEM");
        fs::remove_file(&files.cert).unwrap();
        assert!(refused().starts_with("cannot read cert.pem: No such file"), "{}", refused());
    }
}
