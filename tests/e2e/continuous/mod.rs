//! Continuous profiling: a workload is never left with a session, whoever dies.

mod faults;
mod foreign;
mod killed;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
};

use fakes::{
    harness::{artifact, tpuscope},
    wait::{LIMIT, eventually},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use xprof::client::ProfilerClient;

/// The interval of the drains in milliseconds.
const EVERY_MS: u32 = 1000;

/// A program that profiles a process continuously, as the recorder does. Killed when dropped.
struct Profiling {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Profiling {
    fn start(state: &Path, target: &str, pid: u32) -> Self {
        Self::spawn(state, &[target, &pid.to_string(), &EVERY_MS.to_string()])
    }

    /// Only stops what is recorded.
    fn recover(state: &Path) {
        let recovering = Self::spawn(state, &["recover"]);
        assert_eq!(recovering.next_line(), "recovered");
    }

    fn spawn(state: &Path, words: &[&str]) -> Self {
        let mut child = Command::new(artifact("profile-continuously"))
            .arg(state)
            .arg(tpuscope())
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Nobody reads on after the end of the test.
                let _ = tell.send(line);
            }
        });
        Self { input: child.stdin.take(), child, lines }
    }

    fn next_line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a line")
    }

    /// The next line that begins so, after lines of drains.
    fn said(&self, start: &str) -> String {
        loop {
            let line = self.next_line();
            if line.starts_with(start) {
                return line;
            }
            assert!(
                line.starts_with("drained") || line.starts_with("started"),
                "`{start}`, and came `{line}`"
            );
        }
    }

    fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }

    /// The orderly end.
    fn stop(&mut self) -> String {
        self.input = None;
        self.said("stopped")
    }

    /// The process of its guard.
    fn guard(&self) -> u32 {
        eventually("the guard", || self.try_guard())
    }

    fn try_guard(&self) -> Option<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(children).ok()?;
        children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid| is_guard(*pid))
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        // A guard stops what is open; already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_guard(pid: u32) -> bool {
    // As `pgrep -f 'tpuscope profiler-guard'` finds it.
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|words| words.starts_with(b"tpuscope\0profiler-guard\0"))
}

/// Sends a signal to a process that runs.
pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

fn records(state: &Path) -> usize {
    fs::read_dir(state.join("continuous")).map_or(0, Iterator::count)
}

/// Makes calls of a foreign client.
pub(crate) fn as_foreign_client<T>(target: &str, calls: impl AsyncFnOnce(ProfilerClient) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = ProfilerClient::connect(&target.parse().unwrap(), LIMIT).await.unwrap();
        calls(client).await
    })
}
