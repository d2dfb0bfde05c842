//! What goes and what stays, for examples and for any sessions.

use proptest::prelude::*;

use super::*;

const S: i64 = 1_000_000_000;
const NOW: Timestamp = Timestamp(100 * S);

/// A session as the database has it.
#[derive(Debug, Clone)]
struct Stored {
    candidate: Candidate,
    pinned: bool,
    priority: u8,
}

fn stored(name: &str, created: Option<i64>, bytes: u64, upload: UploadState) -> Stored {
    let name = name.parse().unwrap();
    let candidate = Candidate { name, created: created.map(|at| Timestamp(at * S)), bytes, upload };
    Stored { candidate, pinned: false, priority: 1 }
}

fn local(name: &str, created: Option<i64>, bytes: u64) -> Stored {
    stored(name, created, bytes, UploadState::Local)
}

/// Asks in the three orders, as the statements of the catalog give them.
fn removals(sessions: &[Stored], limits: Limits) -> Vec<Removal> {
    let bytes = sessions.iter().map(|session| session.candidate.bytes).sum();
    let mut plan = Plan::new(limits, NOW, bytes, BTreeSet::new());
    let mut unpinned: Vec<&Stored> = sessions.iter().filter(|session| !session.pinned).collect();
    unpinned.sort_by_key(|session| (session.candidate.created, session.candidate.name.clone()));
    let candidates = |wanted: &dyn Fn(&Candidate) -> bool| -> Vec<Candidate> {
        unpinned.iter().map(|session| session.candidate.clone()).filter(wanted).collect()
    };
    let aged = candidates(&|session| session.upload != UploadState::Pending && session.created.is_some());
    let _ = aged.into_iter().all(|candidate| plan.oldest(candidate));
    let uploaded = candidates(&|session| session.upload == UploadState::Uploaded);
    let _ = uploaded.into_iter().all(|candidate| plan.uploaded(candidate));
    unpinned.sort_by_key(|session| session.priority);
    let unsent = unpinned.iter().map(|session| session.candidate.clone());
    let mut unsent = unsent.filter(|session| session.upload != UploadState::Uploaded);
    let _ = unsent.all(|candidate| plan.unsent(candidate));
    plan.removals
}

fn names(removals: &[Removal]) -> Vec<&str> {
    removals.iter().map(|removal| removal.name.as_str()).collect()
}

fn of_size(sessions: &[Stored], max_size: u64) -> Vec<String> {
    let limits = Limits { max_size: Some(max_size), ..Limits::default() };
    names(&removals(sessions, limits)).into_iter().map(ToOwned::to_owned).collect()
}

#[test]
fn the_oldest_go_until_the_rest_fits() {
    let sessions = [local("c", Some(1), 10), local("a", Some(2), 10), local("b", Some(3), 10)];
    assert_eq!(removals(&sessions, Limits::default()), []);
    assert_eq!(of_size(&sessions, 30), [""; 0]);
    assert_eq!(of_size(&sessions, 29), ["c"]);
    assert_eq!(of_size(&sessions, 0), ["c", "a", "b"]);
}

#[test]
fn what_is_too_old_goes_and_an_unknown_age_is_not_old() {
    let sessions = [local("x", None, 10), local("old", Some(39), 10), local("new", Some(41), 10)];
    let old = Limits { max_age: Some(Duration::from_secs(60)), ..Limits::default() };
    assert_eq!(names(&removals(&sessions, old)), ["old"]);
    assert_eq!(of_size(&sessions, 20), ["x"]);
    let both = Limits { max_size: Some(10), ..old };
    assert_eq!(names(&removals(&sessions, both)), ["old", "x"]);
    // A clock that was set back makes nothing old.
    assert_eq!(removals(&[local("future", Some(500), 10)], old), []);
    // What waits for its upload is never too old.
    assert_eq!(removals(&[stored("waits", Some(1), 10, UploadState::Pending)], old), []);
}

#[test]
fn what_was_uploaded_goes_before_anything_else_and_alone_for_the_free_disk() {
    let sessions = [
        local("local", Some(1), 10),
        stored("waits", Some(2), 10, UploadState::Pending),
        stored("there", Some(9), 10, UploadState::Uploaded),
    ];
    assert_eq!(of_size(&sessions, 20), ["there"]);
    assert_eq!(of_size(&sessions, 19), ["there", "local"]);
    let lacking = Limits { lacking: 1000, ..Limits::default() };
    assert_eq!(names(&removals(&sessions, lacking)), ["there"]);
    assert_eq!(removals(&sessions, Limits { lacking: 0, ..lacking }), []);
}

#[test]
fn the_least_precious_goes_when_all_is_unsent() {
    let mut sessions = [local("asked", Some(1), 10), local("periodic", Some(5), 10)];
    assert_eq!(of_size(&sessions, 10), ["asked"]);
    sessions[1].priority = 0;
    assert_eq!(of_size(&sessions, 10), ["periodic"]);
    sessions[1].pinned = true;
    assert_eq!(of_size(&sessions, 10), ["asked"]);
}

fn any_session() -> impl Strategy<Value = Stored> {
    let upload =
        prop_oneof![Just(UploadState::Local), Just(UploadState::Pending), Just(UploadState::Uploaded)];
    let numbers = (proptest::option::of(0_i64..100), 0_u64..1000, 0_u8..3, 0_u8..4);
    (numbers, upload).prop_map(|((created, bytes, priority, pinned), upload)| {
        let mut session = stored("x", created, bytes, upload);
        (session.priority, session.pinned) = (priority, pinned == 0);
        session
    })
}

fn any_sessions() -> impl Strategy<Value = Vec<Stored>> {
    proptest::collection::vec(any_session(), 0..30).prop_map(|mut sessions| {
        for (n, session) in sessions.iter_mut().enumerate() {
            session.candidate.name = format!("s{n}").parse().unwrap();
        }
        sessions
    })
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let age = proptest::option::of((0_u64..100).prop_map(Duration::from_secs));
    (proptest::option::of(0_u64..10_000), age, 0_u64..3000).prop_map(|(max_size, max_age, lacking)| Limits {
        max_size,
        max_age,
        lacking,
    })
}

proptest! {
    #[test]
    fn no_session_goes_without_a_reason(sessions in any_sessions(), limits in any_limits()) {
        let removed = removals(&sessions, limits);
        let gone = |session: &&Stored| removed.iter().any(|removal| removal.name == session.candidate.name);
        let stay: Vec<&Stored> = sessions.iter().filter(|session| !gone(session)).collect();
        prop_assert_eq!(stay.len() + removed.len(), sessions.len(), "each goes once");
        prop_assert!(!sessions.iter().filter(gone).any(|session| session.pinned));
        // Within the size, or nothing is left that may go.
        let left: u64 = stay.iter().map(|session| session.candidate.bytes).sum();
        let over = limits.max_size.is_some_and(|max| left > max);
        prop_assert!(!over || stay.iter().all(|session| session.pinned));
        // No more than needed: without the last one for the size it would not have been enough.
        if let Some(last) = removed.iter().rfind(|removal| removal.reason == RemovalReason::Size) {
            let freed_after: u64 = removed.iter().filter(|r| r.reason == RemovalReason::Free).map(|r| r.bytes).sum();
            prop_assert!(left + freed_after + last.bytes > limits.max_size.unwrap_or(u64::MAX));
        }
        let uploaded_stays =
            stay.iter().any(|session| !session.pinned && session.candidate.upload == UploadState::Uploaded);
        for removal in &removed {
            let unsent = removal.upload != UploadState::Uploaded;
            match removal.reason {
                RemovalReason::Age => prop_assert!(removal.upload != UploadState::Pending),
                RemovalReason::Size => prop_assert!(!unsent || !uploaded_stays),
                RemovalReason::Free => prop_assert!(!unsent),
            }
        }
        // Of what was not uploaded, nothing goes for room before something less precious.
        let worth = |session: &Stored| (session.priority, session.candidate.created, session.candidate.name.clone());
        let for_room = |session: &&Stored| removed.iter().any(|removal| {
            removal.name == session.candidate.name
                && removal.reason == RemovalReason::Size
                && removal.upload != UploadState::Uploaded
        });
        let most = sessions.iter().filter(for_room).map(worth).max();
        let unsent = |session: &&&Stored| {
            !session.pinned && session.candidate.upload != UploadState::Uploaded
        };
        let least = stay.iter().filter(unsent).map(|session| worth(session)).min();
        if let (Some(most), Some(least)) = (most, least) {
            prop_assert!(most < least);
        }
    }
}
