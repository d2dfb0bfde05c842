//! Certificates: their files, and an authority that issues them.

use std::{io, path::Path};

use cluster::identity::{
    authority::{AuthorityError, CertifiedHost, CertifiedNameError},
    certificate::Validity,
    files::IdentityError,
};
use model::host_list::HostListError;

use crate::{exit::Exit, failure::Failure};

/// The command that keeps other users from a private key.
pub(crate) fn close_key(key: &Path) -> String {
    format!(
        "`chmod o= {}` keeps other users from it; if they may have read it, issue a new certificate",
        key.display()
    )
}

/// A file with a certificate or a key cannot be used.
pub(crate) fn identity(error: &IdentityError) -> Failure {
    let (exit, remedy) = match error {
        IdentityError::Unreadable { error, .. } => (exit_of(error), String::new()),
        IdentityError::TooLarge(_) => (Exit::TooLarge, String::new()),
        IdentityError::Exposed { path, .. } => (Exit::Permission, close_key(path)),
        IdentityError::NoKey { .. }
        | IdentityError::Certificate { .. }
        | IdentityError::OtherKey { .. }
        | IdentityError::Key { .. } => (Exit::BadInput, String::new()),
    };
    Failure::new(exit, error).remedy(remedy)
}

/// The folder of `--tls-dir` cannot be used.
pub(crate) fn tls_dir(error: &IdentityError, named: &str) -> Failure {
    let failure = identity(error);
    if !failure.remedy.is_empty() {
        return failure;
    }
    failure.remedy(format!(
        "{named} must name a folder with cert.pem, key.pem and ca.pem, such as one that `tpuscope certs issue --operator NAME` made"
    ))
}

/// The certificate of this side is not valid now.
pub(crate) fn own_validity(cert: &Path, validity: &Validity) -> Failure {
    Failure::new(Exit::BadInput, format!("the certificate {} {validity}", cert.display()))
        .remedy("issue a new one (`tpuscope certs issue`), or correct the clock of this host")
}

/// An authority cannot be made, or cannot issue.
pub(crate) fn authority(error: &AuthorityError) -> Failure {
    let (exit, remedy) = match error {
        AuthorityError::Files(cause) => {
            let failure = identity(cause);
            let remedy = match failure.remedy.is_empty() {
                true => "name the folder of an authority; `tpuscope certs init DIR` makes one".to_owned(),
                false => failure.remedy,
            };
            (failure.exit, remedy)
        }
        AuthorityError::Exists(_) => {
            (Exit::Conflict, "no file is replaced: name another folder, or remove the files yourself".to_owned())
        }
        AuthorityError::Unwritable { error, .. } => (exit_of(error), "name a folder that you can write to".to_owned()),
        AuthorityError::NotAnAuthority(_) | AuthorityError::OtherKey { .. } => (
            Exit::BadInput,
            "name a folder with the ca.pem and ca-key.pem of one authority; `tpuscope certs init DIR` makes one".to_owned(),
        ),
        AuthorityError::NotValid { .. } => {
            (Exit::BadInput, "make a new authority with `tpuscope certs init DIR`".to_owned())
        }
        AuthorityError::Clock(_) => (Exit::Internal, "correct the clock".to_owned()),
        AuthorityError::Make(_) | AuthorityError::Made(_) => (Exit::Internal, String::new()),
    };
    Failure::new(exit, error).remedy(remedy)
}

/// `--agent` is no list of hosts.
pub(crate) fn certified_list(error: &HostListError) -> Failure {
    Failure::new(Exit::Usage, format!("--agent: {error}"))
        .remedy("expected host names, or a list as Slurm writes it, such as 'tpu-[001-016],b'")
}

/// A certificate cannot have this name.
pub(crate) fn certified_name(error: &CertifiedNameError) -> Failure {
    Failure::new(Exit::Usage, format!("--agent: {error}"))
}

/// A host of `--agent` is named twice.
pub(crate) fn certified_twice(host: &CertifiedHost) -> Failure {
    Failure::new(Exit::Usage, format!("--agent: the host {host} is named twice"))
        .remedy("name each host once")
}

/// `--also` without exactly one host.
pub(crate) fn name_without_one_host() -> Failure {
    Failure::new(Exit::Usage, "--also is a further name of the one host of --agent")
        .remedy("issue the certificate of each host with its names by a command of its own")
}

fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Permission,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
        io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Exit::BadInput
        }
        _ => Exit::Internal,
    }
}
