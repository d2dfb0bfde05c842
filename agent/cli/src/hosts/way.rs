//! The way to other hosts that the arguments name, and the dialler for it.

use std::path::{Path, PathBuf};

use cluster::{
    dial::{Dialer, ExpectedPeer, GroupGuard, TlsDialer},
    hosts::HostAddress,
    identity::{certificate::Validity, files::IdentityFiles},
    reach::Reach,
};
use model::time::{Clock, SystemClock};

use super::TLS_VARIABLE;
use crate::{dial_stdio, failure::Failure, remedies};

/// How hosts are reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A command for each host.
    Command(Reach),
    /// Mutual TLS.
    Certificates {
        /// The files of this side.
        folder: PathBuf,
        /// Who the other side must be.
        expected: ExpectedPeer,
    },
}

impl Way {
    /// With the id that srun knows for the job.
    ///
    /// # Errors
    /// If Slurm does not know the job.
    pub(crate) async fn with_step_id(self) -> Result<Self, Failure> {
        match self {
            Self::Command(Reach::Srun(job)) => {
                let id = job.step_id().await.map_err(|error| remedies::hosts(&error))?;
                Ok(Self::Command(Reach::Srun(id)))
            }
            other => Ok(other),
        }
    }

    /// A dialler for these hosts.
    ///
    /// # Errors
    /// If a host cannot be reached in this way, or the certificate of this side cannot be used.
    pub(crate) fn dialer(self, hosts: &[HostAddress]) -> Result<Dialer, Failure> {
        match self {
            Self::Command(reach) => {
                for host in hosts {
                    reach.command(host).map_err(|error| remedies::port_with_command(&error))?;
                }
                let guard = GroupGuard::start(own_program(), &[dial_stdio::GUARD]).map_err(|error| {
                    Failure::internal(format_args!("cannot start the guard of commands: {error}"))
                })?;
                Ok(Dialer::new(reach, guard))
            }
            Self::Certificates { folder, expected } => {
                let files = IdentityFiles::in_folder(&folder);
                let dialer = TlsDialer::new(&files, expected)
                    .map_err(|error| remedies::tls_dir(&error, named(&folder)))?;
                match dialer.validity_at(SystemClock.now().into()) {
                    Validity::Valid(_) => Ok(Dialer::over_tls(dialer)),
                    invalid => Err(remedies::own_validity(&files.cert, &invalid)),
                }
            }
        }
    }
}

/// What named the folder.
fn named(folder: &Path) -> &'static str {
    let from_variable = std::env::var_os(TLS_VARIABLE).is_some_and(|value| value == folder.as_os_str());
    if from_variable { TLS_VARIABLE } else { "--tls-dir" }
}

/// This program, also after its file was replaced.
fn own_program() -> &'static Path {
    Path::new("/proc/self/exe")
}
