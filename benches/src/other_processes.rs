//! Processes that fill a host: they hold many descriptors and use next to no CPU.

use std::{
    fmt::Write,
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(120);

/// The processes, ended when dropped.
#[derive(Debug)]
pub struct OtherProcesses(Vec<Child>);

impl OtherProcesses {
    /// Starts `processes` with `descriptors` each, and waits until they have them. Of these processes, `changing` open
    /// and close a descriptor every second, as servers do: discovery looks into such a process again.
    pub fn start(processes: usize, descriptors: usize, changing: usize) -> Self {
        let mut open = String::new();
        for number in 3..descriptors {
            write!(open, "exec {number}</dev/null; ").unwrap();
        }
        let still = format!("{open}exec sleep 100000");
        // An empty pipe to wait at: `read` wakes up without a new process.
        let turn = "exec {spare}</dev/null; read -t 1 -u $pipe; exec {spare}<&-; read -t 1 -u $pipe";
        let change = format!("{open}exec {{pipe}}<> <(:); while :; do {turn}; done");
        let one = |number: usize| {
            let script = if number < changing { &change } else { &still };
            Command::new("bash").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap()
        };
        let others = Self((0..processes).map(one).collect());
        let ready = |child: &Child| {
            fs::read_dir(format!("/proc/{}/fd", child.id())).is_ok_and(|open| open.count() >= descriptors)
        };
        let deadline = Instant::now() + LIMIT;
        while !others.0.iter().all(ready) {
            assert!(Instant::now() < deadline, "the processes do not start");
            thread::yield_now();
        }
        others
    }

    /// Adds a process, to end with the others.
    pub fn add(&mut self, process: Child) {
        self.0.push(process);
    }
}

impl Drop for OtherProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
