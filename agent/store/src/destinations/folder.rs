//! A folder as a destination: of this host, or one that several hosts have mounted.
//!
//! ```text
//! <folder>/.tpuscope/<session>              who has the session's name
//!          .tpuscope/incoming/<random>      what is being written
//!          plugins/profile/<session>/…      complete files
//! ```
//!
//! A file is written aside, synchronised and renamed. Must never follow a link below the folder.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use bytes::Bytes;
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, PosixFadviseAdvice, RenameFlags, posix_fadvise, renameat2},
};

use super::target::{FailureClass, ObjectFacts, PartData, TransferError, UploadTarget};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;
/// The longest file that [`UploadTarget::get`] reads.
const MAX_SMALL: u64 = 64 << 10;

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: PathBuf,
    /// What has to be there: a file system that is not mounted must not be taken for an empty one.
    base: PathBuf,
}

impl Folder {
    /// The folder `root`, which is made where it is missing, below the folder `base`, which is not.
    pub(crate) fn new(root: PathBuf, base: PathBuf) -> Self {
        Self { root, base }
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

    fn incoming(&self) -> PathBuf {
        self.root.join(".tpuscope/incoming")
    }

    /// The file with the parts of this id. An id is a plain name.
    fn parts_file(&self, id: &str) -> Result<PathBuf, TransferError> {
        let plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if plain { Ok(self.incoming().join(id)) } else { Err(TransferError::PartsGone) }
    }

    /// A new file for what will be visible later.
    fn create(&self) -> Result<(PathBuf, File), TransferError> {
        fs::symlink_metadata(&self.base).map_err(|error| failed("find", &self.base, &error))?;
        let incoming = self.incoming();
        create_folders(&incoming)?;
        let path = incoming.join(format!("{:016x}", fastrand::u64(..)));
        let file = options().write(true).create_new(true).open(&path);
        file.map(|file| (path.clone(), file)).map_err(|error| failed("create", &path, &error))
    }

    fn write_aside(&self, path: &str, data: &[u8], replace: bool) -> Result<(), TransferError> {
        let (aside, mut file) = self.create()?;
        let written = file.write_all(data).and_then(|()| file.sync_all());
        let shown = written
            .map_err(|error| failed("write", &aside, &error))
            .and_then(|()| self.show(&aside, &self.root.join(path), replace));
        if shown.is_err() {
            // What is left is untidy only.
            let _ = fs::remove_file(&aside);
        }
        shown
    }

    /// Makes a complete file visible.
    fn show(&self, aside: &Path, path: &Path, replace: bool) -> Result<(), TransferError> {
        let folder = path.parent().unwrap_or(&self.root);
        create_folders(folder)?;
        let renamed = if replace { fs::rename(aside, path) } else { rename_new(aside, path) };
        match renamed {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(TransferError::Exists),
            renamed => renamed.map_err(|error| failed("create", path, &error))?,
        }
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| failed("write", folder, &error))
    }
}

/// Renames to a name that must be free.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        // Some network file systems cannot do both in one step. Names are claimed first, so that nobody else has this one.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => match fs::symlink_metadata(to) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(from, to),
        },
        renamed => renamed.map_err(io::Error::from),
    }
}

fn options() -> OpenOptions {
    let mut options = File::options();
    options.mode(0o640).custom_flags(OFlag::O_NOFOLLOW.bits());
    options
}

fn create_folders(path: &Path) -> Result<(), TransferError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o750).create(path).map_err(|error| failed("create", path, &error))
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> TransferError {
    let class = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailureClass::NoSpace,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => FailureClass::Denied,
        io::ErrorKind::NotFound => FailureClass::NotFound,
        io::ErrorKind::TimedOut => FailureClass::Timeout,
        _ => FailureClass::Server,
    };
    TransferError::new(class, format_args!("cannot {doing} {}: {error}", path.display()))
}

/// Size and checksum, by reading the whole file.
fn describe(path: &Path) -> Result<Option<ObjectFacts>, TransferError> {
    let mut file = match options().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| failed("open", path, &error))?,
    };
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
    Ok(Some(ObjectFacts { size, crc32c: Some(crc), generation: String::new(), etag: String::new() }))
}

#[async_trait]
impl UploadTarget for Folder {
    async fn put(&self, path: &str, data: Bytes, replaces: Option<&str>) -> Result<(), TransferError> {
        let (path, replace) = (path.to_owned(), replaces.is_some());
        self.blocking(move |folder| folder.write_aside(&path, &data, replace)).await
    }

    async fn begin_parts(&self, _: &str) -> Result<String, TransferError> {
        self.blocking(move |folder| {
            let (path, _) = folder.create()?;
            Ok(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        })
        .await
    }

    async fn put_part(&self, _: &str, id: &str, part: PartData) -> Result<String, TransferError> {
        let id = id.to_owned();
        self.blocking(move |folder| {
            let path = folder.parts_file(&id)?;
            let file = match options().write(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(TransferError::PartsGone);
                }
                file => file.map_err(|error| failed("open", &path, &error))?,
            };
            let written = file.write_all_at(&part.data, part.offset).and_then(|()| file.sync_data());
            written.map_err(|error| failed("write", &path, &error))?;
            // Advice only: a file system may not take it.
            let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            Ok(part.index.to_string())
        })
        .await
    }

    async fn complete(&self, path: &str, id: &str, _: Vec<String>) -> Result<(), TransferError> {
        let (path, id) = (path.to_owned(), id.to_owned());
        self.blocking(move |folder| {
            let aside = folder.parts_file(&id)?;
            let synced = match options().write(true).open(&aside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(TransferError::PartsGone);
                }
                file => file.and_then(|file| file.sync_all()),
            };
            synced.map_err(|error| failed("write", &aside, &error))?;
            folder.show(&aside, &folder.root.join(path), true)
        })
        .await
    }

    async fn abort(&self, _: &str, id: &str) -> Result<(), TransferError> {
        let id = id.to_owned();
        self.blocking(move |folder| {
            let Ok(path) = folder.parts_file(&id) else { return Ok(()) };
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed.map_err(|error| failed("remove", &path, &error)),
            }
        })
        .await
    }

    async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| describe(&folder.root.join(path))).await
    }

    async fn size(&self, path: &str) -> Result<Option<u64>, TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let path = folder.root.join(path);
            match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Ok(found) if !found.is_file() => Ok(None),
                found => found.map(|found| Some(found.len())).map_err(|error| failed("open", &path, &error)),
            }
        })
        .await
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let path = folder.root.join(path);
            let mut data = Vec::new();
            match options().read(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file.and_then(|file| file.take(MAX_SMALL).read_to_end(&mut data)),
            }
            .map_err(|error| failed("read", &path, &error))?;
            Ok(Some(data.into()))
        })
        .await
    }

    async fn delete(&self, path: &str) -> Result<(), TransferError> {
        let path = path.to_owned();
        self.blocking(move |folder| {
            let path = folder.root.join(path);
            fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))
        })
        .await
    }

    async fn identity(&self) -> String {
        format!("user id {}", nix::unistd::geteuid())
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(fs::read_dir(folder.incoming()).unwrap().count(), 0, "nothing is left aside");
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
