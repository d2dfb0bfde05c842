//! Files that a workload owns, such as its Python packages: its disk may hang, so they are read on a thread for which no
//! caller waits longer than [`ANSWER_DEADLINE`].

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

/// How long the workload's files may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_millis(250);
/// Maximum number of entries of a site-packages folder that are read.
const MAX_ENTRIES: usize = 20_000;

/// A request to the thread.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Request {
    /// The version in the dist-info folder of a package, beside this file of the package.
    Version { package: &'static str, library: PathBuf },
    /// The user of this Unix socket.
    SocketOwner(PathBuf),
}

#[derive(Debug)]
enum FileAnswer {
    Version(Option<String>),
    SocketOwner(Option<u32>),
}

/// Reads files of workloads on a thread of its own, one request at a time. While the thread hangs in a file system that
/// does not answer, further requests fail.
#[derive(Debug, Default)]
pub(super) struct WorkloadFiles {
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    requests: mpsc::SyncSender<Request>,
    answers: mpsc::Receiver<FileAnswer>,
    /// A request timed out: its answer is still to come.
    behind: bool,
}

/// The files did not answer in time; the caller tries again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hanging;

impl WorkloadFiles {
    /// The version of a package from the dist-info folder beside it.
    pub(super) fn version(
        &mut self,
        package: &'static str,
        library: PathBuf,
    ) -> Result<Option<String>, Hanging> {
        match self.call(Request::Version { package, library })? {
            FileAnswer::Version(version) => Ok(version),
            FileAnswer::SocketOwner(_) => Err(Hanging),
        }
    }

    /// The owner of a Unix socket, when it is one.
    pub(super) fn socket_owner(&mut self, path: PathBuf) -> Result<Option<u32>, Hanging> {
        match self.call(Request::SocketOwner(path))? {
            FileAnswer::SocketOwner(uid) => Ok(uid),
            FileAnswer::Version(_) => Err(Hanging),
        }
    }

    fn call(&mut self, request: Request) -> Result<FileAnswer, Hanging> {
        if self.worker.is_none() {
            self.worker = Some(Worker::start().map_err(|_| Hanging)?);
        }
        let worker = self.worker.as_mut().ok_or(Hanging)?;
        if worker.behind {
            // A late answer belongs to an old request: drop it, and go on once it has come.
            worker.answers.try_recv().map_err(|_| Hanging)?;
            worker.behind = false;
        }
        worker.requests.try_send(request).map_err(|_| Hanging)?;
        match worker.answers.recv_timeout(ANSWER_DEADLINE) {
            Ok(answer) => Ok(answer),
            Err(_) => {
                worker.behind = true;
                Err(Hanging)
            }
        }
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (requests, incoming) = mpsc::sync_channel::<Request>(1);
        let (answer, answers) = mpsc::sync_channel(1);
        thread::Builder::new().name("workload-files".into()).spawn(move || {
            for request in incoming {
                let found = match request {
                    Request::Version { package, library } => {
                        FileAnswer::Version(version_of(package, &library))
                    }
                    Request::SocketOwner(path) => FileAnswer::SocketOwner(socket_owner(&path)),
                };
                if answer.send(found).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, answers, behind: false })
    }
}

/// Looks beside the package's folder for `<package>-<version>.dist-info`.
fn version_of(package: &str, library: &Path) -> Option<String> {
    let sites = library.ancestors().filter(|folder| folder.ends_with(package)).filter_map(Path::parent);
    // `_XLAC.so` lies beside its package, not in it.
    for site in sites.chain(library.parent()) {
        let Ok(entries) = fs::read_dir(site) else { continue };
        let version = entries.take(MAX_ENTRIES).flatten().find_map(|entry| {
            let name = entry.file_name();
            let version =
                name.to_str()?.strip_prefix(package)?.strip_prefix('-')?.strip_suffix(".dist-info")?;
            is_version(version).then(|| version.to_owned())
        });
        if version.is_some() {
            return version;
        }
    }
    None
}

fn is_version(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'_' | b'-' | b'!'))
}

fn socket_owner(path: &Path) -> Option<u32> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.file_type().is_socket().then(|| metadata.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_dist_info() {
        let site = tempfile::tempdir().unwrap();
        for folder in ["jaxlib", "jaxlib-0.10.2.dist-info", "torch_xla-2.9.0.dist-info"] {
            fs::create_dir(site.path().join(folder)).unwrap();
        }
        let mut files = WorkloadFiles::default();
        let library = site.path().join("jaxlib/libjax_common.so");
        assert_eq!(files.version("jaxlib", library.clone()), Ok(Some("0.10.2".into())));
        assert_eq!(files.version("torch_xla", site.path().join("_XLAC.so")), Ok(Some("2.9.0".into())));
        assert_eq!(files.socket_owner(library), Ok(None));
    }
}
