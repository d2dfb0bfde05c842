//! Runs the built `tpuscope` and looks at how it ends.

use std::{
    env,
    ffi::OsStr,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::{harness::tpuscope, wait::wait_with};

/// No command of a test may take longer. A capture that missed its own deadline would: it waits for a profiler that
/// never answers.
const LONGEST: Duration = Duration::from_secs(120);

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ended {
    /// Its standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// It failed with this code, and said one line, and one more with the remedy; before them at most what a capture says
    /// while it runs.
    ///
    /// # Panics
    /// If it did not.
    pub fn failed(&self, code: i32, says: &str) -> &Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let running = ["tpuscope: warning: a window over", "tpuscope: recording ", "tpuscope: receiving: "];
        let while_it_ran = |line: &&str| running.iter().any(|start| line.starts_with(start));
        let lines: Vec<_> = self.stderr.lines().skip_while(while_it_ran).collect();
        assert!(!lines.is_empty() && lines.len() <= 2, "one line and a remedy: {self:?}");
        assert!(lines[0].starts_with("tpuscope: ") && lines[0].contains(says), "`{says}` in {self:?}");
        self
    }
}

/// A command that runs; killed when dropped.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
}

/// Starts `tpuscope` in `folder`.
///
/// # Panics
/// If it cannot be started.
pub fn start<S: AsRef<OsStr>>(folder: &Path, arguments: &[S]) -> RunningCommand {
    // What the tests' own caller ignores (`nohup`, a job in the background) it would ignore too, as it should.
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(tpuscope()).args(arguments).current_dir(folder);
    start_as(command)
}

/// Removes the variables of tpuscope that only the caller of the tests set: settings, and those of the tests themselves.
pub fn without_inherited_settings(command: &mut Command) {
    let set: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    let inherited = env::vars_os().map(|(name, _)| name);
    let ours = inherited.filter(|name| name.as_encoded_bytes().starts_with(b"TPUSCOPE_"));
    for name in ours.filter(|name| !set.contains(name)) {
        command.env_remove(name);
    }
}

/// Starts a prepared command.
///
/// # Panics
/// If it cannot be started.
pub fn start_as(mut command: Command) -> RunningCommand {
    without_inherited_settings(&mut command);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    RunningCommand { child: command.spawn().expect("it starts") }
}

/// Runs `tpuscope` in `folder` to its end.
pub fn run<S: AsRef<OsStr>>(folder: &Path, arguments: &[S]) -> Ended {
    start(folder, arguments).end()
}

impl RunningCommand {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal by name, such as `INT`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("it still runs");
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal and waits for its end.
    pub fn signal_and_end(self, signal: nix::sys::signal::Signal) -> Ended {
        self.signal(signal);
        self.end()
    }

    /// Waits for its end; kills it at the deadline.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end(self) -> Ended {
        self.end_within(LONGEST)
    }

    /// The same with another limit.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end_within(mut self, limit: Duration) -> Ended {
        let mut stdout = self.child.stdout.take().expect("piped");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        let mut errors = self.child.stderr.take().expect("piped");
        let error_reader = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });
        let ended = || self.child.try_wait().expect("a child of ours");
        let status = wait_with("the command to end", limit, String::new, ended);
        Ended {
            code: status.code(),
            stdout: reader.join().expect("reads").expect("text"),
            stderr: error_reader.join().expect("reads").expect("text"),
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
