//! Hosts reached by a command of the user's own: what they answer, and how they fail.

use std::{
    fs,
    io::Read,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    thread::{self, JoinHandle},
};

use super::{Hosts, row, run, start, status};
use crate::schema::Schema;
use fakes::{
    command::{run as run_tpuscope, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    wait::{eventually, until},
};
use model::device::Generation;
use nix::sys::signal::Signal;

#[test]
fn all_chips_of_all_hosts_are_one_table_with_the_odd_ones_first() {
    let mut hosts = Hosts::start(&[("tpu-01", 1)]);
    // A chip of the second host lacks its node.
    let second = FakeHost::with(Generation::V6e, 2);
    fs::remove_file(&second.chips()[1].nodes[0]).unwrap();
    hosts.add("tpu-02", second);
    let page = hosts.status(&["--hosts", "tpu-[01-02]"]);
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.starts_with("2 hosts; 3 chips, 1 absent\n\nHOST "), "{page:?}");
    let rows = page.stdout.lines().skip(3).take_while(|row| !row.is_empty());
    let cells = rows.map(|row| row.split_whitespace().take(4).collect::<Vec<_>>());
    let rows: Vec<String> = cells.map(|cells| cells.join(" ")).collect();
    assert_eq!(rows, ["tpu-02 1 v6e absent", "tpu-01 0 v6e ok", "tpu-02 0 v6e ok"], "{page:?}");
    assert!(row(&page.stdout, "tpu-02").contains("is absent: "), "{page:?}");
}

#[test]
fn a_host_without_an_answer_is_a_row_that_says_why() {
    let hosts = Hosts::start(&[("a", 1)]);
    // Takes connections and says nothing; ends a connection in the middle of the call.
    let hung = UnixListener::bind(hosts.folder().join("hung")).unwrap();
    let dying = dies_in_mid_call(&hosts.folder().join("dying"));
    let list = ["--hosts", "hung,a,dying,none", "--host-timeout", "2s"];
    let page = hosts.status(&list);
    assert_eq!(page.code, Some(18), "{page:?}");
    let text = &page.stdout;
    assert!(text.starts_with("4 hosts, 3 without an answer; 1 chip\n"), "{text}");
    assert!(row(text, "none").contains("tpuscope: no agent: there is no socket"), "{text}");
    assert!(row(text, "dying").contains("the agent closed the connection"), "{text}");
    assert!(row(text, "hung").contains("did not answer within 2s"), "{text}");
    assert!(text.contains("- none: start the agent there"), "{text}");
    dying.join().unwrap();
    drop(hung);
    let json = hosts.status(&["--hosts", "none,a", "--json"]);
    assert_eq!(json.code, Some(18), "{json:?}");
    let json = json.json();
    Schema::open("status-hosts").admits(&json);
    assert_eq!(json["missing"], 1);
    assert_eq!(json["hosts"][0]["missing"]["kind"], "no_agent", "{json}");
    assert_eq!(json["hosts"][1]["status"]["chips"][0]["name"], "v6e", "{json}");
}

/// A stand-in for kubectl, which has no cluster here: it runs the command for the pod `a`, and refuses others as kubectl does.
const KUBECTL: &str = "#!/bin/sh
[ \"$1 $2 $3 $5 $6 $7\" = 'exec -i -q -c main --' ] || { echo \"error: unexpected $*\" >&2; exit 1; }
case $4 in
  a) shift 7; exec \"$@\" ;;
  denied) echo 'Error from server (Forbidden): pods is forbidden: User u cannot create resource' >&2; exit 1 ;;
  away) echo 'The connection to the server localhost:8080 was refused - did you specify it?' >&2; exit 1 ;;
  other) echo 'Error from server (BadRequest): container main is not valid for pod other' >&2; exit 1 ;;
  dies) kill -9 $$ ;;
  *) echo \"Error from server (NotFound): pods \\\"$4\\\" not found\" >&2; exit 1 ;;
esac
";

#[test]
fn pods_are_asked_through_kubectl() {
    let hosts = Hosts::start(&[("a", 1)]);
    let kubectl = hosts.folder().join("kubectl");
    fs::write(&kubectl, KUBECTL).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(tpuscope(), hosts.folder().join("tpuscope")).unwrap();
    let pods = "a,gone,denied,away,other,dies";
    let mut command = status(&["--hosts", pods, "--via", "kubectl", "--container", "main", "--json"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", hosts.folder().display()));
    // kubectl gives a pod its own variables; here both ends have the same ones.
    command.env("TPUSCOPE_SOCKET", hosts.folder().join("a"));
    let ended = start_as(command).end();
    assert_eq!(ended.code, Some(18), "{ended:?}");
    let answer = ended.json();
    assert_eq!(answer["hosts"][0]["status"]["chips"][0]["name"], "v6e", "{answer}");
    let missing = &answer["hosts"][1]["missing"];
    assert_eq!(missing["kind"], "unknown_name", "{missing}");
    assert_eq!(missing["reason"], "kubectl: Error from server (NotFound): pods \"gone\" not found");
    for (pod, kind, remedy) in [
        (2, "denied", "kubectl auth can-i create pods/exec"),
        (3, "unreachable", "let `kubectl get pods` work first"),
        (4, "unknown_name", "--container"),
        (5, "other", ""),
    ] {
        let missing = &answer["hosts"][pod]["missing"];
        assert_eq!(missing["kind"], kind, "{missing}");
        assert!(missing["remedy"].as_str().unwrap().contains(remedy), "{missing}");
    }
}

/// An agent that ends when it is asked.
fn dies_in_mid_call(socket: &Path) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The preface of HTTP/2 and some of the call.
        let mut bytes = [0; 64];
        stream.read_exact(&mut bytes).unwrap();
    })
}

#[test]
fn a_program_that_cannot_be_executed_is_no_program_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    let command = format!("{} {{host}}", plain.display());
    let asked = |command: &str| {
        run(&["--hosts", "a", "--via-command", command, "--json"]).json()["hosts"][0]["missing"].clone()
    };
    let missing = asked(&command);
    assert_eq!(missing["kind"], "not_executable", "{missing}");
    assert!(missing["remedy"].as_str().unwrap().contains("chmod +x"), "{missing}");
    let missing = asked("/nonexistent/x {host}");
    assert_eq!(missing["kind"], "not_started", "{missing}");
}

#[test]
fn what_a_far_shell_prints_is_skipped_or_shown() {
    let hosts = Hosts::start(&[("a", 1)]);
    let command = |words: &str| format!("sh -c '{words}'");
    let dial = hosts.command();
    let welcome = command(&format!("echo Welcome to {{host}}; echo no newline | tr -d \"\\n\"; exec {dial}"));
    let page = run(&["--hosts", "a", "--via-command", &welcome]);
    assert_eq!(page.code, Some(0), "{page:?}");
    for (words, says) in [
        ("echo This account is not available; exit 1; {host}", "sh: This account is not available"),
        ("exit 3; {host}", "sh: it ended with exit code 3, and said nothing"),
        ("exec yes {host}", "sh: the output is not that of tpuscope dial-stdio: a"),
        ("exec /nonexistent/tpuscope {host}", "/nonexistent/tpuscope: not found"),
        ("echo tpuscope-dial-stdio/2; exec sleep 1000; {host}", "sh: the dial-stdio there has version 2"),
        ("echo tpuscope-dial-stdio/1; exec cat; echo {host}", "sh: the far side sends back what it is sent"),
        ("echo Password: >&2; exec sleep 1000; {host}", "sh: no answer within 1s; it said: Password:"),
    ] {
        let page = run(&["--hosts", "a", "--host-timeout", "1s", "--via-command", &command(words)]);
        assert_eq!(page.code, Some(18), "{page:?}");
        assert!(row(&page.stdout, "a").contains(says), "{says} in {page:?}");
    }
    let absent = run(&["--hosts", "a", "--via-command", "/nonexistent/ssh {host}"]);
    assert!(row(&absent.stdout, "a").contains("cannot start ssh: No such file"), "{absent:?}");
}

#[test]
fn nothing_of_a_command_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let words =
        format!("sleep 1000 & echo $! $$ {{host}} > {0}.new; mv {0}.new {0}; sleep 1000", pids.display());
    let command = format!("sh -c '{words}'");
    let arguments = ["--hosts", "a", "--host-timeout", "100s", "--via-command", &command];
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let asking = start(&arguments);
        let started = eventually("the command", || fs::read_to_string(&pids).ok());
        asking.signal_and_end(signal);
        all_gone(&started);
        fs::remove_file(&pids).unwrap();
    }
    let late = run(&["--hosts", "a", "--host-timeout", "300ms", "--via-command", &command]);
    assert_eq!(late.code, Some(18), "{late:?}");
    all_gone(&eventually("the command", || fs::read_to_string(&pids).ok()));
}

/// The processes whose numbers come first in the text end.
fn all_gone(pids: &str) {
    for pid in pids.split_whitespace().take(2) {
        let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Who adopts it may leave it as a zombie.
        until("the end of the command", || stat().is_empty() || stat().contains(") Z "));
    }
}

#[test]
fn dial_stdio_says_what_is_wrong_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none").display().to_string();
    let ended = run_tpuscope(folder.path(), &["dial-stdio", "--socket", &socket]);
    ended.failed(6, "no agent: there is no socket");
    assert_eq!(ended.stdout, "");
    // Standard input at its end is a caller that is gone.
    let hosts = Hosts::start(&[("a", 0)]);
    let socket = hosts.folder().join("a").display().to_string();
    let ended = run_tpuscope(folder.path(), &["dial-stdio", "--socket", &socket]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
