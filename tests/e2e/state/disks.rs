//! A state directory on a disk that is full or read-only.

use std::fs;

use fakes::small_disk::SmallDisk;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// Fills the disk to the last byte.
fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.path().join("filler");
    let _ = fs::write(&path, vec![1; 2 << 20]);
    path
}

fn on(disk: &SmallDisk) -> StatefulHost {
    StatefulHost::with_state(tempfile::tempdir().unwrap(), disk.path().join("state"))
}

#[test]
fn a_full_disk_refuses_captures_and_loses_nothing() {
    let disk = SmallDisk::new();
    let mut host = on(&disk);
    // Without the limit that keeps a part of the disk free.
    let settings = "[store]\nmin_free = '0B'\n";
    host.start(settings);
    for session in ["one", "two"] {
        host.capture(session);
    }
    let filler = fill(&disk);
    let capture = |host: &StatefulHost| host.ask(&["capture", "--duration", "10ms", "--session", "no"]);
    capture(&host).failed(17, "No space left");
    assert_eq!(host.sessions(), ["one", "two"]);
    // An agent starts there too, and a session can be removed.
    host.kill();
    host.start(settings);
    assert_eq!(host.sessions(), ["one", "two"]);
    assert_eq!(host.moved(), [""; 0].map(PathBuf::from), "a full disk is no damage: {}", host.log());
    host.done(&["sessions", "rm", "one"]);
    assert_eq!(host.sessions(), ["two"]);
    fs::remove_file(filler).unwrap();
    host.capture("three");
    host.kill();
    host.start(settings);
    assert_eq!(host.sessions(), ["two", "three"]);
}

/// Free pages of the disk.
fn free_pages(disk: &SmallDisk) -> usize {
    let disk = nix::sys::statvfs::statvfs(disk.path()).unwrap();
    usize::try_from(disk.blocks_available()).unwrap()
}

/// Every write of a capture and of the catalog meets the end of the disk once: the room for them grows page by page.
#[test]
fn wherever_the_disk_ends_a_session_is_kept_whole_or_refused() {
    let disk = SmallDisk::new();
    let mut host = on(&disk);
    let settings = "[store]\nmin_free = '0B'\n";
    host.start(settings);
    let mut kept = vec!["before".to_owned()];
    host.capture("before");
    let mut refused = 0;
    for pages in 0..24 {
        let filler = disk.path().join("filler");
        fs::write(&filler, vec![1; free_pages(&disk).saturating_sub(pages) * 4096]).unwrap();
        let session = format!("s{pages}");
        let ended = host.ask(&["capture", "--duration", "10ms", "--session", &session]);
        match ended.code {
            Some(0) => kept.push(session),
            Some(17) => refused += 1,
            _ => panic!("{pages}: {ended:?}\n{}", host.log()),
        }
        assert_eq!(host.sessions(), kept, "{pages}: {}", host.log());
        // What was reported is there for the next agent, still on the full disk.
        host.kill();
        host.start(settings);
        until("the sessions", || host.sessions() == kept);
        fs::remove_file(&filler).unwrap();
        // Some go again, so that there is always room to take.
        if kept.len() > 3 {
            host.done(&["sessions", "rm", &kept.remove(0)]);
        }
    }
    assert!(refused > 2 && kept.len() > 2, "{refused} refused, {kept:?} kept");
    assert_eq!(host.moved(), [""; 0].map(PathBuf::from), "a full disk is no damage: {}", host.log());
    for session in host.listed() {
        assert_eq!(session["complete"], true, "{session}");
    }
}

#[test]
fn a_first_session_on_a_disk_without_room_for_the_database_is_kept_and_shown() {
    let disk = SmallDisk::new();
    let mut host = on(&disk);
    let settings = "[store]\nmin_free = '0B'\n";
    host.start(settings);
    // Room for the small files of a session, and not for a database.
    fs::write(disk.path().join("filler"), vec![1; (256 - 14) * 4096]).unwrap();
    host.capture("one");
    assert_eq!(host.sessions(), ["one"]);
    assert!(host.log().contains("the catalog could not take a session"), "{}", host.log());
    host.done(&["sessions", "show", "one"]);
    fs::remove_file(disk.path().join("filler")).unwrap();
    assert_eq!(host.sessions(), ["one"]);
    host.done(&["sessions", "pin", "one"]);
    host.stop();
    host.start(settings);
    assert_eq!(host.listed()[0]["pinned"], true);
}

#[test]
fn a_disk_that_is_nearly_full_takes_no_session() {
    let disk = SmallDisk::new();
    let mut host = on(&disk);
    host.start("");
    host.capture("one");
    // Under 5 % of 256 pages are left.
    fs::write(disk.path().join("filler"), vec![1; 1 << 10]).unwrap();
    let pages = free_pages(&disk) - 10;
    fs::write(disk.path().join("more"), vec![1; pages * 4096]).unwrap();
    let refused = host.ask(&["capture", "--duration", "10ms"]);
    refused.failed(17, "store.min_free keeps");
    assert!(refused.stderr.contains("tpuscope sessions rm"), "{refused:?}");
    assert_eq!(host.profiler.seen().profiles.len(), 1, "no workload was disturbed");
    assert_eq!(host.sessions(), ["one"], "nothing that is not elsewhere is removed");
    fs::remove_file(disk.path().join("more")).unwrap();
    host.capture("two");
}

#[test]
fn a_state_directory_or_a_database_that_is_read_only_ends_the_start_and_stays_as_it_is() {
    let disk = SmallDisk::new();
    let mut host = on(&disk);
    host.start("");
    host.capture("one");
    host.stop();
    let remount = |flags: MsFlags| {
        let none: Option<&str> = None;
        mount(none, disk.path(), none, MsFlags::MS_REMOUNT | flags, none).unwrap();
    };
    remount(MsFlags::MS_RDONLY);
    assert_eq!(host.start_in_vain(""), 4, "{}", host.log());
    assert!(host.log().contains("mounted read-only"), "{}", host.log());
    remount(MsFlags::empty());
    // The file alone.
    let file = host.database();
    let none: Option<&str> = None;
    mount(Some(&file), &file, none, MsFlags::MS_BIND, none).unwrap();
    mount(none, &file, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
    let code = host.start_in_vain("");
    umount2(&file, MntFlags::MNT_DETACH).unwrap();
    assert_eq!(code, 4, "{}", host.log());
    assert!(host.log().contains("state.db: it is read-only"), "{}", host.log());
    assert_eq!(host.moved(), [""; 0].map(PathBuf::from));
    host.start("");
    assert_eq!(host.sessions(), ["one"]);
}
