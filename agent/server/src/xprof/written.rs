//! A trace that the agent writes where its client says: below the folders of `api.xprof_roots` alone, and by a process that has
//! the rights of the client's user and no more.
//!
//! The process gives up every other right before it looks at the folder. It gets the length of the trace first and its bytes on
//! standard input: what ends early leaves no file.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use host::own_rights::{self, RightsError};
use model::untrusted::clean;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, openat, renameat},
    sys::stat::{Mode, mkdirat, umask},
    unistd::{Uid, UnlinkatFlags, unlinkat},
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

/// A file below a folder of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileBelow {
    root: PathBuf,
    below: PathBuf,
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

    /// Where it lies below one of these folders; `None` where it does not. A path in it that leads up was refused before.
    pub(super) fn below(self, roots: &[PathBuf]) -> Option<FileBelow> {
        let (root, below) = roots.iter().find_map(|root| {
            let below = self.folder.strip_prefix(root).ok()?;
            Some((root.clone(), below.to_owned()))
        })?;
        Some(FileBelow { root, below, name: self.name })
    }
}

impl FileBelow {
    /// Starts the process that writes a trace of so many bytes as `owner`.
    ///
    /// # Errors
    /// If the agent cannot act as this user.
    pub(super) fn begin(&self, owner: FileOwner, bytes: u64) -> Result<FileWriter, Status> {
        // Not the path: a binary replaced by an upgrade would speak another protocol.
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND).arg(&self.root).arg(&self.below).arg(&self.name).arg(bytes.to_string());
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
    /// A link, or a file that is no folder.
    #[error(
        "{} is a link or no folder: below a folder of api.xprof_roots no link is followed, so name the folder itself",
        .0.display()
    )]
    NoFolder(PathBuf),
    /// Standard input ended before the trace.
    #[error("the trace ended early")]
    Early,
}

/// Writes so many bytes of standard input to the file `name` in the folder `below` in `root`, which is made if it is not there.
/// Runs in a process of its own.
///
/// # Errors
/// If the file is not there whole.
pub fn run(root: &Path, below: &Path, name: &str, bytes: u64) -> Result<(), WriteFault> {
    own_rights::give_up()?;
    // The files of a workload are as readable.
    umask(Mode::from_bits_truncate(0o022));
    write_file(io::stdin().lock(), (root, below), name, bytes)
}

/// A folder on the way needs to be passed, not to be read.
const FOLDER: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const NEW_FILE: OFlag = OFlag::O_WRONLY.union(OFlag::O_CREAT).union(OFlag::O_EXCL).union(OFlag::O_CLOEXEC);

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> WriteFault {
    let path = path.to_owned();
    move |error| WriteFault::System { what, path, error: error.into() }
}

/// The folder `below` in `root`, made where it is not there. In the path of `root` links are followed, below it none: who may
/// write there could lead a process that may do more to any other folder.
fn open_below(root: &Path, below: &Path) -> Result<OwnedFd, WriteFault> {
    let mut folder = openat(AT_FDCWD, root, FOLDER, Mode::empty()).map_err(failed("open", root))?;
    let mut path = root.to_owned();
    for component in below.components() {
        let Component::Normal(name) = component else { return Err(WriteFault::NoFolder(below.to_owned())) };
        path.push(name);
        let open = || openat(&folder, name, FOLDER | OFlag::O_NOFOLLOW, Mode::empty());
        let opened = match open() {
            Err(Errno::ENOENT) => match mkdirat(&folder, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => open(),
                Err(error) => return Err(failed("create", &path)(error)),
            },
            opened => opened,
        };
        folder = opened.map_err(|error| match error {
            Errno::ENOTDIR | Errno::ELOOP => WriteFault::NoFolder(path.clone()),
            error => failed("open", &path)(error),
        })?;
    }
    Ok(folder)
}

fn write_file(
    mut trace: impl Read,
    (root, below): (&Path, &Path),
    name: &str,
    bytes: u64,
) -> Result<(), WriteFault> {
    let folder = open_below(root, below)?;
    let path = root.join(below).join(name);
    let staged = format!(".{name}.{}", std::process::id());
    let file = openat(&folder, &*staged, NEW_FILE, Mode::from_bits_truncate(0o644));
    let mut file = File::from(file.map_err(failed("create", &path))?);
    let io = |error| WriteFault::System { what: "write", path: path.clone(), error };
    let written = match io::copy(&mut trace.by_ref().take(bytes), &mut file) {
        Ok(copied) if copied == bytes => file
            .sync_all()
            .map_err(io)
            .and_then(|()| renameat(&folder, &*staged, &folder, name).map_err(failed("write", &path))),
        Ok(_) => Err(WriteFault::Early),
        Err(error) => Err(io(error)),
    };
    if written.is_err() {
        // The error that led here is reported.
        let _ = unlinkat(&folder, &*staged, UnlinkatFlags::NoRemoveDir);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn only_a_whole_trace_becomes_a_file() {
        let home = tempfile::tempdir().unwrap();
        let (root, below) = (home.path(), Path::new("plugins/profile/s"));
        let folder = root.join(below);
        write_file(&b"abc"[..], (root, below), "h.xplane.pb", 3).unwrap();
        assert_eq!(fs::read(folder.join("h.xplane.pb")).unwrap(), b"abc");
        let early = write_file(&b"ab"[..], (root, below), "g.xplane.pb", 3).unwrap_err();
        assert!(matches!(early, WriteFault::Early), "{early}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left of it");
        let file = below.join("h.xplane.pb");
        let refused = write_file(&b"abc"[..], (root, &file), "x", 3).unwrap_err();
        assert!(matches!(refused, WriteFault::NoFolder(_)), "{refused}");
        let missing = write_file(&b"abc"[..], (&root.join("none"), below), "x", 3).unwrap_err().to_string();
        assert!(missing.starts_with("cannot open ") && !root.join("none").exists(), "{missing}");
    }

    #[test]
    fn no_link_below_a_folder_of_the_settings_leads_out_of_it() {
        let (home, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = home.path().join("root");
        symlink(home.path(), &root).unwrap();
        fs::create_dir(home.path().join("x")).unwrap();
        symlink(outside.path(), home.path().join("x/plugins")).unwrap();
        for below in ["x/plugins", "x/plugins/s", "x/../../s", "/etc"] {
            let refused = write_file(&b"abc"[..], (&root, Path::new(below)), "h", 3).unwrap_err();
            assert!(matches!(refused, WriteFault::NoFolder(_)), "{below}: {refused}");
        }
        // A link in place of the file is replaced, in the path of the root it is followed.
        symlink(outside.path().join("h"), home.path().join("x/h")).unwrap();
        write_file(&b"abc"[..], (&root, Path::new("x")), "h", 3).unwrap();
        assert!(fs::symlink_metadata(home.path().join("x/h")).unwrap().is_file());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_counts_by_its_steps_and_not_by_its_letters() {
        let roots = [PathBuf::from("/logs/team")];
        let below = |root: &str| WantedFile::new(root, "s", "h").below(&roots).map(|file| file.below);
        assert_eq!(below("/logs/team"), Some("s".into()));
        assert_eq!(below("/logs/team/ada/plugins/profile"), Some("ada/plugins/profile/s".into()));
        for other in ["/logs/teams", "/logs", "logs/team", "gs://logs/team"] {
            assert_eq!(below(other), None, "{other}");
        }
    }
}
