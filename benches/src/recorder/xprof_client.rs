//! xprof's own client, loaded once, which traces a job when it is told to.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use fakes::{
    harness::{peer, workspace},
    jax_job::RunningJaxJob,
};
use tempfile::TempDir;

/// How long it may take to load, or to trace, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(180);

/// The client; killed when dropped.
pub(super) struct XprofClient {
    child: Child,
    times: ChildStdin,
    lines: mpsc::Receiver<String>,
    _folder: TempDir,
}

impl XprofClient {
    /// Loads it, for windows of this length of this job. Loading keeps a core busy for seconds.
    pub(super) fn start(job: &RunningJaxJob, window: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(peer("xprof/bin/python"));
        command.arg(workspace().join("benches/scripts/xprof_windows.py"));
        command.arg(job.target()).arg(folder.path()).arg(window.as_millis().to_string()).arg("1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (times, said) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let said = BufReader::new(said).lines().map_while(Result::ok);
            said.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        let client = Self { child, times, lines, _folder: folder };
        while client.line() != "ready" {}
        client
    }

    /// Makes it trace one window after so long.
    pub(super) fn trace_after(&mut self, time: Duration) {
        writeln!(self.times, "{}", time.as_millis()).unwrap();
    }

    /// Waits until it has traced that window. One that it could not trace makes no pair, and is told.
    pub(super) fn has_traced(&self) {
        // Its library talks on standard output too.
        let is_end = |line: &String| line == "traced" || line.starts_with("failed ");
        let line = std::iter::repeat_with(|| self.line()).find(is_end).expect("it repeats");
        if line != "traced" {
            println!("  a window of the client: {line}");
        }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("the client goes on")
    }
}

impl Drop for XprofClient {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
