//! Pins, limits and removals through the command line.

use crate::schema::Schema;

use super::*;

#[test]
fn what_is_pinned_stays_and_prune_says_what_goes() {
    let mut host = StatefulHost::new();
    host.start("");
    for session in ["one", "two", "three"] {
        host.capture(session);
    }
    let pinned = host.done(&["sessions", "pin", "one", "--json"]).json();
    Schema::open("sessions-pin").admits(&pinned);
    assert_eq!(pinned["sessions"], serde_json::json!(["one"]));
    let listed = host.done(&["sessions", "list", "--json"]).json();
    Schema::open("sessions-list").admits(&listed);
    assert!(host.done(&["sessions", "list"]).stdout.contains(", pinned  here\n"));
    assert_eq!(host.done(&["sessions", "prune"]).stdout, "no session exceeds the limits of the store\n");
    host.stop();

    host.start("[store]\nmax_size = '1B'\n");
    // The limits apply once a minute, but not while the start reads the folders.
    until("the limits", || host.sessions() == ["one"]);
    host.capture("four");
    // The last one stays.
    assert_eq!(host.sessions(), ["one", "four"]);
    let planned = host.done(&["sessions", "prune", "--dry-run", "--json"]).json();
    Schema::open("sessions-prune").admits(&planned);
    assert_eq!((&planned["dry_run"], &planned["sessions"][0]["session"]), (&true.into(), &"four".into()));
    assert_eq!(planned["sessions"][0]["limit"], "store.max_size");
    assert_eq!(host.sessions(), ["one", "four"]);
    let pruned = host.done(&["sessions", "prune"]).stdout;
    assert!(pruned.starts_with("removed four: ") && pruned.ends_with("(store.max_size)\n"), "{pruned}");
    assert_eq!(host.sessions(), ["one"]);
    assert!(!host.folder("four").exists());
    assert_eq!(host.done(&["sessions", "unpin", "one"]).stdout, "unpinned one\n");
    host.done(&["sessions", "prune"]);
    assert_eq!(host.sessions(), [""; 0]);
}

#[test]
fn the_newest_are_listed_when_a_limit_is_asked_for() {
    let mut host = StatefulHost::new();
    host.start("");
    for session in ["one", "two", "three"] {
        host.capture(session);
    }
    let listed = host.done(&["sessions", "list", "--json", "--limit", "2"]).json();
    let names: Vec<_> = listed["sessions"].as_array().unwrap().iter().map(|s| s["session"].clone()).collect();
    assert_eq!(names, ["two", "three"]);
    assert_eq!(host.ask(&["sessions", "list", "--limit", "0"]).code, Some(2));
}

#[test]
fn the_sessions_of_others_are_neither_seen_nor_pinned_nor_pruned() {
    let mut host = StatefulHost::new();
    host.start("");
    host.capture("roots");
    for arguments in
        [["sessions", "pin", "roots"], ["sessions", "unpin", "roots"], ["sessions", "rm", "roots"]]
    {
        host.ask_as_nobody(&arguments).failed(5, "there is no session roots");
    }
    for arguments in [&["sessions", "prune"][..], &["sessions", "prune", "--dry-run"]] {
        let refused = host.ask_as_nobody(arguments);
        refused.failed(4, "the sessions of all users");
    }
    let listed = host.ask_as_nobody(&["sessions", "list", "--json", "--limit", "5"]);
    assert_eq!(listed.json()["sessions"], serde_json::json!([]));
    assert_eq!(host.sessions(), ["roots"]);
}

#[test]
fn nothing_but_a_session_of_the_agent_is_changed_or_removed() {
    let mut host = StatefulHost::new();
    host.start("");
    host.capture("one");
    let folder = host.home.path().join("one");
    copy_folder(&host.folder("one"), &folder);
    let paths = ["./one", folder.to_str().unwrap(), "gs://bucket/plugins/profile/one", "one.xplane.pb", "."];
    for command in ["rm", "pin", "unpin"] {
        for path in paths {
            // Refused as a whole: the session that is named as well stays.
            let refused = host.ask(&["sessions", command, "one", path]);
            refused.failed(2, "takes names of sessions of the agent only");
        }
    }
    host.ask(&["sessions", "import", "one"]).failed(2, "takes a path");
    assert_eq!(host.sessions(), ["one"]);
    assert!(folder.join("manifest.json").exists());
    let failed = host.ask(&["sessions", "pin", "none", "one", "--json"]);
    assert_eq!((failed.code, &failed.json()["sessions"][0]), (Some(5), &"one".into()));
}
