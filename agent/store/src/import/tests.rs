//! A session that is taken in: whole and checked, or not at all.

use std::{fs, sync::Arc};

use model::{time::SystemClock, unit::Bytes};
use tempfile::TempDir;

use super::*;
use crate::settings::{MaxSize, Settings};

/// An XSpace with one plane, `p`.
const TRACE: &[u8] = &[0x0a, 3, 0x12, 1, b'p'];
const LIMIT: u64 = 1000;

fn store(state: &TempDir, settings: Settings) -> SessionStore {
    let store = SessionStore::open(state.path(), settings, Arc::new(SystemClock)).unwrap();
    store.fill().unwrap();
    store
}

fn import(store: &SessionStore, files: &[(&str, &[u8])]) -> Result<StoredSession, ImportError> {
    let announced: Vec<_> = files
        .iter()
        .map(|(file, data)| AnnouncedFile { file: (*file).to_owned(), size: data.len() as u64 })
        .collect();
    let owners = SessionOwners::of([7]);
    let mut import = store.begin_import("s".parse().unwrap(), owners, &announced, LIMIT)?;
    for (file, data) in files {
        for (offset, byte) in data.chunks(2).enumerate() {
            import.take(file, 2 * offset as u64, byte)?;
        }
    }
    store.finish_import(import, Timestamp(5_000_000_000))
}

#[test]
fn a_folder_without_a_manifest_gets_one() {
    let state = TempDir::new().unwrap();
    let store = store(&state, Settings::default());
    let stored = import(&store, &[("b.xplane.pb", TRACE), ("a.xplane.pb", TRACE)]).unwrap();
    assert_eq!((stored.owners.uids.as_slice(), stored.parts, stored.partial), (&[7][..], 2, false));
    assert_eq!(stored.created, Some(Timestamp(5_000_000_000)));
    let opened = store.get(&stored.name).unwrap();
    assert_eq!(opened.stored, stored);
    let manifest = opened.session.manifest.unwrap();
    assert!(manifest.id.is_some() && manifest.hosts.iter().all(|host| host.parts[0].planes == 1));
}

#[test]
fn a_manifest_is_kept_where_it_is_true() {
    let state = TempDir::new().unwrap();
    let store = store(&state, Settings::default());
    let manifest = |sha256: &str| {
        format!(
            r#"{{"version": 1, "session": "other", "id": "{}", "tool": {{"name": "tpuscope", "version": "0.1.0"}},
            "created": "2026-03-04T05:06:07Z", "hosts": [{{"host": "h", "parts": [{{"file": "a.xplane.pb", "size": 5,
            "sha256": "{sha256}", "uid": 0, "planes": 1, "lines": 0, "events": 0}}]}}]}}"#,
            "0123456789abcdef".repeat(2)
        )
    };
    let wrong = manifest(&"0".repeat(64));
    let refused = import(&store, &[("a.xplane.pb", TRACE), (MANIFEST_FILE, wrong.as_bytes())]);
    assert!(matches!(&refused, Err(ImportError::Mismatch(file)) if file == "a.xplane.pb"), "{refused:?}");
    let refused = import(&store, &[("b.xplane.pb", TRACE), (MANIFEST_FILE, wrong.as_bytes())]);
    assert!(matches!(refused, Err(ImportError::Mismatch(_))), "{refused:?}");
    let refused = import(&store, &[("a.xplane.pb", TRACE), (MANIFEST_FILE, b"{}")]);
    assert!(matches!(refused, Err(ImportError::Manifest(_))), "{refused:?}");
    assert!(store.list(9, |_| true).unwrap().is_empty());

    let whole = import(&store, &[("a.xplane.pb", TRACE)]).unwrap();
    let sha256 = store.parts(&whole.name).unwrap()[0].sha256.clone().unwrap();
    store.remove(&whole.name).unwrap();
    let right = manifest(&sha256);
    let stored = import(&store, &[("a.xplane.pb", TRACE), (MANIFEST_FILE, right.as_bytes())]).unwrap();
    let id = stored.id.clone().unwrap();
    assert_eq!(id.as_str(), "0123456789abcdef".repeat(2));
    // Whose it is, the caller says and not the manifest.
    assert_eq!((stored.owners.uids.as_slice(), stored.name.as_str()), (&[7][..], "s"));
    assert_eq!(stored.created.unwrap().to_string(), "2026-03-04T05:06:07Z");
}

#[test]
fn what_is_no_session_leaves_nothing() {
    let state = TempDir::new().unwrap();
    let store = store(&state, Settings::default());
    let many: Vec<_> = (0..=MAX_PARTS).map(|n| format!("p{n}.xplane.pb")).collect();
    let many: Vec<_> = many.iter().map(|file| (file.as_str(), TRACE)).collect();
    let large = vec![0; 1001];
    type Files<'a> = &'a [(&'a str, &'a [u8])];
    type Is = fn(&ImportError) -> bool;
    let cases: [(Files<'_>, Is); 9] = [
        (&[], |error| matches!(error, ImportError::NoParts)),
        (&[(MANIFEST_FILE, b"{}")], |error| matches!(error, ImportError::NoParts)),
        (&many, |error| matches!(error, ImportError::TooManyParts(_))),
        (&[("../../x.xplane.pb", TRACE)], |error| matches!(error, ImportError::FileName { .. })),
        (&[("x.txt", TRACE)], |error| matches!(error, ImportError::FileName { .. })),
        (&[("x.xplane.pb", b"")], |error| matches!(error, ImportError::Empty(_))),
        (&[("x.xplane.pb", &large)], |error| matches!(error, ImportError::TooLarge { .. })),
        (&[("x.xplane.pb", b"not a trace")], |error| matches!(error, ImportError::Damaged { .. })),
        (&[("x.xplane.pb", &TRACE[..4])], |error| matches!(error, ImportError::Damaged { .. })),
    ];
    for (n, (files, is)) in cases.into_iter().enumerate() {
        let error = import(&store, files).unwrap_err();
        assert!(is(&error), "{n}: {error}");
    }
    let twice = import(&store, &[("x.xplane.pb", TRACE), ("x.xplane.pb", TRACE)]).unwrap_err();
    assert!(matches!(twice, ImportError::Twice(_)), "{twice}");
    assert!(store.list(9, |_| true).unwrap().is_empty());
    for folder in ["plugins/.tpuscope", "owners"] {
        // The folder of what is being written goes with the last of it.
        let left = fs::read_dir(state.path().join("sessions").join(folder)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{folder}");
    }
}

#[test]
fn files_arrive_as_they_were_announced() {
    let state = TempDir::new().unwrap();
    let store = store(&state, Settings::default());
    let begin = || {
        let file = |file: &str| AnnouncedFile { file: file.to_owned(), size: 5 };
        let files = [file("a.xplane.pb"), file("b.xplane.pb")];
        store.begin_import("s".parse().unwrap(), SessionOwners::default(), &files, LIMIT).unwrap()
    };
    type Piece<'a> = (&'a str, u64, &'a [u8]);
    let wrong: [&[Piece<'_>]; 4] = [
        &[("b.xplane.pb", 0, TRACE)],
        &[("a.xplane.pb", 1, &TRACE[1..])],
        &[("a.xplane.pb", 0, &TRACE[..2]), ("b.xplane.pb", 0, TRACE)],
        &[("a.xplane.pb", 0, TRACE), ("b.xplane.pb", 0, TRACE), ("c.xplane.pb", 0, TRACE)],
    ];
    for pieces in wrong {
        let mut import = begin();
        let taken = pieces.iter().try_for_each(|(file, offset, data)| import.take(file, *offset, data));
        assert!(matches!(taken, Err(ImportError::Protocol(_))), "{taken:?}");
    }
    let mut import = begin();
    assert_eq!(import.name().as_str(), "s");
    import.take("a.xplane.pb", 0, TRACE).unwrap();
    let unfinished = store.finish_import(import, Timestamp(0));
    assert!(matches!(unfinished, Err(ImportError::Protocol(_))), "{unfinished:?}");
}

#[test]
fn an_import_pushes_out_nothing() {
    let state = TempDir::new().unwrap();
    let store = store(&state, Settings::default());
    import(&store, &[("a.xplane.pb", TRACE)]).unwrap();
    let size = store.get(&"s".parse().unwrap()).unwrap().stored.bytes;
    let full = MaxSize::Size(Bytes::new(size));
    store.set_limits(Settings { max_size: full, ..Settings::default() });
    let files = [AnnouncedFile { file: "b.xplane.pb".to_owned(), size: 5 }];
    let begun = store.begin_import("t".parse().unwrap(), SessionOwners::default(), &files, LIMIT);
    assert!(matches!(begun, Err(ImportError::NoRoom { room: 0, .. })), "{begun:?}");
    let taken = import(&store, &[("a.xplane.pb", TRACE)]);
    assert!(matches!(taken, Err(ImportError::NoRoom { .. })), "{taken:?}");
}
