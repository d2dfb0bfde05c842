//! Sessions in a bucket, read in ranges: no file of theirs is ever whole on this machine's disk.
//!
//! The credentials are the caller's. Must never write to a bucket.

use std::{collections::HashMap, path::Path, time::Duration};

use model::backoff::Backoff;
use store::destinations::{
    BucketListing, BucketObject, BucketReader, BucketUrl, SendRate, Transport,
    target::{FailureClass, TransferError},
};
use tokio::runtime::{self, Runtime};
use xprof::session::{FaultKind, MANIFEST_FILE, Manifest, PART_SUFFIX, Session, parse_manifest};

use super::remote_files::{RangeSource, RemoteSession};
use crate::{failure::Failure, remedies};

/// The size of the ranges. A call takes some tens of milliseconds, whatever its size.
const BLOCK: u32 = 4 << 20;
/// The largest manifest.
const MAX_MANIFEST: u64 = 16 << 20;
/// The time without data after which a call has failed.
const IDLE: Duration = Duration::from_secs(20);
/// How often a call is made that fails for a reason that may pass.
const CALLS: u32 = 4;

/// A bucket, and the thread that keeps its connections.
#[derive(Debug)]
pub(super) struct Bucket {
    reader: BucketReader,
    url: BucketUrl,
    runtime: Runtime,
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
    if url.path.ends_with(PART_SUFFIX) {
        return bucket.single();
    }
    let listing = bucket.list(&url.path)?;
    if let Some((session, objects)) = bucket.session(&url.path, listing.objects)? {
        return Ok(bucket.opened(session, objects, 0));
    }
    let (folder, mut names) = bucket.sessions(listing.folders)?;
    names.sort();
    let Some(newest) = names.pop() else { return Err(remedies::no_session_in_bucket(url)) };
    // Names that are times are in the order of time; of others nothing is known without reading them all.
    if !names.is_empty() && !is_time(&newest) {
        return Err(remedies::several_in_bucket(&url.to_string(), &names, &newest));
    }
    let path = format!("{folder}/{newest}");
    let objects = bucket.list(&path)?.objects;
    match bucket.session(&path, objects)? {
        Some((session, objects)) => Ok(bucket.opened(session, objects, names.len())),
        None => Err(remedies::no_session_in_bucket(url)),
    }
}

/// Whether a session's name begins with a time, as XProf and tpuscope name theirs.
fn is_time(name: &str) -> bool {
    let time = name.get(..19).unwrap_or_default();
    jiff::civil::DateTime::strptime("%Y_%m_%d_%H_%M_%S", time).is_ok()
}

impl Bucket {
    pub(super) fn open(url: &BucketUrl) -> Result<Self, Failure> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(Failure::internal)?;
        let reader = {
            let _entered = runtime.enter();
            BucketReader::open(&url.bucket, Transport::new(IDLE, SendRate::default()))
        };
        let reader = reader.map_err(|error| remedies::unread_bucket(&url.to_string(), &error))?;
        Ok(Self { reader, url: url.clone(), runtime })
    }

    /// The folder of the sessions below the URL, which has `folders`, and their names.
    pub(super) fn sessions(&self, folders: Vec<String>) -> Result<(String, Vec<String>), Failure> {
        for below in ["plugins/profile", "profile"] {
            let first = below.split('/').next().unwrap_or(below);
            if folders.iter().any(|folder| folder == first) {
                let folder = self.url.join(below).path;
                let names = self.list(&folder)?.folders;
                if !names.is_empty() {
                    return Ok((folder, shown(names)));
                }
            }
        }
        Ok((self.url.path.clone(), shown(folders)))
    }

    pub(super) fn list(&self, path: &str) -> Result<BucketListing, Failure> {
        self.call(path, || self.reader.list(path))
    }

    /// The session in the folder `path`, which has `objects`.
    pub(super) fn session(
        &self,
        path: &str,
        objects: Vec<BucketObject>,
    ) -> Result<Option<(Session, Vec<BucketObject>)>, Failure> {
        let manifest = objects.iter().find(|object| object.name == MANIFEST_FILE);
        let manifest = manifest.map(|manifest| self.manifest(path, manifest)).transpose()?;
        let files = objects.iter().map(|object| (object.name.clone(), object.size));
        let folder = BucketUrl { bucket: self.url.bucket.clone(), path: path.to_owned() }.to_string();
        let session = Session::listed(Path::new(&folder), manifest, files);
        Ok(session.map(|session| (session, objects)))
    }

    fn manifest(&self, folder: &str, object: &BucketObject) -> Result<Result<Manifest, FaultKind>, Failure> {
        if object.size > MAX_MANIFEST {
            return Ok(Err(FaultKind::BadManifest(format!("it is larger than {MAX_MANIFEST} bytes"))));
        }
        let path = format!("{folder}/{MANIFEST_FILE}");
        let text = match object.size {
            0 => Vec::new(),
            size => self.call(&path, || self.reader.read(&path, object.etag.as_deref(), 0..size))?.to_vec(),
        };
        Ok(parse_manifest(&text))
    }

    fn single(self) -> Result<BucketSession, Failure> {
        let path = &self.url.path;
        let object = self.call(path, || self.reader.object(path))?;
        let object = object.ok_or_else(|| remedies::no_session_in_bucket(&self.url))?;
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let folder = BucketUrl { bucket: self.url.bucket.clone(), path: folder.to_owned() };
        let files = [(object.name.clone(), object.size)];
        let session = Session::listed(Path::new(&folder.to_string()), None, files);
        let mut session = session.ok_or_else(|| remedies::no_session_in_bucket(&self.url))?;
        // Called after the file, as a lone file on the disk is.
        object.name.strip_suffix(PART_SUFFIX).unwrap_or(&object.name).clone_into(&mut session.name);
        Ok(self.opened(session, vec![object], 0))
    }

    fn opened(self, session: Session, objects: Vec<BucketObject>, others: usize) -> BucketSession {
        let etags = objects.into_iter().map(|object| (object.name, object.etag)).collect();
        let folder = session.folder.display().to_string();
        let files = BucketFiles { bucket: self, folder: folder.clone(), etags };
        BucketSession { session, others, remote: RemoteSession::new(folder, files) }
    }

    /// Makes a call, again after a wait where its failure may pass.
    fn call<T, F>(&self, path: &str, call: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, TransferError>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let answered = self.runtime.block_on(async {
            for _ in 1..CALLS {
                match call().await {
                    Err(error) if may_pass(error.class()) => {
                        tokio::time::sleep(backoff.failed(fastrand::f64())).await;
                    }
                    answer => return answer,
                }
            }
            call().await
        });
        let url = BucketUrl { bucket: self.url.bucket.clone(), path: path.to_owned() }.to_string();
        answered.map_err(|error| remedies::unread_bucket(&url, &error))
    }
}

fn may_pass(class: FailureClass) -> bool {
    use FailureClass::{Server, Throttled, Timeout, Unreachable};
    matches!(class, Unreachable | Timeout | Throttled | Server)
}

/// The names of sessions among those of folders.
fn shown(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| !name.starts_with('.'));
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
        self.bucket
            .call(&path, || self.bucket.reader.read(&path, etag, range.clone()))
            .map(|data| data.to_vec())
    }
}
