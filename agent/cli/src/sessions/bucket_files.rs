//! Sessions in a bucket, read in ranges: no file of theirs is ever whole on this machine's disk.
//!
//! The credentials are the caller's. Must never write to a bucket.

use std::{collections::HashMap, path::Path, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use model::backoff::Backoff;
use store::destinations::{
    BucketListing, BucketObject, BucketReader, BucketUrl, SendRate, Transport,
    target::{FailureClass, TransferError},
};
use xprof::session::{FaultKind, MANIFEST_FILE, Manifest, PART_SUFFIX, Session, claim_path, parse_manifest};

use super::remote_files::{RangeSource, RemoteSession};
use crate::{failure::Failure, remedies, runtime_thread::RuntimeThread};

/// The size of the ranges. A call takes some tens of milliseconds, whatever its size.
const BLOCK: u32 = 4 << 20;
/// The largest manifest.
const MAX_MANIFEST: u64 = 16 << 20;
/// The time without data after which a call has failed.
const IDLE: Duration = Duration::from_secs(20);
/// How often a call is made that fails for a reason that may pass.
const CALLS: u32 = 4;

/// The number of sessions that are looked at at the same time.
const AT_ONCE: usize = 8;

/// A bucket, and the thread that keeps its connections.
#[derive(Debug)]
struct Bucket {
    reader: BucketReader,
    url: BucketUrl,
    runtime: RuntimeThread,
}

/// A session in a bucket.
pub(super) struct BucketSession {
    pub(super) session: Session,
    /// The number of other sessions at the URL.
    pub(super) others: usize,
    pub(super) remote: RemoteSession,
}

/// The session at `url`: a folder, the newest one of a logdir, or one trace.
pub(super) fn open(url: &BucketUrl) -> Result<BucketSession, Failure> {
    let bucket = Bucket::open(url)?;
    let (found, others) = bucket.runtime.block_on(bucket.newest())?;
    let Found { session, etags } = found;
    let folder = session.folder.display().to_string();
    let files = BucketFiles { bucket, folder: folder.clone(), etags };
    Ok(BucketSession { session, others, remote: RemoteSession::new(folder, files) })
}

/// The sessions at `url`, by name; of more than `limit` the last ones.
pub(super) fn list(url: &BucketUrl, limit: usize) -> Result<Vec<Session>, Failure> {
    let bucket = Bucket::open(url)?;
    let sessions = bucket.runtime.block_on(bucket.all(limit))?;
    if sessions.is_empty() { Err(remedies::no_session_in_bucket(url)) } else { Ok(sessions) }
}

/// Whether a session's name begins with a time, as XProf and tpuscope name theirs.
fn is_time(name: &str) -> bool {
    let time = name.get(..19).unwrap_or_default();
    jiff::civil::DateTime::strptime("%Y_%m_%d_%H_%M_%S", time).is_ok()
}

/// A session as the bucket lists it.
struct Found {
    session: Session,
    etags: HashMap<String, Option<String>>,
}

impl Bucket {
    fn open(url: &BucketUrl) -> Result<Self, Failure> {
        let runtime = RuntimeThread::start().map_err(Failure::internal)?;
        let reader = {
            let _entered = runtime.enter();
            BucketReader::open(&url.bucket, Transport::new(IDLE, SendRate::default()))
        };
        let reader = reader.map_err(|error| remedies::unread_bucket(&url.to_string(), &error))?;
        Ok(Self { reader, url: url.clone(), runtime })
    }

    /// The session at the URL, or the newest one below it and the number of the others.
    async fn newest(&self) -> Result<(Found, usize), Failure> {
        let none = || remedies::no_session_in_bucket(&self.url);
        if self.url.path.ends_with(PART_SUFFIX) {
            return Ok((self.single().await?, 0));
        }
        let listing = self.list(&self.url.path).await?;
        if let Some(found) = self.session(&self.url.path, listing.objects).await? {
            return Ok((found, 0));
        }
        let (folder, mut names) = self.sessions(listing.folders).await?;
        let newest = names.pop().ok_or_else(none)?;
        // Names that are times are in the order of time; of others nothing is known without reading them all.
        if !names.is_empty() && !is_time(&newest) {
            return Err(remedies::several_in_bucket(&self.url.to_string(), &names, &newest));
        }
        let path = folder.join(&newest).path;
        let objects = self.list(&path).await?.objects;
        let found = self.session(&path, objects).await?.ok_or_else(none)?;
        Ok((found, names.len()))
    }

    async fn all(&self, limit: usize) -> Result<Vec<Session>, Failure> {
        let listing = self.list(&self.url.path).await?;
        if let Some(found) = self.session(&self.url.path, listing.objects).await? {
            return Ok(vec![found.session]);
        }
        let (folder, names) = self.sessions(listing.folders).await?;
        let paths: Vec<String> = names.iter().map(|name| folder.join(name).path).collect();
        let wanted = &paths[paths.len().saturating_sub(limit)..];
        let mut sessions = Vec::new();
        for some in wanted.chunks(AT_ONCE) {
            let read = some.iter().map(|path| async move {
                let objects = self.list(path).await?.objects;
                self.session(path, objects).await
            });
            for found in join_all(read).await {
                sessions.extend(found?.map(|found| found.session));
            }
        }
        Ok(sessions)
    }

    /// The folder of the sessions below the URL, which has `folders`, and their names in order.
    async fn sessions(&self, folders: Vec<String>) -> Result<(BucketUrl, Vec<String>), Failure> {
        for below in ["plugins/profile", "profile"] {
            let first = below.split('/').next().unwrap_or(below);
            if folders.iter().any(|folder| folder == first) {
                let folder = self.url.join(below);
                let names = self.list(&folder.path).await?.folders;
                if !names.is_empty() {
                    return Ok((folder, in_order(names)));
                }
            }
        }
        Ok((self.url.clone(), in_order(folders)))
    }

    async fn list(&self, path: &str) -> Result<BucketListing, Failure> {
        self.call(path, || self.reader.list(path)).await
    }

    /// The session in the folder `path`, which has `objects`.
    async fn session(&self, path: &str, objects: Vec<BucketObject>) -> Result<Option<Found>, Failure> {
        let manifest = match objects.iter().find(|object| object.name == MANIFEST_FILE) {
            Some(manifest) => Some(self.manifest(path, manifest).await?),
            None => None,
        };
        let files = objects.iter().map(|object| (object.name.clone(), object.size));
        let unfinished = manifest.is_none() && self.is_claimed(path).await?;
        let mut session = Session::listed(Path::new(&self.url_of(path)), manifest, files);
        session.iter_mut().filter(|_| unfinished).for_each(Session::note_unfinished);
        let etags = objects.iter().map(|object| (object.name.clone(), object.etag.clone())).collect();
        Ok(session.map(|session| Found { session, etags }))
    }

    /// Whether an upload has the name of the session in this folder.
    async fn is_claimed(&self, folder: &str) -> Result<bool, Failure> {
        let Some(claim) = claim_path(folder) else { return Ok(false) };
        Ok(self.call(&claim, || self.reader.object(&claim)).await?.is_some())
    }

    async fn manifest(
        &self,
        folder: &str,
        object: &BucketObject,
    ) -> Result<Result<Manifest, FaultKind>, Failure> {
        if object.size > MAX_MANIFEST {
            return Ok(Err(FaultKind::BadManifest(format!("it is larger than {MAX_MANIFEST} bytes"))));
        }
        let path = format!("{folder}/{MANIFEST_FILE}");
        let etag = object.etag.as_deref();
        let text = match object.size {
            0 => Bytes::new(),
            size => self.call(&path, || self.reader.read(&path, etag, 0..size)).await?,
        };
        Ok(parse_manifest(&text))
    }

    /// The one trace at the URL.
    async fn single(&self) -> Result<Found, Failure> {
        let none = || remedies::no_session_in_bucket(&self.url);
        let path = &self.url.path;
        let object = self.call(path, || self.reader.object(path)).await?.ok_or_else(none)?;
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let files = [(object.name.clone(), object.size)];
        let session = Session::listed(Path::new(&self.url_of(folder)), None, files);
        let mut session = session.ok_or_else(none)?;
        // Called after the file, as a lone file on the disk is.
        object.name.strip_suffix(PART_SUFFIX).unwrap_or(&object.name).clone_into(&mut session.name);
        Ok(Found { session, etags: HashMap::from([(object.name, object.etag)]) })
    }

    fn url_of(&self, path: &str) -> String {
        BucketUrl { bucket: self.url.bucket.clone(), path: path.to_owned() }.to_string()
    }

    /// Makes a call, again after a wait where its failure may pass.
    async fn call<T, F>(&self, path: &str, call: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, TransferError>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        for _ in 1..CALLS {
            match call().await {
                Err(error) if may_pass(error.class()) => {
                    tokio::time::sleep(backoff.failed(fastrand::f64())).await;
                }
                answer => return answer.map_err(|error| remedies::unread_bucket(&self.url_of(path), &error)),
            }
        }
        call().await.map_err(|error| remedies::unread_bucket(&self.url_of(path), &error))
    }
}

fn may_pass(class: FailureClass) -> bool {
    use FailureClass::{Server, Throttled, Timeout, Unreachable};
    matches!(class, Unreachable | Timeout | Throttled | Server)
}

/// The names of sessions among those of folders, in order.
fn in_order(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// The files of one session in a bucket.
#[derive(Debug)]
struct BucketFiles {
    bucket: Bucket,
    /// Its URL.
    folder: String,
    etags: HashMap<String, Option<String>>,
}

impl RangeSource for BucketFiles {
    fn block(&self) -> u32 {
        BLOCK
    }

    fn read(&self, file: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let folder: BucketUrl = self.folder.parse().map_err(Failure::internal)?;
        let path = folder.join(file).path;
        let etag = self.etags.get(file).and_then(Option::as_deref);
        let range = offset..offset.saturating_add(u64::from(length));
        let Bucket { reader, runtime, .. } = &self.bucket;
        let read = self.bucket.call(&path, || reader.read(&path, etag, range.clone()));
        runtime.block_on(read).map(|data| data.to_vec())
    }
}
