//! Which of libtpu, jaxlib and torch_xla a process has mapped, and their versions.
//!
//! Maps are the kernel's text. Everything that touches the workload's own files (its disk may hang) happens
//! in [`Files`], on a thread that nobody waits for longer than [`PATIENCE`].

use std::{
    fs,
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

/// The longest `/proc/<pid>/maps` that is read.
const MOST_BYTES: u64 = 16 << 20;
/// How long the workload's files may take to answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// More entries of a site-packages folder are not looked at.
const MOST_ENTRIES: usize = 20_000;

/// What a process has mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Its libtpu.so, as the process sees the path.
    pub(super) libtpu: Option<PathBuf>,
    /// `jaxlib` or `torch_xla`, and one of its libraries.
    pub(super) framework: Option<(&'static str, PathBuf)>,
    /// The libtpu.so was replaced on disk since.
    pub(super) libtpu_deleted: bool,
}

impl Mapped {
    /// Whether any of the three is mapped.
    pub(super) fn any(&self) -> bool {
        self.libtpu.is_some() || self.framework.is_some()
    }

    fn complete(&self) -> bool {
        self.libtpu.is_some() && self.framework.is_some()
    }

    fn see(&mut self, path: &[u8]) {
        let (path, deleted) = match path.strip_suffix(b" (deleted)") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if !contains(name, b".so") {
            return;
        }
        let owned = || PathBuf::from(std::ffi::OsStr::from_bytes(path));
        if name.starts_with(b"libtpu") {
            self.libtpu = Some(owned());
            self.libtpu_deleted = deleted;
        } else if name.starts_with(b"_XLAC") || contains(path, b"/torch_xla/") {
            self.framework = Some(("torch_xla", owned()));
        } else if self.framework.is_none()
            && (contains(path, b"/jaxlib/") || name == b"libjax_common.so" || name == b"xla_extension.so")
        {
            self.framework = Some(("jaxlib", owned()));
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Reads maps in pieces and stops when nothing more can be learned.
pub(super) fn mapped(maps: impl Read) -> io::Result<Mapped> {
    let mut maps = maps.take(MOST_BYTES);
    let mut found = Mapped::default();
    let (mut text, mut chunk) = (Vec::with_capacity(64 * 1024), [0; 16 * 1024]);
    let mut last = Vec::new();
    loop {
        let count = maps.read(&mut chunk)?;
        text.extend_from_slice(&chunk[..count]);
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..end].split(|byte| *byte == b'\n') {
            // Neither addresses, rights, offset, device nor inode hold a slash.
            let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
            let path = &line[at..];
            // A library has several segments in a row.
            if path != last {
                path.clone_into(&mut last);
                found.see(path);
            }
        }
        text.drain(..end);
        if count == 0 || found.complete() {
            return Ok(found);
        }
    }
}

/// A question about the workload's files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Question {
    /// The version in the dist-info folder of a package, next to this library of its.
    Version { package: &'static str, library: PathBuf },
    /// Who owns this Unix socket.
    SocketOwner(PathBuf),
}

#[derive(Debug)]
enum Answer {
    Version(Option<String>),
    SocketOwner(Option<u32>),
}

/// Asks about files of workloads on a thread of its own, one question at a time. While the thread hangs in a
/// dead file system, further questions go unanswered.
#[derive(Debug, Default)]
pub(super) struct Files {
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    questions: mpsc::SyncSender<Question>,
    answers: mpsc::Receiver<Answer>,
    /// A question was asked whose answer nobody has read.
    behind: bool,
}

/// The files did not answer in time; asked again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hanging;

impl Files {
    /// The version of a package from the dist-info folder beside it.
    pub(super) fn version(
        &mut self,
        package: &'static str,
        library: PathBuf,
    ) -> Result<Option<String>, Hanging> {
        match self.ask(Question::Version { package, library })? {
            Answer::Version(version) => Ok(version),
            Answer::SocketOwner(_) => Err(Hanging),
        }
    }

    /// The owner of a Unix socket, when it is one.
    pub(super) fn socket_owner(&mut self, path: PathBuf) -> Result<Option<u32>, Hanging> {
        match self.ask(Question::SocketOwner(path))? {
            Answer::SocketOwner(uid) => Ok(uid),
            Answer::Version(_) => Err(Hanging),
        }
    }

    fn ask(&mut self, question: Question) -> Result<Answer, Hanging> {
        if self.worker.is_none() {
            self.worker = Some(Worker::start().map_err(|_| Hanging)?);
        }
        let worker = self.worker.as_mut().ok_or(Hanging)?;
        if worker.behind {
            // The late answer is to an old question: drop it, and go on when there is one.
            worker.answers.try_recv().map_err(|_| Hanging)?;
            worker.behind = false;
        }
        worker.questions.try_send(question).map_err(|_| Hanging)?;
        match worker.answers.recv_timeout(PATIENCE) {
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
        let (questions, asked) = mpsc::sync_channel::<Question>(1);
        let (answer, answers) = mpsc::sync_channel(1);
        thread::Builder::new().name("workload-files".into()).spawn(move || {
            for question in asked {
                let found = match question {
                    Question::Version { package, library } => Answer::Version(version_of(package, &library)),
                    Question::SocketOwner(path) => Answer::SocketOwner(socket_owner(&path)),
                };
                if answer.send(found).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers, behind: false })
    }
}

/// Looks beside the package's folder for `<package>-<version>.dist-info`.
fn version_of(package: &str, library: &Path) -> Option<String> {
    let sites = library.ancestors().filter(|folder| folder.ends_with(package)).filter_map(Path::parent);
    // `_XLAC.so` lies beside its package, not in it.
    for site in sites.chain(library.parent()) {
        let Ok(entries) = fs::read_dir(site) else { continue };
        let version = entries.take(MOST_ENTRIES).flatten().find_map(|entry| {
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

    const MAPS: &str = "55d0-55d1 r--p 00000000 fe:01 12 /usr/bin/python3.11
7f00-7f01 r--p 00000000 fe:01 13 /venv/lib/python3.11/site-packages/jaxlib/libjax_common.so
7f01-7f02 r-xp 00000000 fe:01 13 /venv/lib/python3.11/site-packages/jaxlib/libjax_common.so
7f02-7f03 rw-p 00000000 00:00 0
7f03-7f04 r--p 00000000 fe:01 14 /venv/lib/python3.11/site-packages/libtpu/libtpu.so (deleted)
7ffe-7fff rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn libraries_are_known_by_name() {
        let found = mapped(MAPS.as_bytes()).unwrap();
        assert_eq!(found.libtpu, Some("/venv/lib/python3.11/site-packages/libtpu/libtpu.so".into()));
        assert!(found.libtpu_deleted);
        assert_eq!(found.framework.unwrap().0, "jaxlib");
        let torch = "1-2 r-xp 0 0:0 1 /s/_XLAC.cpython-311-x86_64-linux-gnu.so\n";
        assert_eq!(mapped(torch.as_bytes()).unwrap().framework.unwrap().0, "torch_xla");
        assert!(!mapped("1-2 r-xp 0 0:0 1 /srv/jaxlib/readme.txt\n".as_bytes()).unwrap().any());
    }

    #[test]
    fn versions_come_from_dist_info() {
        let site = tempfile::tempdir().unwrap();
        for folder in ["jaxlib", "jaxlib-0.10.2.dist-info", "torch_xla-2.9.0.dist-info"] {
            fs::create_dir(site.path().join(folder)).unwrap();
        }
        let mut files = Files::default();
        let library = site.path().join("jaxlib/libjax_common.so");
        assert_eq!(files.version("jaxlib", library.clone()), Ok(Some("0.10.2".into())));
        assert_eq!(files.version("torch_xla", site.path().join("_XLAC.so")), Ok(Some("2.9.0".into())));
        assert_eq!(files.socket_owner(library), Ok(None));
    }
}
