//! What an agent without rights sees, and what it says about that.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use fakes::{fake_host::FakeHost, fake_workload::FakeWorkload};
use model::device::Generation;

use super::{discover, tool};

/// Runs `discover` as nobody, with these capabilities.
fn as_nobody(host: &FakeHost, capabilities: &[&str]) -> serde_json::Value {
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    // Neither the workspace nor a temporary folder need be open to other users.
    let copy = host.root().join("discover");
    if !copy.exists() {
        fakes::harness::copy_program(&tool(), &copy);
    }
    open(&copy);
    open(host.root());
    let mut set = String::from("-all");
    for capability in capabilities {
        set.push_str(",+");
        set.push_str(capability);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args([format!("--inh-caps={set}"), format!("--ambient-caps={set}")]).arg(copy);
    discover(command, &host.config(""), 3)
}

fn owners(seen: &serde_json::Value) -> &Vec<serde_json::Value> {
    seen["workloads"]["owners"].as_array().unwrap()
}

/// The capabilities that the notes ask for, one entry per note.
fn needs(seen: &serde_json::Value) -> Vec<&str> {
    let notes = seen["workloads"]["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap());
    notes.filter_map(|note| Some(note.split_once("the agent needs ")?.1)).collect()
}

#[test]
fn without_rights_it_says_once_what_is_missing_and_goes_on() {
    let host = FakeHost::with(Generation::V6e, 2);
    let chips = host.chips();
    let roots = FakeWorkload::new().hold(&chips[0].nodes[0]).start();
    let prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    fs::set_permissions(host.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = host.root().join("fake-workload");
    fakes::harness::copy_program(&fakes::harness::artifact("fake-workload"), &copy);
    let words: Vec<&str> = prefix.into_iter().chain([copy.to_str().unwrap()]).collect();
    let own = FakeWorkload::command(&words).hold(&chips[1].nodes[0]).start();

    let seen = as_nobody(&host, &[]);
    let pids: Vec<_> = owners(&seen).iter().map(|owner| owner["process"]["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, [u64::from(own.pid())], "its own user's workload is seen: {seen:#}");
    assert_eq!(needs(&seen), ["CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"], "{seen:#}");

    // One of the two is not enough, whatever the kernel calls them.
    for one in ["sys_ptrace", "dac_read_search"] {
        let seen = as_nobody(&host, &[one]);
        assert_eq!(owners(&seen).len(), 1, "{one}");
        let other = if one == "sys_ptrace" { "CAP_DAC_READ_SEARCH" } else { "CAP_SYS_PTRACE" };
        assert_eq!(needs(&seen), [other]);
    }
    let seen = as_nobody(&host, &["sys_ptrace", "dac_read_search"]);
    let pids: Vec<_> = owners(&seen).iter().map(|owner| owner["process"]["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 2, "{seen:#}");
    assert!(pids.contains(&u64::from(roots.pid())));
    assert!(needs(&seen).is_empty(), "{seen:#}");
}
