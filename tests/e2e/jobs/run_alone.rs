//! `tpuscope run` without an agent, or with one that hangs: the command is as it would be without tpuscope.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::{Command, Stdio},
};

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::RunningAgent,
    wait::eventually,
};
use nix::sys::signal::{Signal, kill};

/// A command under `tpuscope run`, with no agent.
fn run(words: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(tpuscope());
    command.args(["run", "--socket", "/nonexistent/agent.sock", "--quiet", "--"]).args(words);
    command
}

fn ended(words: &[&str]) -> Ended {
    start_as(run(words)).end()
}

#[test]
fn the_exit_code_and_the_output_are_the_commands() {
    let done = ended(&["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(7), "out\n", "err\n"));
    let status = run(&["sh", "-c", "kill -TERM $$"]).status().unwrap();
    assert_eq!(status.signal(), Some(15));
    let arguments = ended(&["printf", "%s|", "--name", "-x", "", "a b"]);
    assert_eq!(arguments.stdout, "--name|-x||a b|");
}

#[test]
fn a_command_that_cannot_start_is_told_as_shells_do() {
    ended(&["/nonexistent/command"]).failed(127, "there is no command /nonexistent/command");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    fs::write(&file, "no program").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    ended(&[file.to_str().unwrap()]).failed(126, "cannot execute");
    let none = start_as({
        let mut command = Command::new(tpuscope());
        command.arg("run");
        command
    });
    none.end().failed(2, "required arguments were not provided");
    let name = start_as({
        let mut command = Command::new(tpuscope());
        command.args(["run", "--name", "a b", "--", "true"]);
        command
    });
    name.end().failed(2, "expected a letter or a digit");
}

/// What a process has from whoever started it: descriptors, signals, group, limits, priority, folder.
const INHERITED: &str = "ls -l /proc/self/fd | awk '{print $9, $10, $11}' | grep -v /proc; \
                         grep -E '^(Sig|Shd|Groups|Umask|NoNewPrivs|CapEff|Seccomp|Threads)' /proc/self/status | grep -v SigQ; \
                         cat /proc/self/limits; ps -o pgid=,sid=,ni= -p $$ | awk '{print $2, $3}'; pwd; env | grep -v -E '^(_|TPUSCOPE_JOB_ID)=' | sort";

/// The lines without what is never the same: the numbers of pipes; and the two signals below those of programs, which the
/// C library uses between threads.
fn comparable(text: &str) -> Vec<String> {
    let line = |line: &str| match line.strip_prefix("SigIgn:\t") {
        Some(mask) => format!("SigIgn {:x}", u64::from_str_radix(mask, 16).unwrap() & !(3 << 31)),
        None => line.split("pipe:").next().unwrap().to_owned(),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_command_inherits_what_it_would_without_tpuscope() {
    let plain = {
        let mut command = Command::new("env");
        command.args(["--default-signal", "sh", "-c", INHERITED]);
        start_as(command).end()
    };
    let under = ended(&["sh", "-c", INHERITED]);
    assert_eq!(comparable(&under.stdout), comparable(&plain.stdout));
    assert!(plain.stdout.contains("SigIgn") && plain.stdout.contains("Max open files"), "{plain:?}");
}

#[test]
fn the_command_has_the_pid_the_group_and_the_signals_of_the_run() {
    let script = "trap 'echo interrupted; exit 9' INT; echo $$ $(ps -o pgid=,ppid= -p $$); while :; do sleep 0.05; done";
    let mut command = run(&["sh", "-c", script]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let own: Vec<u32> =
        lines.next().unwrap().unwrap().split_whitespace().map(|number| number.parse().unwrap()).collect();
    let group = nix::unistd::getpgrp().as_raw();
    assert_eq!(own, [child.id(), u32::try_from(group).unwrap(), std::process::id()]);
    kill(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "interrupted");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

/// Runs a command on a terminal of its own, types Ctrl-C into it, and prints how it ended.
const TERMINAL: &str = "
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
text = b''
while b'ready' not in text:
    text += os.read(fd, 1000)
os.write(fd, b'\\x03')
_, status = os.waitpid(pid, 0)
print(text.decode().split()[0], os.WIFSIGNALED(status) and os.WTERMSIG(status))
";

#[test]
fn the_command_is_in_the_foreground_of_its_terminal() {
    let shown = "import os, time; print(os.isatty(0) and os.getpgrp() == os.tcgetpgrp(0), 'ready', flush=True); time.sleep(600)";
    let program = tpuscope().display().to_string();
    let mut command = Command::new("/usr/bin/python3");
    command.args([
        "-c",
        TERMINAL,
        "env",
        "--default-signal",
        &program,
        "run",
        "--socket",
        "/nonexistent/agent.sock",
        "--quiet",
        "--",
    ]);
    command.args(["/usr/bin/python3", "-c", shown]);
    let done = start_as(command).end();
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "True 2"), "{done:?}");
}

#[test]
fn without_an_agent_one_line_says_so_and_quiet_says_nothing() {
    let mut command = Command::new(tpuscope());
    command.args(["run", "--name", "train", "--socket", "/nonexistent/agent.sock", "--"]);
    command.args(["sh", "-c", "echo $TPUSCOPE_JOB_ID ${TPUSCOPE_JOB_ATTEMPT-none}"]);
    let done = start_as(command).end();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "train none\n"));
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert!(done.stderr.contains("the job train starts unregistered: no agent"), "{done:?}");
    let quiet = ended(&["sh", "-c", "echo $TPUSCOPE_JOB_ID"]);
    assert!(quiet.stdout.starts_with("run-") && quiet.stderr.is_empty(), "{quiet:?}");
    let mut named = run(&["sh", "-c", "echo $TPUSCOPE_JOB_ID $TPUSCOPE_JOB_NAME"]);
    named.env("TPUSCOPE_JOB_ID", "r7").env("TPUSCOPE_JOB_NAME", "nightly");
    assert_eq!(start_as(named).end().stdout, "r7 nightly\n");
    let mut bad = Command::new(tpuscope());
    bad.args(["run", "--socket", "/nonexistent/agent.sock", "--", "sh", "-c", "echo $TPUSCOPE_JOB_ID"]);
    bad.env("TPUSCOPE_JOB_ID", "bad id!");
    let bad = start_as(bad).end();
    assert!(bad.stdout.starts_with("run-"), "{bad:?}");
    assert!(
        bad.stderr.contains("TPUSCOPE_JOB_ID is `bad id!`, and the job has a random id: expected"),
        "{bad:?}"
    );
    let mut inner = run(&["sh", "-c", "echo $TPUSCOPE_JOB_ID $TPUSCOPE_JOB_ATTEMPT"]);
    inner.env("TPUSCOPE_JOB_ID", "outer").env("TPUSCOPE_JOB_ATTEMPT", "2");
    assert_eq!(start_as(inner).end().stdout, "outer 2\n");
    let mut inner = Command::new(tpuscope());
    inner.args(["run", "--name", "inner", "--socket", "/nonexistent/agent.sock", "--"]);
    inner
        .args(["sh", "-c", "echo $TPUSCOPE_JOB_ID"])
        .env("TPUSCOPE_JOB_ID", "outer")
        .env("TPUSCOPE_JOB_ATTEMPT", "2");
    let inner = start_as(inner).end();
    assert_eq!(inner.stdout, "outer\n", "{inner:?}");
    assert!(inner.stderr.contains("the job is that of the `tpuscope run` around it"), "{inner:?}");
}

#[test]
fn an_agent_that_hangs_does_not_keep_the_command() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    agent.signal(Signal::SIGSTOP);
    let mut command = Command::new(tpuscope());
    command.args(["run", "--name", "train", "--socket"]).arg(agent.home().socket());
    command.args(["--", "sh", "-c", "echo ${TPUSCOPE_JOB_ATTEMPT-none}; exit 3"]);
    let done = start_as(command).end();
    assert_eq!((done.code, done.stdout.as_str()), (Some(3), "none\n"));
    assert!(done.stderr.contains("starts unregistered: the agent did not answer within 1s"), "{done:?}");
    agent.signal(Signal::SIGCONT);
    // What it reads late is a process that has ended.
    eventually("the agent", || agent.try_status());
}
