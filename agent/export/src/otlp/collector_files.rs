//! The files that an export needs: the headers of its calls, and the certificates of its connection. Blocks.
//!
//! Must never show a header or a key, or use one that every user can read.

use std::{
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use cluster::identity::files::{self, IdentityError, IdentityFiles};
use host::regular_file;
use hyper_rustls::ConfigBuilderExt;
use rustls::{ClientConfig, RootCertStore, version::TLS13};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use super::settings::OtlpSettings;

/// The largest file with headers.
const MAX_HEADERS: u64 = 64 << 10;
/// What every user may do with a file.
const EVERYBODY: u32 = 0o007;
/// Names that belong to gRPC and HTTP.
const RESERVED_HEADERS: [&str; 6] =
    ["content-type", "te", "user-agent", "host", "connection", "content-length"];

/// What the files have.
pub(super) struct CollectorFiles {
    /// The headers of each call.
    pub(super) headers: MetadataMap,
    /// `None` without TLS.
    pub(super) tls: Option<ClientConfig>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CollectorFileError {
    /// The file of headers cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file of headers is larger than 64 KiB.
    #[error("{} is larger than 64 KiB: expected one `name: value` a line", .0.display())]
    TooLarge(PathBuf),
    /// Every user can read the headers.
    #[error("{} has the mode {mode:04o}, with which every user can use it: expected 0640 or 0600", .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A line is no header.
    #[error("{}:{line}: {reason}: expected `name: value`, such as `authorization: Bearer …`", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The number of the line.
        line: usize,
        /// What is wrong with it, without its text.
        reason: &'static str,
    },
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No authority is known.
    #[error("no certificate authority of this host can be read: {0}: set export.otlp.ca")]
    Authorities(io::Error),
    /// The thread that read them ended.
    #[error("the files of export.otlp were not read to their end")]
    Unfinished,
    /// The library of TLS refuses.
    #[error("TLS cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// Reads what the settings name.
pub(super) fn read(settings: &OtlpSettings) -> Result<CollectorFiles, CollectorFileError> {
    let headers = if settings.headers_file.as_os_str().is_empty() {
        MetadataMap::new()
    } else {
        headers(&read_headers(&settings.headers_file)?, &settings.headers_file)?
    };
    let is_tls = settings.endpoint.url().is_some_and(|url| url.is_tls());
    Ok(CollectorFiles { headers, tls: if is_tls { Some(tls(settings)?) } else { None } })
}

/// The headers of a text: one a line; empty lines and those that begin with `#` are none.
fn headers(text: &str, path: &Path) -> Result<MetadataMap, CollectorFileError> {
    let mut headers = MetadataMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = header(line).map_err(|reason| CollectorFileError::Header {
            path: path.to_owned(),
            line: number + 1,
            reason,
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn header(line: &str) -> Result<(AsciiMetadataKey, AsciiMetadataValue), &'static str> {
    let (name, value) = line.split_once(':').ok_or("it has no colon")?;
    let name = name.trim_end().to_ascii_lowercase();
    if RESERVED_HEADERS.contains(&&*name) || name.starts_with("grpc-") {
        return Err("the header belongs to gRPC");
    }
    let name =
        AsciiMetadataKey::from_bytes(name.as_bytes()).map_err(|_| "the name is not one of a text header")?;
    let mut value = AsciiMetadataValue::try_from(value.trim())
        .map_err(|_| "the value has other characters than ASCII")?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn read_headers(path: &Path) -> Result<String, CollectorFileError> {
    let unreadable = |error| CollectorFileError::Unreadable { path: path.to_owned(), error };
    let file = regular_file::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o7777;
    if mode & EVERYBODY != 0 {
        return Err(CollectorFileError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.take(MAX_HEADERS + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_HEADERS {
        return Err(CollectorFileError::TooLarge(path.to_owned()));
    }
    Ok(text)
}

fn tls(settings: &OtlpSettings) -> Result<ClientConfig, CollectorFileError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let builder = if settings.ca.as_os_str().is_empty() {
        builder.with_native_roots().map_err(CollectorFileError::Authorities)?
    } else {
        builder.with_root_certificates(authorities(&settings.ca)?)
    };
    if settings.cert.as_os_str().is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let (chain, key) = (files::certificates(&settings.cert)?, files::private_key(&settings.key)?);
    let ours =
        IdentityFiles { cert: settings.cert.clone(), key: settings.key.clone(), ca: settings.ca.clone() };
    builder.with_client_auth_cert(chain, key).map_err(|error| ours.refused(&error).into())
}

fn authorities(path: &Path) -> Result<RootCertStore, CollectorFileError> {
    let mut roots = RootCertStore::empty();
    for authority in files::certificates(path)? {
        roots.add(authority)?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    #[test]
    fn headers_are_read_and_marked_as_secrets() {
        let read =
            headers("# for the gateway\n\nAuthorization: Bearer x:y \nx-scope-orgid:7\n", Path::new("/h"))
                .unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read.get("authorization").unwrap(), "Bearer x:y");
        assert!(read.get("authorization").unwrap().is_sensitive());
        assert_eq!(read.get("x-scope-orgid").unwrap(), "7");
    }

    #[test]
    fn a_bad_line_is_named_by_its_number_and_never_shown() {
        for (line, reason) in [
            ("Bearer-hunter2", "it has no colon"),
            ("hunter2 hunter2: x", "the name is not one of a text header"),
            ("hunter2-bin: x", "the name is not one of a text header"),
            ("grpc-timeout: hunter2", "the header belongs to gRPC"),
            ("Content-Type: hunter2", "the header belongs to gRPC"),
            ("x: hunter2\u{7}", "the value has other characters than ASCII"),
        ] {
            let error = headers(&format!("a: b\n{line}\n"), Path::new("/h")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("/h:2: {reason}: expected")), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_file_that_every_user_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        fs::write(&path, "a: b\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = read_headers(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("has the mode 0644, with which every user can use it: expected 0640 or 0600"),
            "{error}"
        );
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(read_headers(&path).unwrap(), "a: b\n");
        fs::write(&path, vec![b'x'; (64 << 10) + 1]).unwrap();
        assert!(matches!(read_headers(&path), Err(CollectorFileError::TooLarge(_))));
        assert!(matches!(read_headers(folder.path()), Err(CollectorFileError::Unreadable { .. })));
    }
}
