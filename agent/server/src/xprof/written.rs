//! A trace that the agent writes where its client says: below the folders of `api.xprof_roots` alone, and by a process that has
//! the rights of the client's user and no more.
//!
//! The process gives up every other right before it looks at the folder. It gets the length of the trace first and its bytes on
//! standard input: what ends early leaves no file.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use host::own_rights::{self, RightsError};
use model::untrusted::clean;
use nix::{
    sys::stat::{Mode, umask},
    unistd::Uid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    time::timeout,
};
use tonic::Status;
use xprof::session::PART_SUFFIX;

/// The hidden subcommand of the program that calls [`run`].
pub const SUBCOMMAND: &str = "xprof-writer";

/// How long the process may take after the last byte: it waits for the disk.
const END: Duration = Duration::from_secs(60);
/// What is read and what is shown of an error of the process.
const MAX_SAID: u64 = 4096;
const MAX_ERROR: usize = 400;

/// A file that a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedFile {
    folder: PathBuf,
    name: String,
}

/// The user who writes, with its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileOwner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A file while it is written.
#[derive(Debug)]
pub(super) struct FileWriter {
    child: Child,
    bytes: ChildStdin,
}

impl WantedFile {
    /// The trace of `host` in the session `session` below `root`. The names are checked.
    pub(super) fn new(root: &str, session: &str, host: &str) -> Self {
        Self { folder: Path::new(root).join(session), name: format!("{host}{PART_SUFFIX}") }
    }

    /// Whether it lies below one of these folders. A path in it that leads up was refused before.
    pub(super) fn is_below(&self, roots: &[PathBuf]) -> bool {
        roots.iter().any(|root| self.folder.starts_with(root))
    }

    /// Starts the process that writes a trace of so many bytes as `owner`.
    ///
    /// # Errors
    /// If the agent cannot act as this user.
    pub(super) fn begin(&self, owner: FileOwner, bytes: u64) -> Result<FileWriter, Status> {
        // Not the path: a binary replaced by an upgrade would speak another protocol.
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND).arg(&self.folder).arg(&self.name).arg(bytes.to_string());
        command.env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let own = Uid::effective().as_raw();
        if own != owner.uid {
            // Without groups beside the first one: fewer rights than the user has.
            command.uid(owner.uid).gid(owner.gid);
        }
        let mut child = command.spawn().map_err(|error| refused(own, owner.uid, &error))?;
        match child.stdin.take() {
            Some(stdin) => Ok(FileWriter { child, bytes: stdin }),
            None => Err(Status::internal("the writer of the trace has no standard input")),
        }
    }
}

fn refused(own: u32, uid: u32, error: &io::Error) -> Status {
    Status::permission_denied(format!(
        "the agent runs as user {own} and cannot write as user {uid} ({error}), as api.xprof_roots asks for: run it as root, \
         or remove the folder from that setting; the client then writes the file itself"
    ))
}

impl FileWriter {
    /// Passes bytes on to the process once it takes them.
    ///
    /// # Errors
    /// Why the process ended.
    pub(super) async fn write(&mut self, piece: &[u8]) -> Result<(), Status> {
        match self.bytes.write_all(piece).await {
            Ok(()) => Ok(()),
            // It says why.
            Err(error) => {
                let said = ended(&mut self.child).await.err();
                Err(said.unwrap_or_else(|| Status::internal(error.to_string())))
            }
        }
    }

    /// Waits until the file is there.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) async fn finish(self) -> Result<(), Status> {
        let Self { mut child, bytes } = self;
        drop(bytes);
        ended(&mut child).await
    }
}

/// Waits for the end of the process.
async fn ended(child: &mut Child) -> Result<(), Status> {
    let mut said = Vec::new();
    let stderr = child.stderr.take();
    let ending = async {
        if let Some(stderr) = stderr {
            stderr.take(MAX_SAID).read_to_end(&mut said).await?;
        }
        child.wait().await
    };
    match timeout(END, ending).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => {
            let said = clean(String::from_utf8_lossy(&said).trim(), MAX_ERROR);
            Err(Status::permission_denied(format!("the trace was not written: {said}")))
        }
        Ok(Err(error)) => Err(Status::internal(format!("the writer of the trace is lost: {error}"))),
        Err(_) => {
            Err(Status::deadline_exceeded(format!("the trace is not on the disk after {} s", END.as_secs())))
        }
    }
}

/// Why the process did not write its file.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// A right could not be given up.
    #[error(transparent)]
    Rights(#[from] RightsError),
    /// The system refuses.
    #[error("cannot {what} {}: {error}", .path.display())]
    System {
        /// The step, as in "cannot STEP PATH".
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Standard input ended before the trace.
    #[error("the trace ended early")]
    Early,
}

/// Writes so many bytes of standard input to the file `name` in `folder`, which is made if it is not there. Runs in a process of
/// its own.
///
/// # Errors
/// If the file is not there whole.
pub fn run(folder: &Path, name: &str, bytes: u64) -> Result<(), WriteFault> {
    own_rights::give_up()?;
    // The files of a workload are as readable.
    umask(Mode::from_bits_truncate(0o022));
    write_file(io::stdin().lock(), folder, name, bytes)
}

fn write_file(mut trace: impl Read, folder: &Path, name: &str, bytes: u64) -> Result<(), WriteFault> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |error| WriteFault::System { what, path, error }
    };
    let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
    made.map_err(failed("create", folder))?;
    let staged = folder.join(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&staged)
        .map_err(failed("create", &staged))?;
    let target = folder.join(name);
    let written = match io::copy(&mut trace.by_ref().take(bytes), &mut file) {
        Ok(copied) if copied == bytes => {
            file.sync_all().and_then(|()| fs::rename(&staged, &target)).map_err(failed("write", &target))
        }
        Ok(_) => Err(WriteFault::Early),
        Err(error) => Err(failed("write", &staged)(error)),
    };
    if written.is_err() {
        // The error that led here is reported.
        let _ = fs::remove_file(&staged);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_trace_becomes_a_file() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("plugins/profile/s");
        write_file(&b"abc"[..], &folder, "h.xplane.pb", 3).unwrap();
        assert_eq!(fs::read(folder.join("h.xplane.pb")).unwrap(), b"abc");
        let early = write_file(&b"ab"[..], &folder, "g.xplane.pb", 3).unwrap_err();
        assert!(matches!(early, WriteFault::Early), "{early}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left of it");
        let file = folder.join("h.xplane.pb");
        let refused = write_file(&b"abc"[..], &file, "x", 3).unwrap_err().to_string();
        assert!(refused.starts_with("cannot create "), "{refused}");
    }

    #[test]
    fn a_folder_counts_by_its_steps_and_not_by_its_letters() {
        let roots = [PathBuf::from("/logs/team")];
        let below = |root: &str| WantedFile::new(root, "s", "h").is_below(&roots);
        assert!(below("/logs/team") && below("/logs/team/ada/plugins/profile"));
        assert!(!below("/logs/teams") && !below("/logs") && !below("logs/team") && !below("gs://logs/team"));
    }
}
