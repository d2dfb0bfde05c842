//! Everything that a libtpu can do wrong, one child each.

use std::{fs, path::PathBuf, time::Duration};

use fakes::{
    libtpu::{Staged, launch},
    wait::eventually_async,
};
use prost::Message as _;
use proto::tpu::monitoring::runtime::GetTpuRuntimeStatusResponse;
use sampling::sources::libtpu::child_process::{ChildFailure, ChildProcess};

const LONG: Duration = Duration::from_secs(30);

async fn loaded(staged: &Staged) -> ChildProcess {
    let mut child = ChildProcess::start(&launch()).unwrap();
    child.load(&staged.library(), LONG).await.unwrap();
    child
}

fn proc_of(child: &ChildProcess) -> PathBuf {
    PathBuf::from(format!("/proc/{}", child.pid().expect("running")))
}

#[tokio::test]
async fn a_hang_is_ended_at_the_deadline() {
    let staged = Staged::new(None, "hbm_util = hang");
    let mut child = loaded(&staged).await;
    let proc = proc_of(&child);
    let failure = child.metric("hbm_util", Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(failure, ChildFailure::Late(_)), "{failure}");
    assert!(!proc.exists(), "the hung child is still there");
}

#[tokio::test]
async fn a_slow_answer_within_the_deadline_is_an_answer() {
    let staged = Staged::new(None, "hbm_util = slow 300");
    let mut child = loaded(&staged).await;
    assert_eq!(child.metric("hbm_util", LONG).await.unwrap().values, ["1"]);
}

#[tokio::test]
async fn the_end_of_the_child_says_how_it_came() {
    for (behavior, words) in
        [("abort", "SIGABRT"), ("segfault", "SIGSEGV"), ("exit 3", "exit code 3"), ("exit 0", "exit code 0")]
    {
        let staged = Staged::new(None, &format!("hbm_util = {behavior}"));
        let mut child = loaded(&staged).await;
        let proc = proc_of(&child);
        let failure = child.metric("hbm_util", LONG).await.unwrap_err();
        assert!(matches!(failure, ChildFailure::Died(_)), "{behavior}: {failure}");
        assert!(failure.to_string().contains(words), "{behavior}: {failure}");
        assert!(!proc.exists());
    }
}

#[tokio::test]
async fn absurd_replies_are_refused_and_the_child_lives_on() {
    let absurd = [
        ("count 1099511627776", "values of absurd size 1099511627776"),
        ("count 4097", "values of absurd size 4097"),
        ("length 18446744073709551615", "a description of absurd size"),
        ("endless", "values of absurd size"),
        ("nothing", "libtpu returned no metric"),
        ("error 14 failed to connect", "failed to connect"),
    ];
    let staged = Staged::new(None, "");
    let mut child = loaded(&staged).await;
    for (behavior, words) in absurd {
        staged.set(&format!("hbm_util = {behavior}"));
        let failure = child.metric("hbm_util", LONG).await.unwrap_err();
        assert!(!failure.is_fatal(), "{behavior}: {failure}");
        let text = failure.to_string();
        assert!(text.contains(words), "{behavior}: {text}");
        assert_eq!(child.metric("duty_cycle_pct", LONG).await.unwrap().values.len(), 4);
    }
}

#[tokio::test]
async fn a_library_that_writes_into_the_conversation_is_ended() {
    let staged = Staged::new(None, "hbm_util = scribble");
    let mut child = loaded(&staged).await;
    let proc = proc_of(&child);
    let failure = child.metric("hbm_util", LONG).await.unwrap_err();
    assert!(matches!(failure, ChildFailure::Nonsense(_)), "{failure}");
    assert!(!proc.exists());
}

#[tokio::test]
async fn a_library_that_writes_much_to_stderr_does_not_block() {
    let staged = Staged::new(None, "hbm_util = stderr 3200000");
    let mut child = loaded(&staged).await;
    assert_eq!(child.metric("hbm_util", LONG).await.unwrap().values, ["1"]);
}

#[tokio::test]
async fn an_abandoned_request_never_answers_the_next() {
    let staged = Staged::new(None, "hbm_util = slow 200");
    let mut child = loaded(&staged).await;
    // The caller gives up, not the child.
    let abandoned = tokio::time::timeout(Duration::from_millis(20), child.metric("hbm_util", LONG)).await;
    assert!(abandoned.is_err());
    let failure = child.metric("duty_cycle_pct", LONG).await.unwrap_err();
    assert!(matches!(failure, ChildFailure::Nonsense(_)), "{failure}");
}

#[tokio::test]
async fn nothing_of_libtpu_is_kept_longer_than_needed() {
    let staged = Staged::new(None, "hbm_util = error 5 none\nstatus = 0a0461626364");
    let mut child = loaded(&staged).await;
    for _ in 0..300 {
        child.metric("hbm_util", LONG).await.unwrap_err();
        child.metric("duty_cycle_pct", LONG).await.unwrap();
    }
    let status = child.runtime_status(true, LONG).await.unwrap();
    let decoded = GetTpuRuntimeStatusResponse::decode(status.as_slice()).unwrap();
    assert_eq!(decoded.host_name.as_deref(), Some("abcd"));
    let live = child.metric("live", LONG).await.unwrap().values;
    let count = |name: &str| -> u64 {
        let line = live.iter().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert_eq!((count("errors"), count("clients"), count("statuses")), (0, 1, 0), "{live:?}");
    // 300 good answers: the client went in between, and its handles with it.
    assert!(count("metrics") < 256, "{live:?}");
}

#[tokio::test]
async fn a_runtime_status_of_absurd_size_is_refused() {
    let staged = Staged::new(None, "status = 0a00\nstatus_size = 99999999999");
    let mut child = loaded(&staged).await;
    let failure = child.runtime_status(false, LONG).await.unwrap_err();
    assert!(failure.to_string().contains("a runtime status of absurd size 99999999999"), "{failure}");
    staged.set("");
    let failure = child.runtime_status(false, LONG).await.unwrap_err();
    assert!(matches!(failure, ChildFailure::Refused { code: 14, .. }), "{failure}");
    // Tables below 15 functions have no status at all.
    let old = Staged::new(Some("0.0.21"), "slots = 12\nstatus = 0a00");
    let failure = loaded(&old).await.runtime_status(false, LONG).await.unwrap_err();
    assert!(failure.to_string().contains("no GetRuntimeStatus"), "{failure}");
}

#[tokio::test]
async fn a_child_that_is_dropped_is_gone() {
    let staged = Staged::new(None, "");
    let child = loaded(&staged).await;
    let proc = proc_of(&child);
    drop(child);
    eventually_async("the end of the child", async || {
        // What is left is a zombie until tokio reaps it.
        let stat = fs::read_to_string(proc.join("stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") { Ok(()) } else { Err(stat) }
    })
    .await;
}
