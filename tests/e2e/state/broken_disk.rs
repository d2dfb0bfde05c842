//! A state directory on a disk that fails: each single change of a capture, and all of them.

use fakes::fault_disk::FaultDisk;
use nix::errno::Errno;

use super::*;

fn on(disk: &FaultDisk) -> StatefulHost {
    let mut host = StatefulHost::with_state(tempfile::tempdir().unwrap(), disk.path().join("state"));
    host.environment = disk.environment();
    host
}

/// What was kept is whole, and can be read to its last byte.
fn whole(host: &StatefulHost, kept: &[String]) {
    assert_eq!(host.sessions(), kept, "{}", host.log());
    for session in host.listed() {
        assert_eq!((&session["complete"], &session["fault"]), (&true.into(), &Value::Null), "{session}");
    }
    if let Some(last) = kept.last() {
        host.done(&["sessions", "show", last]);
    }
}

/// Every change that a capture makes on the disk fails once: files, folders, moves, syncs, and those of the database.
#[test]
fn whichever_change_fails_a_session_is_kept_whole_or_refused() {
    let disk = FaultDisk::new();
    let mut host = on(&disk);
    host.start("");
    host.capture("first");
    let mut kept = vec!["first".to_owned()];
    let (mut refused, mut failed) = (0, Vec::new());
    for number in 1.. {
        let session = format!("s{number}");
        disk.fail(number..=number, Errno::EIO);
        let ended = host.ask(&["capture", "--duration", "1ms", "--session", &session]);
        let now_failed = disk.failed();
        disk.clear();
        match ended.code {
            Some(0) => kept.push(session),
            Some(_) => {
                assert!(ended.stderr.contains("Input/output error"), "{now_failed:?}: {ended:?}");
                refused += 1;
            }
            None => panic!("{now_failed:?}: {ended:?}\n{}", host.log()),
        }
        whole(&host, &kept);
        if now_failed.is_empty() {
            break;
        }
        failed.extend(now_failed);
        // What was reported is there for the next agent.
        if number % 4 == 0 {
            host.kill();
            host.start("");
            until("the sessions", || host.sessions() == kept);
        }
        if kept.len() > 3 {
            host.done(&["sessions", "rm", &kept.remove(0)]);
        }
    }
    let met =
        |call: &str, what: &str| failed.iter().any(|each| each.starts_with(call) && each.contains(what));
    for (call, what) in [
        ("write", ".part"),
        ("fsync", ".part"),
        ("rename", ".xplane.pb"),
        ("write", "manifest.json"),
        ("mkdir", "plugins/profile"),
        ("pwrite", "state.db-wal"),
        ("fsync", "state.db-wal"),
    ] {
        assert!(met(call, what), "{call} {what} was not met: {failed:#?}");
    }
    assert!(refused > 5, "{refused} of {}", failed.len());
    assert_eq!(host.moved(), [""; 0].map(PathBuf::from), "an error is no damage: {}", host.log());
}

#[test]
fn on_a_disk_that_fails_altogether_the_agent_stays_up_and_goes_on_when_it_works_again() {
    let disk = FaultDisk::new();
    let mut host = on(&disk);
    host.start("");
    host.capture("before");
    disk.fail(1..=u64::MAX, Errno::EIO);
    let refused = host.ask(&["capture", "--duration", "1ms", "--session", "no"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains("Input/output error"), "{refused:?}");
    let pinned = host.ask(&["sessions", "pin", "before"]);
    assert_ne!(pinned.code, Some(0), "{pinned:?}");
    assert_eq!(host.sessions(), ["before"]);
    host.done(&["status"]);
    disk.clear();
    host.capture("after");
    host.done(&["sessions", "pin", "before"]);
    host.stop();
    host.start("");
    whole(&host, &["before".to_owned(), "after".to_owned()]);
}

#[test]
fn an_agent_that_cannot_read_or_write_its_database_at_the_start_says_so() {
    let disk = FaultDisk::new();
    let mut host = on(&disk);
    host.start("");
    host.capture("one");
    host.stop();
    disk.fail(1..=u64::MAX, Errno::EIO);
    let code = host.start_in_vain("");
    assert_ne!(code, 0, "{}", host.log());
    assert!(host.log().contains("Input/output error"), "{}", host.log());
    disk.clear();
    host.start("");
    whole(&host, &["one".to_owned()]);
    assert_eq!(host.moved(), [""; 0].map(PathBuf::from), "an error is no damage: {}", host.log());
}
