//! A folder as a destination: of this host, or one that several hosts have mounted.
//!
//! ```text
//! <folder>/.tpuscope/<session>              who has the session's name
//!          .tpuscope/.incoming/<random>     what is being written: no session's name begins with a dot
//!          plugins/profile/<session>/…      complete files
//! ```
//!
//! A file is written aside, synchronised and renamed. Must never follow a link below the folder.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use bytes::Bytes;
use nix::{
    errno::Errno,
    fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise},
};

use super::{
    SendRate,
    target::{FailureClass, ObjectFacts, PartData, TransferError, UploadTarget},
};
use crate::open_folder::{IfMissing, OpenFolder};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;
/// The longest file that [`UploadTarget::get`] reads.
const MAX_SMALL: u64 = 64 << 10;
/// Where files are written before they are visible, below the folder.
const INCOMING: &str = ".tpuscope/.incoming";
/// What is for agents alone, below the folder.
const STATE: &str = ".tpuscope";

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: PathBuf,
    /// What has to be there: a file system that is not mounted must not be taken for an empty one.
    base: PathBuf,
    rate: SendRate,
}

/// The folder of a file, and the file's name in it.
struct FileAt<'a> {
    folder: OpenFolder,
    name: &'a Path,
    path: PathBuf,
}

impl FileAt<'_> {
    /// None where there is no such file.
    fn open(&self, flags: OFlag) -> Result<Option<File>, TransferError> {
        match self.folder.file(self.name, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some).map_err(|error| failed("open", &self.path, &error)),
        }
    }
}

impl Folder {
    /// The folder `root`, which is made where it is missing, below the folder `base`, which is not.
    pub(crate) fn new(root: PathBuf, base: PathBuf) -> Self {
        Self { root, base, rate: SendRate::default() }
    }

    /// Keeps to the rate on average: what is written at a time, at most a part, goes at once.
    pub(crate) fn with_rate(self, rate: SendRate) -> Self {
        Self { rate, ..self }
    }

    /// Runs `work` where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(Self) -> Result<T, TransferError> + Send + 'static,
    ) -> Result<T, TransferError> {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || work(this)).await;
        done.unwrap_or_else(|error| Err(TransferError::new(FailureClass::Other, error)))
    }

    /// Removes the root and what this agent makes in it, where all of it is empty, up to the folder that has to be there.
    fn remove_empty(&self) {
        let root = self.root.strip_prefix(&self.base).unwrap_or(Path::new(""));
        let inside = [Path::new(INCOMING), Path::new(STATE)].map(|path| root.join(path));
        let above = root.ancestors().filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned);
        // A root that has to be there is in use by other sessions.
        let Some(base) = OpenFolder::at(&self.base).ok().filter(|_| root != Path::new("")) else { return };
        for folder in inside.into_iter().chain(above) {
            let parent = folder.parent().unwrap_or(Path::new(""));
            let removed = base.below(parent, IfMissing::Refused);
            let removed = removed
                .and_then(|parent| parent.remove_folder(Path::new(folder.file_name().unwrap_or_default())));
            if removed.is_err() {
                return;
            }
        }
    }

    /// The folder at `path` below the root; `None` where it is missing and not made.
    fn opened(&self, path: &Path, missing: IfMissing) -> Result<Option<OpenFolder>, TransferError> {
        let base = OpenFolder::at(&self.base).map_err(|error| no_base(&self.base, &error))?;
        let path = self.root.join(path);
        let relative = path.strip_prefix(&self.base).unwrap_or(&path);
        match (base.below(relative, missing), missing) {
            (Err(error), IfMissing::Refused) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            (Err(error), IfMissing::Refused) => Err(failed("open", &path, &error)),
            (Err(error), IfMissing::Made) => Err(failed("create", &path, &error)),
            (Ok(folder), _) => Ok(Some(folder)),
        }
    }

    /// The file at `path` below the root; `None` if its folder is missing.
    fn at<'a>(&self, path: &'a str) -> Result<Option<FileAt<'a>>, TransferError> {
        let (folder, name) = split(path);
        let folder = self.opened(folder, IfMissing::Refused)?;
        Ok(folder.map(|folder| FileAt { folder, name, path: self.root.join(path) }))
    }

    /// Where files are written before they are visible.
    fn incoming(&self) -> Result<OpenFolder, TransferError> {
        let opened = self.opened(Path::new(INCOMING), IfMissing::Made)?;
        opened.ok_or_else(|| TransferError::other(format_args!("{INCOMING} was not made")))
    }

    /// The file with the parts of this id. An id is a plain name.
    fn parts_file(&self, id: &str) -> Result<File, TransferError> {
        let plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let path = format!("{INCOMING}/{id}");
        let file = if plain { self.at(&path)? } else { None };
        file.map(|file| file.open(OFlag::O_WRONLY)).transpose()?.flatten().ok_or(TransferError::PartsGone)
    }

    /// A new file for what will be visible later, and its name.
    fn create(&self) -> Result<(PathBuf, File), TransferError> {
        let name = PathBuf::from(format!("{:016x}", fastrand::u64(..)));
        let file = self.incoming()?.file(&name, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL);
        match file {
            Ok(file) => Ok((name, file)),
            Err(error) => Err(failed("create", &self.root.join(INCOMING).join(name), &error)),
        }
    }

    fn write_aside(&self, path: &str, data: &[u8], replace: bool) -> Result<(), TransferError> {
        let (aside, mut file) = self.create()?;
        let written = file.write_all(data).and_then(|()| file.sync_all());
        let shown = written
            .map_err(|error| failed("write", &self.root.join(INCOMING).join(&aside), &error))
            .and_then(|()| self.show(&aside, path, replace));
        if shown.is_err() {
            // What is left is untidy only.
            let _ = self.incoming().map(|folder| folder.remove(&aside));
        }
        shown
    }

    /// Makes a complete file visible.
    fn show(&self, aside: &Path, path: &str, replace: bool) -> Result<(), TransferError> {
        let (folder, name) = split(path);
        let place = self.root.join(path);
        let opened = self.opened(folder, IfMissing::Made)?;
        let opened =
            opened.ok_or_else(|| TransferError::other(format_args!("{} was not made", place.display())))?;
        match self.incoming()?.rename(aside, &opened, name, replace) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(TransferError::Exists),
            renamed => renamed.map_err(|error| failed("create", &place, &error))?,
        }
        opened.sync().map_err(|error| failed("write", &self.root.join(folder), &error))
    }
}

/// The folder of a path, and the last name.
fn split(path: &str) -> (&Path, &Path) {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    (Path::new(folder), Path::new(name))
}

/// The folder that has to be there is not.
fn no_base(base: &Path, error: &io::Error) -> TransferError {
    let shown = base.display();
    // As the system says it, where it can be looked at.
    let link = base.symlink_metadata().is_ok_and(|found| found.is_symlink());
    let what = match error.kind() {
        io::ErrorKind::NotFound if link => format!("{shown} is a link to nothing"),
        io::ErrorKind::NotADirectory if base.metadata().is_ok() => format!("{shown} is no folder"),
        io::ErrorKind::NotADirectory => format!("{shown} lies in something that is no folder"),
        _ if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            format!("{shown} is a link that leads to itself")
        }
        _ => return failed("find", base, error),
    };
    TransferError::new(FailureClass::NotFound, what)
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> TransferError {
    let class = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailureClass::NoSpace,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => FailureClass::Denied,
        io::ErrorKind::NotFound => FailureClass::NotFound,
        io::ErrorKind::TimedOut => FailureClass::Timeout,
        io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => FailureClass::Other,
        _ => FailureClass::Server,
    };
    TransferError::new(class, format_args!("cannot {doing} {}: {error}", path.display()))
}

/// Size and checksum, by reading the whole file.
fn describe(mut file: File, path: &Path) -> Result<ObjectFacts, TransferError> {
    let (mut size, mut crc) = (0u64, 0);
    let mut piece = vec![0; PIECE];
    loop {
        let read = file.read(&mut piece).map_err(|error| failed("read", path, &error))?;
        if read == 0 {
            break;
        }
        crc = crc32c::crc32c_append(crc, &piece[..read]);
        size += read as u64;
    }
    // Advice only: a file system may not take it.
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(ObjectFacts { size, crc32c: Some(crc), generation: String::new(), etag: String::new() })
}

#[async_trait]
impl UploadTarget for Folder {
    async fn put(&self, path: &str, data: Bytes, replaces: Option<&str>) -> Result<(), TransferError> {
        let (path, replace) = (path.to_owned(), replaces.is_some());
        self.rate.wait(data.len()).await;
        self.blocking(move |folder| folder.write_aside(&path, &data, replace)).await
    }

    async fn begin_parts(&self, _: &str) -> Result<String, TransferError> {
        self.blocking(move |folder| Ok(folder.create()?.0.to_string_lossy().into_owned())).await
    }

    async fn put_part(&self, _: &str, id: &str, part: PartData) -> Result<String, TransferError> {
        let id = id.to_owned();
        self.rate.wait(part.data.len()).await;
        self.blocking(move |folder| {
            let file = folder.parts_file(&id)?;
            let written = file.write_all_at(&part.data, part.offset).and_then(|()| file.sync_data());
            written.map_err(|error| failed("write", &folder.root.join(INCOMING).join(&id), &error))?;
            // Advice only: a file system may not take it.
            let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            Ok(part.index.to_string())
        })
        .await
    }

    async fn complete(&self, path: &str, id: &str, _: Vec<String>) -> Result<(), TransferError> {
        let (path, id) = (path.to_owned(), id.to_owned());
        self.blocking(move |folder| {
            let synced = folder.parts_file(&id)?.sync_all();
            synced.map_err(|error| failed("write", &folder.root.join(INCOMING).join(&id), &error))?;
            folder.show(Path::new(&id), &path, true)
        })
        .await
    }

    async fn abort(&self, _: &str, id: &str) -> Result<(), TransferError> {
        let id = id.to_owned();
        self.blocking(move |folder| match folder.parts_file(&id) {
            Err(TransferError::PartsGone) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => match folder.incoming()?.remove(Path::new(&id)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => {
                    removed.map_err(|error| failed("remove", &folder.root.join(INCOMING).join(&id), &error))
                }
            },
        })
        .await
    }

    async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let Some(at) = folder.at(&path)? else { return Ok(None) };
            at.open(OFlag::O_RDONLY)?.map(|file| describe(file, &at.path)).transpose()
        })
        .await
    }

    async fn size(&self, path: &str) -> Result<Option<u64>, TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let Some(at) = folder.at(&path)? else { return Ok(None) };
            let size = at.folder.file_size(at.name);
            size.map_err(|error| failed("open", &at.path, &error))
        })
        .await
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let Some(at) = folder.at(&path)? else { return Ok(None) };
            let Some(file) = at.open(OFlag::O_RDONLY)? else { return Ok(None) };
            let mut data = Vec::new();
            let read = file.take(MAX_SMALL).read_to_end(&mut data);
            read.map_err(|error| failed("read", &at.path, &error))?;
            Ok(Some(data.into()))
        })
        .await
    }

    async fn delete(&self, path: &str) -> Result<(), TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let removed = match folder.at(&path)? {
                Some(at) => at.folder.remove(at.name),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            removed.map_err(|error| failed("remove", &folder.root.join(&path), &error))
        })
        .await
    }

    async fn remove_empty_folders(&self) {
        let this = self.clone();
        // What cannot be removed is untidy only.
        let _ = tokio::task::spawn_blocking(move || this.remove_empty()).await;
    }

    async fn identity(&self) -> String {
        format!("user id {}", nix::unistd::geteuid())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn part(index: u32, offset: u64, data: &'static [u8]) -> PartData {
        PartData { index, offset, data: Bytes::from_static(data) }
    }

    #[tokio::test]
    async fn a_file_is_new_or_replaces_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), dir.path().to_owned());
        let put = |data: &'static [u8], replaces| folder.put("a/b", Bytes::from_static(data), replaces);
        assert_eq!(folder.head("a/b").await.unwrap(), None);
        put(b"one", None).await.unwrap();
        assert_eq!(put(b"two", None).await, Err(TransferError::Exists));
        assert_eq!(folder.get("a/b").await.unwrap().unwrap(), "one");
        put(b"two", Some("")).await.unwrap();
        let facts = folder.head("a/b").await.unwrap().unwrap();
        assert_eq!((facts.size, facts.crc32c), (3, Some(crc32c::crc32c(b"two"))));
        assert_eq!(folder.size("a/b").await, Ok(Some(3)));
        // A folder and nothing are no objects.
        assert_eq!((folder.size("a").await, folder.size("a/c").await), (Ok(None), Ok(None)));
        assert_eq!(fs::read_dir(dir.path().join(INCOMING)).unwrap().count(), 0, "nothing is left aside");
    }

    #[tokio::test]
    async fn parts_become_visible_together() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), dir.path().to_owned());
        let id = folder.begin_parts("a/b").await.unwrap();
        // In any order, and again.
        for sent in [part(1, 3, b"def"), part(0, 0, b"abc"), part(1, 3, b"def")] {
            folder.put_part("a/b", &id, sent).await.unwrap();
        }
        assert_eq!(folder.head("a/b").await.unwrap(), None);
        folder.complete("a/b", &id, Vec::new()).await.unwrap();
        assert_eq!(folder.get("a/b").await.unwrap().unwrap(), "abcdef");
        assert_eq!(folder.complete("a/b", &id, Vec::new()).await, Err(TransferError::PartsGone));
        assert_eq!(folder.put_part("a/b", &id, part(0, 0, b"abc")).await, Err(TransferError::PartsGone));
        folder.abort("a/b", &id).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn files_and_parts_keep_to_the_rate_together() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), dir.path().to_owned()).with_rate(SendRate::new(3));
        let begin = tokio::time::Instant::now();
        let waited = || begin.elapsed().as_secs();
        folder.put("a/b", Bytes::from_static(b"abc"), None).await.unwrap();
        assert_eq!(waited(), 0);
        let id = folder.begin_parts("a/c").await.unwrap();
        folder.put_part("a/c", &id, part(0, 0, b"abcdef")).await.unwrap();
        assert_eq!(waited(), 1);
        folder.put("a/d", Bytes::from_static(b"x"), None).await.unwrap();
        assert_eq!(waited(), 3);
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("not-mounted");
        for root in [mount.clone(), mount.join("job/1")] {
            let folder = Folder::new(root, mount.clone());
            let error = folder.put("a", Bytes::new(), None).await.unwrap_err();
            assert_eq!(error.class(), FailureClass::NotFound);
            assert!(!mount.exists());
        }
        let job = dir.path().join("job/1");
        Folder::new(job.clone(), dir.path().to_owned()).put("a", Bytes::new(), None).await.unwrap();
        assert!(job.join("a").exists());
    }

    #[tokio::test]
    async fn a_check_leaves_no_folders_and_removes_none_that_has_something() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run/_check");
        let folder = Folder::new(root.clone(), dir.path().to_owned());
        folder.put(".tpuscope/.check", Bytes::new(), None).await.unwrap();
        folder.put("kept", Bytes::new(), None).await.unwrap();
        folder.delete(".tpuscope/.check").await.unwrap();
        folder.remove_empty_folders().await;
        assert!(root.join("kept").exists() && !root.join(".tpuscope").exists());
        folder.delete("kept").await.unwrap();
        fs::create_dir_all(root.join(INCOMING)).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        folder.remove_empty_folders().await;
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other"]);
    }

    #[tokio::test]
    async fn what_is_in_the_place_of_the_folder_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink(at("none"), at("dangling")).unwrap();
        std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
        for (root, why) in [
            (at("file"), "file is no folder"),
            (at("file/x"), "lies in something that is no folder"),
            (at("dangling"), "dangling is a link to nothing"),
            (at("loop"), "loop is a link that leads to itself"),
            (at("none"), "cannot find"),
        ] {
            let folder = Folder::new(root.clone(), root);
            let error = folder.put("a", Bytes::new(), None).await.unwrap_err();
            assert_eq!(error.class(), FailureClass::NotFound, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn a_link_below_the_folder_is_named_and_not_followed() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = Folder::new(dir.path().join("job"), dir.path().to_owned());
        folder.put("plugins/profile/one/a", Bytes::from_static(b"x"), None).await.unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("job/plugins/profile/two")).unwrap();
        let error = folder.put("plugins/profile/two/a", Bytes::from_static(b"x"), None).await.unwrap_err();
        assert!(error.to_string().contains("two is a link"), "{error}");
        let id = folder.begin_parts("plugins/profile/two/a").await.unwrap();
        folder.put_part("", &id, part(0, 0, b"abc")).await.unwrap();
        assert!(folder.complete("plugins/profile/two/a", &id, Vec::new()).await.is_err());
        fs::write(elsewhere.path().join("b"), "theirs").unwrap();
        assert!(folder.get("plugins/profile/two/b").await.is_err());
        assert!(folder.delete("plugins/profile/two/b").await.is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1, "nothing came, nothing went");
    }

    #[tokio::test]
    async fn an_id_from_a_damaged_state_is_no_path() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_owned(), dir.path().to_owned());
        for id in ["../../x", "", "a/b", "."] {
            assert_eq!(
                folder.put_part("a", id, part(0, 0, b"x")).await,
                Err(TransferError::PartsGone),
                "{id}"
            );
        }
    }
}
