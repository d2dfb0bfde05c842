//! A fleet with two releases: commands of this one with an agent of the release before, and the other way round.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use fakes::{
    command::{Ended, run, start_as},
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::{peer, peers, tpuscope, workspace},
};
use serde_json::Value;

use crate::{profiler_agent::Agent, schema::Schema};

/// The tpuscope of the release before; `None` where these sources have no history to build it from, such as an archive.
fn previous() -> Option<String> {
    let script = workspace().join("tests/scripts/previous_release.sh");
    let checked = Command::new(script).arg("--check").arg(peers()).status().unwrap();
    if checked.code() == Some(3) {
        eprintln!("not tested: these sources have no history, so there is no release before");
        return None;
    }
    Some(peer("previous-release/tpuscope").display().to_string())
}

fn profiler() -> FakeProfiler {
    FakeProfiler::start(Mode::Trace(trace()))
}

fn succeeded(ended: Ended) -> Ended {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

#[test]
fn commands_of_this_release_work_with_an_agent_of_the_release_before() {
    let Some(previous) = previous() else { return };
    let profiler = profiler();
    let agent = Agent::start_by(&[previous], "vm-old", &[profiler.target()], "");
    let ask = |arguments: &[&str]| succeeded(agent.ask(arguments));
    let status = ask(&["status", "--json"]).json();
    assert_eq!(
        (&status["host"], &status["peer"]["version"]),
        (&"vm-old".into(), &"0.1.0".into()),
        "{status}"
    );
    Schema::open("status").admits(&status);
    ask(&["status"]);
    let captured = ask(&["capture", "--duration", "10ms", "--session", "one", "--json"]).json();
    Schema::open("capture").admits(&captured);
    assert_eq!(captured["complete"], true, "{captured}");
    let listed = ask(&["sessions", "list", "--json"]).json();
    Schema::open("sessions-list").admits(&listed);
    assert_eq!(listed["sessions"][0]["session"], "one", "{listed}");
    ask(&["sessions", "list"]);
    ask(&["sessions", "fetch", "one", "--output", "fetched"]);
    assert!(agent.home.path().join("fetched/plugins/profile/one/manifest.json").exists());
    ask(&["sessions", "show", "fetched/plugins/profile/one"]);
    // What it does not know is said, and nothing is done by halves.
    let lacks = "the agent does not know this call: it is older than this command";
    agent.ask(&["capture", "--duration", "10ms", "--to", "bucket"]).failed(6, lacks);
    agent.ask(&["sessions", "pin", "one"]).failed(6, lacks);
    agent.ask(&["uploads", "list"]).failed(6, lacks);
    agent.ask(&["sessions", "show", "one"]).failed(6, "the agent cannot show session one: it is older");
    assert_eq!(profiler.seen().profiles.len(), 1);
    ask(&["sessions", "rm", "one"]);
    assert_eq!(agent.sessions(), Vec::<String>::new());
}

/// A folder for each host, with its `tpuscope` and `agent.sock`.
fn reached(folder: &Path, host: &str, program: &Path, agent: &Agent) {
    let host = folder.join(host);
    fs::create_dir(&host).unwrap();
    symlink(program, host.join("tpuscope")).unwrap();
    symlink(agent.home.path().join("agent.sock"), host.join("agent.sock")).unwrap();
}

#[test]
fn a_host_of_the_release_before_is_asked_and_missing_where_it_lacks_what_is_asked() {
    let Some(previous) = previous() else { return };
    let profilers = [profiler(), profiler()];
    let new = Agent::start_as("vm-new", &[profilers[0].target()], "");
    let old = Agent::start_by(std::slice::from_ref(&previous), "vm-old", &[profilers[1].target()], "");
    let folder = tempfile::tempdir().unwrap();
    reached(folder.path(), "new", &tpuscope(), &new);
    // Its agent was not started again after an update.
    reached(folder.path(), "agent", &tpuscope(), &old);
    reached(folder.path(), "all", Path::new(&previous), &old);
    let at = folder.path().display();
    let command = format!("env {at}/{{host}}/tpuscope dial-stdio --socket {at}/{{host}}/agent.sock");
    let ask = |words: &[&str], hosts: &str| {
        run(folder.path(), &[words, &["--hosts", hosts, "--via-command", &command, "--json"]].concat())
    };
    let kind = |answer: &Value, host: usize| answer["hosts"][host]["missing"]["kind"].clone();
    for words in [&["status"][..], &["sessions", "list"]] {
        let ended = ask(words, "new,agent,all");
        assert_eq!(ended.code, Some(18), "{ended:?}");
        let answer = ended.json();
        let kinds = [0, 1, 2].map(|host| kind(&answer, host));
        assert_eq!(kinds, [Value::Null, Value::Null, "old_tpuscope".into()], "{answer}");
    }
    let ended = ask(&["capture", "--duration", "10ms", "--session", "mixed"], "new,agent,all");
    ended.failed(18, "the session lacks 2 hosts");
    let answer = ended.json();
    Schema::open("capture").admits(&answer);
    let kinds = [0, 1, 2].map(|host| kind(&answer, host));
    assert_eq!(kinds, [Value::Null, "old_agent".into(), "old_tpuscope".into()], "{answer}");
    let reason = &answer["hosts"][1]["missing"]["reason"];
    assert_eq!(reason, "its tpuscope 0.1.0 does not know captures over several hosts (capability clock)");
    assert_eq!(profilers[1].seen().profiles.len(), 0);
}

#[test]
fn commands_of_the_release_before_work_with_an_agent_of_this_release() {
    let Some(previous) = previous() else { return };
    let profiler = profiler();
    let agent = Agent::start_as("vm-new", &[profiler.target()], "");
    let run = |arguments: &[String]| {
        let mut command = Command::new(&previous);
        command.args(arguments).current_dir(agent.home.path());
        succeeded(start_as(command).end())
    };
    let ask = |arguments: &[&str]| run(&agent.arguments(arguments));
    let status = ask(&["status", "--json"]).json();
    assert_eq!(status["host"], "vm-new", "{status}");
    ask(&["status"]);
    let captured = ask(&["capture", "--duration", "10ms", "--session", "one", "--json"]).json();
    assert_eq!(captured["complete"], true, "{captured}");
    let listed = ask(&["sessions", "list", "--json"]).json();
    assert_eq!(listed["sessions"][0]["session"], "one", "{listed}");
    ask(&["sessions", "list"]);
    ask(&["sessions", "fetch", "one", "--output", "fetched"]);
    run(&["sessions", "show", "fetched/plugins/profile/one"].map(str::to_owned));
    ask(&["sessions", "rm", "one"]);
    assert_eq!(agent.sessions(), Vec::<String>::new());
}
