//! A folder as the destination.

use std::fs;

use crate::schema::Schema;
use fakes::fake_profiler::trace;

use super::{LARGE, UploadHost, files, folder_destination, trace_of};

#[test]
fn a_session_arrives_whole_under_its_name() {
    for (size, trace) in [("small", trace()), ("large", trace_of(LARGE))] {
        let (_dir, there, settings) = folder_destination();
        let host = UploadHost::start(trace, &settings);
        let ended = host.capture("s", &["--to", "folder", "--wait-upload", "--json"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{size}: {ended:?}");
        let report = ended.json();
        Schema::open("capture").admits(&report);
        assert_eq!(report["uploads"][0]["state"], "done", "{report}");
        assert_eq!(report["uploads"][0]["unverified_files"], 0, "{report}");
        let folder = there.join("plugins/profile/s");
        assert_eq!(files(&folder), host.files("s"));
        for file in files(&folder) {
            assert!(fs::read(folder.join(&file)).unwrap() == host.stored("s", &file), "{file}");
        }
        // It opens there as it does here.
        let shown = host.agent.ask(&["sessions", "list"]);
        assert!(shown.stdout.contains("folder: there"), "{shown:?}");
        Schema::open("sessions-list").admits(&host.agent.ask(&["sessions", "list", "--json"]).json());
        assert_eq!(files(&there.join(".tpuscope/.incoming")), [""; 0]);
    }
}

#[test]
fn only_what_was_asked_for_is_uploaded() {
    let (_dir, there, settings) = folder_destination();
    let host = UploadHost::start(trace(), &settings);
    assert_eq!(host.capture("a", &[]).code, Some(0));
    assert_eq!(host.capture("b", &["--to", "none"]).code, Some(0));
    host.capture("c", &["--to", "elsewhere"])
        .failed(2, "no destination `elsewhere`; those there are: folder");
    host.capture("c", &["--to", "file:///etc"]).failed(2, "no destination `file:///etc`");
    assert_eq!(host.uploads().len(), 0);
    assert_eq!(files(&there), [""; 0]);
}

#[test]
fn every_session_goes_to_a_destination_for_all_unless_the_caller_says_none() {
    let (_dir, there, settings) = folder_destination();
    let host = UploadHost::start(trace(), &format!("{settings}upload = 'always'\n"));
    assert_eq!(host.capture("a", &["--wait-upload"]).code, Some(0));
    assert_eq!(host.capture("b", &["--to", "none", "--wait-upload"]).code, Some(0));
    assert_eq!(files(&there.join("plugins/profile")), ["a"]);
}

#[test]
fn a_session_of_another_has_the_name_and_keeps_it() {
    let (_dir, there, settings) = folder_destination();
    fs::create_dir(there.join(".tpuscope")).unwrap();
    fs::write(there.join(".tpuscope/s"), "another").unwrap();
    let host = UploadHost::start(trace(), &settings);
    let ended = host.capture("s", &["--to", "folder", "--wait-upload", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let name = ended.json()["uploads"][0]["name_there"].as_str().unwrap().to_owned();
    assert!(name.starts_with("s-") && name.len() > 2, "{name}");
    assert_eq!(files(&there.join("plugins/profile")), [name]);
    assert_eq!(fs::read_to_string(there.join(".tpuscope/s")).unwrap(), "another");
}

#[test]
fn a_folder_that_is_not_there_is_said_and_waited_for() {
    let (dir, there, settings) = folder_destination();
    fs::remove_dir(&there).unwrap();
    fs::remove_dir(dir.path()).unwrap();
    let host = UploadHost::start(trace(), &settings);
    let ended = host.capture("s", &["--to", "folder", "--wait-upload=1s"]);
    ended.failed(20, "session s is kept, and its upload to folder is not done after 1s: cannot find");
    let listed = host.agent.ask(&["uploads", "list"]);
    assert!(listed.stdout.contains("waits (not_found)"), "{listed:?}");
    // What is below the first placeholder is made.
    fs::create_dir(dir.path()).unwrap();
    assert_eq!(host.agent.ask(&["uploads", "retry", "s"]).code, Some(0));
    host.until_upload("the upload", |upload| upload["state"] == "done");
    assert_eq!(files(&there.join("plugins/profile/s")), host.files("s"));
}
