//! The double as the bucket library itself sees it.

use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload, UpdateVersion,
    buffered::BufWriter,
    gcp::GoogleCloudStorage,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use tokio::io::AsyncWriteExt;
use tokio_stream::StreamExt;

use super::{FakeGcs, GcsEffect, GcsFault, Moment};
use crate::bare_store::bare_store;

fn both() -> (FakeGcs, GoogleCloudStorage) {
    let server = FakeGcs::start();
    let store = bare_store(&server.url(), 3);
    (server, store)
}

fn create() -> PutOptions {
    PutMode::Create.into()
}

#[tokio::test]
async fn puts_gets_and_versions() {
    let (server, store) = both();
    let path = Path::from("runs/ä b/x+y.bin");
    let put = store.put_opts(&path, PutPayload::from_static(b"0123456789"), create()).await.expect("stored");
    let again = store.put_opts(&path, PutPayload::from_static(b"other"), create()).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    let head = store.head(&path).await.expect("there");
    assert_eq!((head.size, head.e_tag, head.version), (10, put.e_tag.clone(), put.version.clone()));
    assert_eq!(head.location, path);
    assert_eq!(store.get_range(&path, 2..5).await.expect("a range")[..], b"234"[..]);
    let suffix = GetOptions { range: Some(GetRange::Suffix(3)), ..GetOptions::default() };
    let suffix = store.get_opts(&path, suffix).await.expect("a range").bytes().await.expect("bytes");
    assert_eq!(suffix[..], b"789"[..]);
    let changed = GetOptions { if_match: Some("\"other\"".into()), ..GetOptions::default() };
    assert!(matches!(store.get_opts(&path, changed).await, Err(Error::Precondition { .. })));
    let same = GetOptions { if_none_match: put.e_tag.clone(), ..GetOptions::default() };
    assert!(matches!(store.get_opts(&path, same).await, Err(Error::NotModified { .. })));
    let version = UpdateVersion { e_tag: put.e_tag, version: put.version };
    let update = |bytes| store.put_opts(&path, bytes, PutMode::Update(version.clone()).into());
    update(PutPayload::from_static(b"new")).await.expect("replaced");
    let late = update(PutPayload::from_static(b"late")).await;
    assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
    assert_eq!(server.objects()[path.as_ref()].content(), b"new");
    store.delete(&path).await.expect("removed");
    assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn large_objects_go_in_parts() {
    let (server, store) = both();
    let bytes: Vec<u8> = (0..20 << 20).map(|n: u32| n.to_le_bytes()[2] ^ n.to_le_bytes()[0]).collect();
    let path = Path::from("big.bin");
    let mut writer = BufWriter::with_capacity(std::sync::Arc::new(store.clone()), path.clone(), 8 << 20);
    writer.write_all(&bytes).await.expect("written");
    writer.shutdown().await.expect("completed");
    assert!(server.objects()["big.bin"].content() == bytes, "the same bytes");
    let parts = server.requests().iter().filter(|request| request.query.contains_key("partNumber")).count();
    assert_eq!(parts, 3);
    let read = store.get(&path).await.expect("there").bytes().await.expect("bytes");
    assert!(read[..] == bytes, "the same bytes");

    let mut upload = store.put_multipart(&Path::from("given up")).await.expect("started");
    upload.put_part(PutPayload::from_static(b"x")).await.expect("a part");
    upload.abort().await.expect("aborted");
    assert!(server.open_uploads().is_empty());
}

#[tokio::test]
async fn an_upload_goes_on_by_its_id_alone() {
    let (server, store) = both();
    let path = Path::from("resumed");
    let id = store.create_multipart(&path).await.expect("started");
    let first = store.put_part(&path, &id, 0, vec![1; 5 << 20].into()).await.expect("a part");
    let other = bare_store(&server.url(), 0);
    let second = other.put_part(&path, &id, 1, vec![2; 9].into()).await.expect("a part");
    let parts: Vec<PartId> = vec![first, second];
    other.complete_multipart(&path, &id, parts.clone()).await.expect("completed");
    assert_eq!(server.objects()["resumed"].size, (5 << 20) + 9);
    let again = other.complete_multipart(&path, &id, parts).await;
    let again = again.expect_err("the upload is over");
    assert!(format!("{again:?}").contains("NoSuchUpload"), "{again:?}");
}

#[tokio::test]
async fn lists_and_copies() {
    let (server, store) = both();
    server.set_page_size(3);
    for n in 0..10 {
        server.put(&format!("runs/{n}/a&b.txt"), b"x");
    }
    server.put("runs/top", b"y");
    let prefix = Path::from("runs");
    let all: Vec<_> = store.list(Some(&prefix)).collect().await;
    assert_eq!(all.len(), 11);
    let names: Vec<_> = all.into_iter().map(|one| one.expect("an object").location.to_string()).collect();
    assert_eq!(names, server.objects().into_keys().collect::<Vec<_>>());
    let one_level = store.list_with_delimiter(Some(&prefix)).await.expect("a list");
    assert_eq!((one_level.common_prefixes.len(), one_level.objects.len()), (10, 1));
    let after: Vec<_> = store.list_with_offset(Some(&prefix), &Path::from("runs/8/z")).collect().await;
    assert_eq!(after.len(), 2);
    let to = Path::from("copied");
    let once = || CopyOptions::new().with_mode(CopyMode::Create);
    store.copy_opts(&Path::from("runs/1/a&b.txt"), &to, once()).await.expect("copied");
    let again = store.copy_opts(&Path::from("runs/1/a&b.txt"), &to, once()).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
}

#[tokio::test]
async fn statuses_are_what_the_library_takes_them_for() {
    let (server, store) = both();
    let path = Path::from("k");
    let fault = |status, moment| {
        server.fault(GcsFault::new(GcsEffect::Status(status, moment)).on("PUT"));
    };
    for status in [408, 429, 500, 503] {
        fault(status, Moment::BeforeCommit);
        store.put(&path, "x".into()).await.expect("tried again");
    }
    fault(503, Moment::AfterCommit);
    let hidden = Path::from("hidden");
    let twice = store.put_opts(&hidden, "x".into(), create()).await;
    assert!(matches!(twice, Err(Error::AlreadyExists { .. })), "its own first attempt: {twice:?}");
    assert_eq!(server.objects()["hidden"].content(), b"x");
    server.deny("storage.objects.create");
    let denied = store.put(&Path::from("other"), "x".into()).await;
    assert!(matches!(denied, Err(Error::PermissionDenied { .. })), "{denied:?}");
    server.require_tokens();
    let unknown = store.get(&path).await;
    assert!(matches!(unknown, Err(Error::Unauthenticated { .. })), "{unknown:?}");
}
