//! The walls between the agent's rooms: a room may only use what stands below it.

use std::{fs, path::Path};

use fakes::harness::workspace;

/// From the top floor down; rooms of one row may not use each other unless a row below says so.
const FLOORS: &[&[&str]] = &[
    &["cli"],
    &["api"],
    &["export", "detect"],
    &["session"],
    &["store", "peer"],
    &["sampler"],
    &["source"],
    &["workload"],
    &["device"],
    &["lifecycle"],
    &["config"],
    &["model"],
];

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// Every room named in `use crate::…` or `crate::…::` of `text`, comments left out.
fn used_rooms(text: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            if let Some(group) = rest.strip_prefix('{') {
                rooms.extend(group.split(',').map(first_segment));
            } else {
                rooms.push(first_segment(rest));
            }
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

fn first_segment(path: &str) -> String {
    path.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

fn check(path: &Path, room: &str, faults: &mut Vec<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("readable source folder") {
            check(&entry.expect("readable entry").path(), room, faults);
        }
        return;
    }
    let own = floor(room);
    for used in used_rooms(&fs::read_to_string(path).expect("readable source file")) {
        let allowed = used == room || matches!((own, floor(&used)), (Some(own), Some(used)) if used > own);
        if !allowed {
            faults.push(format!("{} ({room}) uses crate::{used}", path.display()));
        }
    }
}

#[test]
fn rooms_use_only_what_stands_below_them() {
    let src = workspace().join("agent/src");
    let mut faults = Vec::new();
    for entry in fs::read_dir(&src).expect("agent/src is there") {
        let path = entry.expect("readable entry").path();
        let room = path.file_stem().expect("named file").to_string_lossy().into_owned();
        if room == "lib" {
            continue;
        }
        assert!(floor(&room).is_some(), "agent/src/{room} is no room of the design");
        check(&path, &room, &mut faults);
    }
    assert!(faults.is_empty(), "walls broken:\n{}", faults.join("\n"));
}

#[test]
fn a_broken_wall_is_seen() {
    assert_eq!(
        used_rooms("use crate::{api::X, model};\nlet x = crate::cli::run();"),
        ["api", "model", "cli"]
    );
    assert_eq!(used_rooms("// use crate::api;"), Vec::<String>::new());
}
