//! Cloud Storage as a client of its XML API sees it, and the metadata server of a virtual machine, on one loopback port.
//!
//! The calls, headers and error texts are those that clients of the XML API depend on; see `docs/storage.md` for what
//! was proved against it. Contents lie in a temporary folder, never in memory. It must accept nothing that the service
//! refuses: tokens, generations, part sizes and ETags are checked.

mod access;
mod buckets;
mod calls;
mod content;
mod faults;
#[cfg(test)]
mod library_tests;
mod link;
mod listing;
mod metadata;
mod multipart;
mod replies;
mod serve;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use jiff::SignedDuration;
use tempfile::TempDir;

pub use buckets::GcsObject;
pub use content::GcsContents;
pub use faults::{GcsEffect, GcsFault, Moment};
pub use serve::GcsRequest;

use crate::server_thread::ServerThread;

use access::GcsAccess;
use buckets::Buckets;
use metadata::MetadataServer;

/// The bucket that is there from the start.
pub const BUCKET: &str = "traces";

/// Everything the server knows; tests change it while it runs.
struct State {
    buckets: Buckets,
    access: GcsAccess,
    metadata: MetadataServer,
    faults: Vec<GcsFault>,
    requests: Vec<GcsRequest>,
    clock_offset: SignedDuration,
    page_size: usize,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().expect("no owner of the lock panics")
}

/// The running server; ends when dropped.
pub struct FakeGcs {
    state: Shared,
    folder: TempDir,
    thread: ServerThread,
}

impl FakeGcs {
    /// Starts one on a free port, with the bucket [`BUCKET`], which everybody may use without a token.
    pub fn start() -> Self {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), GcsContents::Kept)
    }

    /// Starts one that listens here.
    ///
    /// # Panics
    /// If it cannot.
    pub fn start_at(address: SocketAddr, contents: GcsContents) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let state = Arc::new(Mutex::new(State {
            buckets: Buckets::new(folder.path().to_owned(), contents),
            access: GcsAccess::default(),
            metadata: MetadataServer::default(),
            faults: Vec::new(),
            requests: Vec::new(),
            clock_offset: SignedDuration::ZERO,
            page_size: 1000,
        }));
        lock(&state).buckets.create(BUCKET);
        let serving = Arc::clone(&state);
        let thread = ServerThread::start(address, |listener| serve::serve(listener, serving));
        Self { state, folder, thread }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.thread.address()
    }

    /// The base URL of its XML API.
    pub fn url(&self) -> String {
        format!("http://{}", self.thread.address())
    }

    /// The key file that points a client to `url`, without tokens.
    pub fn key_file(url: &str) -> serde_json::Value {
        serde_json::json!({
            "gcs_base_url": url,
            "disable_oauth": true,
            "private_key": "",
            "private_key_id": "",
            "client_email": "",
        })
    }

    /// The path of a key file that points a client here.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn credentials_file(&self) -> PathBuf {
        let path = self.folder.path().join("key.json");
        fs::write(&path, Self::key_file(&self.url()).to_string()).expect("a key file");
        path
    }

    /// The variables that make clients ask this metadata server for tokens.
    pub fn metadata_env(&self) -> [(&'static str, String); 2] {
        // Clients fall back from the first to the second: neither may be the real one.
        ["GCE_METADATA_HOST", "GCE_METADATA_IP"].map(|name| (name, self.thread.address().to_string()))
    }

    /// Makes another bucket.
    pub fn create_bucket(&self, name: &str) {
        lock(&self.state).buckets.create(name);
    }

    /// From now on, every call needs a token of the metadata server.
    pub fn require_tokens(&self) {
        lock(&self.state).access.tokens_required = true;
    }

    /// How long tokens last that are given out from now on.
    pub fn set_token_life(&self, life: Duration) {
        lock(&self.state).access.life = life;
    }

    /// The tokens given out so far are refused from now on, whatever was said of their life.
    pub fn expire_tokens(&self) {
        lock(&self.state).access.expire();
    }

    /// Takes a permission such as `storage.objects.create` away.
    pub fn deny(&self, permission: &str) {
        lock(&self.state).access.denied.insert(permission.to_owned());
    }

    /// Gives every permission back.
    pub fn allow_all(&self) {
        lock(&self.state).access.denied.clear();
    }

    /// Adds a fault. Of several that match a request, the oldest that is not used up counts.
    pub fn fault(&self, fault: GcsFault) {
        lock(&self.state).faults.push(fault);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        lock(&self.state).faults.clear();
    }

    /// The requests that faults still wait for; those of all matching requests not counted.
    pub fn unused_faults(&self) -> usize {
        lock(&self.state).faults.iter().map(GcsFault::left).sum()
    }

    /// How far its clock is from the true time: `Date`, `Last-Modified` and the times of lists.
    pub fn set_clock_offset(&self, offset: SignedDuration) {
        lock(&self.state).clock_offset = offset;
    }

    /// The most entries on a page of a list.
    pub fn set_page_size(&self, entries: usize) {
        lock(&self.state).page_size = entries;
    }

    /// Sets a value of the metadata server, by its path below `/computeMetadata/v1/`.
    pub fn set_metadata(&self, path: &str, value: &str) {
        lock(&self.state).metadata.set(path, value);
    }

    /// The storage calls so far, in the order of their arrival.
    pub fn requests(&self) -> Vec<GcsRequest> {
        lock(&self.state).requests.iter().filter(|request| !request.is_metadata()).cloned().collect()
    }

    /// The number of all requests so far.
    pub fn request_count(&self) -> usize {
        lock(&self.state).requests.len()
    }

    /// Whether [`BUCKET`] has an object of this name.
    ///
    /// # Panics
    /// Never: the bucket is there from the start.
    pub fn has(&self, name: &str) -> bool {
        lock(&self.state).buckets.get(BUCKET).expect("made at the start").objects.contains_key(name)
    }

    /// The calls to the metadata server so far.
    pub fn metadata_requests(&self) -> Vec<GcsRequest> {
        lock(&self.state).requests.iter().filter(|request| request.is_metadata()).cloned().collect()
    }

    /// The objects of [`BUCKET`] by their names.
    pub fn objects(&self) -> BTreeMap<String, GcsObject> {
        self.objects_of(BUCKET)
    }

    /// The objects of a bucket by their names.
    ///
    /// # Panics
    /// If there is no such bucket.
    pub fn objects_of(&self, bucket: &str) -> BTreeMap<String, GcsObject> {
        lock(&self.state).buckets.get(bucket).expect("a bucket").objects.clone()
    }

    /// Puts an object into [`BUCKET`] as somebody else would.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = lock(&self.state);
        let now = jiff::Timestamp::now();
        state.buckets.put_bytes(BUCKET, name, bytes, now);
    }

    /// The objects that unfinished multipart uploads are for.
    pub fn open_uploads(&self) -> Vec<String> {
        lock(&self.state).buckets.open_uploads()
    }
}
