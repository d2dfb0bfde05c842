//! `sessions import`: by root and by others, whole or not at all.

use std::fs;

use crate::schema::Schema;

use super::*;

/// A folder that everybody can read, with a captured session.
fn captured(host: &StatefulHost) -> PathBuf {
    host.capture("one");
    let folder = host.home.path().join("copy/one");
    copy_folder(&host.folder("one"), &folder);
    for entry in fs::read_dir(&folder).unwrap() {
        fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o644)).unwrap();
    }
    folder
}

fn part(folder: &Path) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.extension().is_some_and(|end| end == "pb")).unwrap()
}

#[test]
fn a_session_that_is_taken_in_belongs_to_the_caller() {
    let mut host = StatefulHost::new();
    host.start("");
    let folder = captured(&host);
    let path = folder.to_str().unwrap();
    let taken = host.ask_as_nobody(&["sessions", "import", path, "--name", "theirs", "--json"]);
    assert_eq!(taken.code, Some(0), "{taken:?} {}", host.log());
    Schema::open("sessions-import").admits(&taken.json());
    let seen = host.ask_as_nobody(&["sessions", "list", "--json"]).json();
    assert_eq!(seen["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(seen["sessions"][0]["session"], "theirs");
    assert_eq!(host.ask_as_nobody(&["sessions", "show", "theirs"]).code, Some(0));
    // Byte for byte, and the manifest but for the name.
    let theirs = host.folder("theirs");
    assert_eq!(fs::read(part(&theirs)).unwrap(), fs::read(part(&folder)).unwrap());
    let manifest = |folder: &Path| -> Value {
        serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap()
    };
    let (original, mut copy) = (manifest(&folder), manifest(&theirs));
    assert_eq!(copy["session"], "theirs");
    copy["session"] = original["session"].clone();
    assert_eq!(copy, original);
    // Over a restart.
    host.kill();
    host.start("");
    assert_eq!(host.ask_as_nobody(&["sessions", "rm", "theirs"]).code, Some(0));
    assert_eq!(host.sessions(), ["one"]);
}

#[test]
fn a_folder_without_a_manifest_and_a_lone_file_are_taken_in() {
    let mut host = StatefulHost::new();
    host.start("");
    let folder = captured(&host);
    fs::remove_file(folder.join("manifest.json")).unwrap();
    host.done(&["sessions", "import", folder.to_str().unwrap(), "--name", "bare"]);
    let file = host.home.path().join("lone.xplane.pb");
    fs::copy(part(&folder), &file).unwrap();
    let text = host.done(&["sessions", "import", file.to_str().unwrap()]).stdout;
    assert!(text.starts_with("session lone: 1 part, "), "{text}");
    assert_eq!(host.sessions(), ["one", "bare", "lone"]);
    for session in ["bare", "lone"] {
        let text = fs::read(host.folder(session).join("manifest.json")).unwrap();
        let manifest = serde_json::from_slice(&text).unwrap();
        Schema::open("manifest").admits(&manifest);
        host.done(&["sessions", "show", session]);
    }
}

#[test]
fn what_is_no_whole_session_is_refused_and_nothing_is_kept() {
    let mut host = StatefulHost::new();
    host.start("[capture]\nmax_size = '1MiB'\n");
    let folder = captured(&host);
    let path = folder.to_str().unwrap();
    let import = |arguments: &[&str]| host.ask(&[&["sessions", "import"], arguments].concat());
    import(&[path]).failed(7, "one");
    import(&["./none"]).failed(5, "does not exist");
    import(&[&host.home.path().join("proc").display().to_string()]).failed(5, "holds no session");
    let file = part(&folder);
    let whole = fs::read(&file).unwrap();
    let write = |bytes: &[u8]| fs::write(&file, bytes).unwrap();
    // Another size than the manifest says, then another content.
    write(&whole[..whole.len() - 1]);
    import(&[path, "--name", "bad"]).failed(8, "the manifest says");
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    write(&other);
    let refused = import(&[path, "--name", "bad"]);
    assert_eq!(refused.code, Some(8), "{refused:?}");
    fs::remove_file(folder.join("manifest.json")).unwrap();
    write(b"\xff\xff\xff\xff not a trace");
    import(&[path, "--name", "bad"]).failed(8, "is damaged");
    write(&vec![0x0a; 2 << 20]);
    import(&[path, "--name", "bad"]).failed(16, "are allowed");
    write(b"");
    assert_eq!(import(&[path, "--name", "bad"]).code, Some(8));
    fs::create_dir_all(folder.parent().unwrap().join("two/plugins/profile")).unwrap();
    assert_eq!(host.sessions(), ["one"]);
    assert!(!host.state.join("sessions/plugins/.tpuscope").exists());
    assert_eq!(fs::read_dir(host.state.join("sessions/owners")).unwrap().count(), 1);
}

#[test]
fn an_import_pushes_out_no_session() {
    let mut host = StatefulHost::new();
    host.start("");
    let folder = captured(&host);
    host.stop();
    host.start("[store]\nmax_size = '1KiB'\n");
    host.capture("two");
    host.ask(&["sessions", "import", folder.to_str().unwrap(), "--name", "new"]).failed(17, "has room for");
    assert_eq!(host.sessions(), ["two"]);
}
