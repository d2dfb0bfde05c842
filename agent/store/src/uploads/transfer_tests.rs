//! A part that comes in the same moment as the manifest of all hosts.

use std::{fs, path::Path, time::Duration};

use async_trait::async_trait;
use tempfile::TempDir;

use super::{
    super::{file::PART_BYTES, session_upload::SessionFiles, status::UploadShare},
    *,
};
use crate::destinations::{self, SendRate, Transport, target::ObjectFacts};

const MANIFEST: &str = "plugins/profile/s/manifest.json";

/// A folder to which the manifest comes just before each part.
struct Overtaken {
    folder: Arc<dyn UploadTarget>,
    may_delete: bool,
}

impl Overtaken {
    async fn overtake(&self, path: &str) {
        if path.ends_with(".pb") {
            self.folder.put(MANIFEST, Bytes::from_static(b"{}"), None).await.unwrap();
        }
    }
}

#[async_trait]
impl UploadTarget for Overtaken {
    async fn put(&self, path: &str, data: Bytes, replaces: Option<&str>) -> Result<(), TransferError> {
        self.overtake(path).await;
        self.folder.put(path, data, replaces).await
    }

    async fn begin_parts(&self, path: &str) -> Result<String, TransferError> {
        self.folder.begin_parts(path).await
    }

    async fn put_part(&self, path: &str, id: &str, part: PartData) -> Result<String, TransferError> {
        self.folder.put_part(path, id, part).await
    }

    async fn complete(&self, path: &str, id: &str, parts: Vec<String>) -> Result<(), TransferError> {
        self.overtake(path).await;
        self.folder.complete(path, id, parts).await
    }

    async fn abort(&self, path: &str, id: &str) -> Result<(), TransferError> {
        self.folder.abort(path, id).await
    }

    async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, TransferError> {
        self.folder.head(path).await
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, TransferError> {
        self.folder.get(path).await
    }

    async fn delete(&self, path: &str) -> Result<(), TransferError> {
        match self.may_delete {
            true => self.folder.delete(path).await,
            false => Err(TransferError::new(FailureClass::Denied, "no right to delete")),
        }
    }

    async fn identity(&self) -> String {
        self.folder.identity().await
    }
}

/// Keeps nothing.
struct NoJournal;

impl UploadJournal for NoJournal {
    fn claimed(&self, _: &SessionUpload) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn begun(&self, _: &str, _: &str) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn changed(&self, _: &SessionUpload, _: usize, _: Option<u32>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn ended(&self, _: &str, _: &str) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The error of an upload of one part of so many bytes, and whether the part is there then.
async fn overtaken(size: u64, may_delete: bool) -> (TransferError, bool) {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let folder = here.path().join("plugins/profile/s");
    fs::create_dir_all(&folder).unwrap();
    fs::File::create(folder.join("h.xplane.pb")).unwrap().set_len(size).unwrap();
    let session: SessionName = "s".parse().unwrap();
    let url = format!("file://{}", there.path().display()).parse().unwrap();
    let transport = Transport::new(Duration::from_secs(1), SendRate::default());
    let target = Overtaken { folder: destinations::open(&url, None, transport).unwrap(), may_delete };
    let transfer = Transfer {
        target: Arc::new(target),
        source: SessionSource::new(here.path(), &session),
        memory: PartMemory::new(2),
        journal: &NoJournal,
        is_dropped: &|| false,
    };
    let files = vec![("h.xplane.pb".to_owned(), size)];
    let (id, host) = ("0".repeat(32), "h".parse().unwrap());
    let files = SessionFiles { session, id, host, files, share: UploadShare::Parts };
    let error = transfer.run(&mut SessionUpload::new(files)).await.unwrap_err().error;
    let there = |file: &str| Path::new(there.path()).join("plugins/profile/s").join(file).exists();
    assert!(there("manifest.json"));
    (error, there("h.xplane.pb"))
}

#[tokio::test]
async fn a_part_that_comes_with_the_manifest_is_taken_back() {
    for size in [3, PART_BYTES + 1] {
        let (error, stays) = overtaken(size, true).await;
        assert_eq!((error.class(), stays), (FailureClass::TooLate, false), "{error}");
        let (error, stays) = overtaken(size, false).await;
        assert_eq!((error.class(), stays), (FailureClass::TooLate, true));
        let says = "plugins/profile/s/h.xplane.pb cannot be taken back: no right to delete";
        assert!(error.to_string().ends_with(says), "{error}");
    }
}
