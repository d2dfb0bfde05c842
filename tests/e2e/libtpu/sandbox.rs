//! What a library finds in the child: nothing to harm anybody with. And whose libraries are loaded at all.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use fakes::libtpu::{Staged, hasty, launch, read, source, tick};
use sampling::sources::libtpu::child_process::{ChildCommand, ChildProcess, RunAs};

const LONG: Duration = Duration::from_secs(30);
/// A user without any right, and not the owner of anything.
const NOBODY: u32 = 65_534;

async fn facts(launch: &ChildCommand, staged: &Staged) -> Vec<String> {
    let mut child = ChildProcess::start(launch).unwrap();
    child.load(&staged.library(), LONG).await.unwrap();
    child.metric("hbm_util", LONG).await.unwrap().values
}

fn fact<'a>(facts: &'a [String], name: &str) -> &'a str {
    facts
        .iter()
        .find_map(|fact| fact.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name} in {facts:#?}"))
        .trim()
}

/// No capabilities, no way to new ones, no core dump, no descriptors, no variables.
fn assert_confined(facts: &[String]) {
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        // Without CAP_SETPCAP the bounding set cannot be emptied; no_new_privs makes it worthless.
        if set != "CapBnd:" || fact(facts, "Uid:").starts_with('0') {
            assert_eq!(u64::from_str_radix(fact(facts, set), 16), Ok(0), "{set} {facts:#?}");
        }
    }
    assert_eq!(fact(facts, "NoNewPrivs:"), "1");
    assert!(fact(facts, "Max core file size").starts_with('0'));
    assert_eq!(fact(facts, "cwd:"), "/");
    let variables: Vec<_> = facts.iter().filter_map(|fact| fact.strip_prefix("env: ")).collect();
    assert!(variables.iter().all(|name| name.starts_with("TPU_")), "{variables:?}");
    assert!(variables.contains(&"TPU_SKIP_MDS_QUERY=1") && variables.contains(&"TPU_LOG_DIR=disabled"));
    let open: Vec<_> = facts.iter().filter(|fact| fact.starts_with("fd ")).collect();
    let (sockets, rest): (Vec<_>, Vec<_>) = open.into_iter().partition(|fact| fact.contains("socket:"));
    assert_eq!(sockets.len(), 1, "the conversation and nothing else: {sockets:?}");
    for fact in rest {
        assert!(
            fact.ends_with("/dev/null") || (fact.starts_with("fd 2:") && fact.contains("pipe:")),
            "{fact}"
        );
    }
}

#[tokio::test]
async fn the_child_has_nothing_left() {
    // A descriptor that a careless program would hand down.
    let leaked = std::fs::File::open("/proc/self/status").unwrap();
    nix::fcntl::fcntl(&leaked, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let staged = Staged::new(None, "hbm_util = facts");
    assert_confined(&facts(&launch(), &staged).await);
}

#[tokio::test]
async fn another_users_library_is_not_loaded() {
    let staged = Staged::new(None, "load = abort");
    staged.give_to(NOBODY);
    let reading = read(&mut source(&staged.library(), hasty(), false), &tick(0)).await;
    assert!(reading.samples.is_empty());
    let why = &reading.absent[0].why;
    assert!(why.contains(&format!("user {NOBODY} owns it")) && why.contains("owner_copies"), "{why}");
}

#[tokio::test]
async fn an_owners_library_runs_as_its_owner_without_capabilities() {
    let staged = Staged::new(None, "hbm_util = facts");
    staged.give_to(NOBODY);
    let owner = ChildCommand { user: Some(RunAs { uid: NOBODY, gid: NOBODY }), ..launch() };
    let facts = facts(&owner, &staged).await;
    for id in ["Uid:", "Gid:"] {
        assert_eq!(fact(&facts, id), format!("{NOBODY} {NOBODY} {NOBODY} {NOBODY}"));
    }
    assert_eq!(fact(&facts, "Groups:"), "");
    assert_confined(&facts);

    staged.set("");
    let mut allowed = source(&staged.library(), hasty(), true);
    let reading = fakes::libtpu::read_until(&mut allowed, |reading| !reading.samples.is_empty()).await;
    assert!(reading.samples.iter().any(|sample| sample.metric.name == "tpu_hbm_used_bytes"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", allowed.child_pid().unwrap())).unwrap();
    assert!(status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}")), "{status}");
}

#[tokio::test]
async fn what_everybody_may_write_to_is_not_loaded() {
    let staged = Staged::new(None, "load = abort");
    let loose = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(staged.library(), loose).unwrap();
    let reading = read(&mut source(&staged.library(), hasty(), true), &tick(0)).await;
    assert!(reading.samples.is_empty());
    assert!(reading.absent[0].why.contains("everybody may write to"), "{}", reading.absent[0].why);
}
