//! A real JAX CPU job with `jax.profiler.start_server`, for tests and benches: started, awaited, killed on drop.

use std::{
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::{
    harness::{peer, workspace},
    wait::{LIMIT, until},
};

/// How long JAX may take to start on a loaded machine.
const START: Duration = Duration::from_secs(120);

/// What the job does; the default steps every 10 ms and prints nothing.
#[derive(Debug, Clone, Default)]
pub struct JaxJob {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    port: Option<u16>,
    prefix: Vec<String>,
}

impl JaxJob {
    /// A job with the default step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a step last so many milliseconds.
    #[must_use]
    pub fn step_ms(self, ms: u64) -> Self {
        self.argument("--step-ms").argument(&ms.to_string())
    }

    /// Gives its steps the numbers that those of all such jobs have at the same time: as if they waited for each other.
    #[must_use]
    pub fn number_by_clock(self) -> Self {
        self.argument("--number-by-clock")
    }

    /// Makes a step a fixed work, which takes the length of a step when nothing disturbs it; else it sleeps for the rest.
    #[must_use]
    pub fn fixed_work(self) -> Self {
        self.argument("--fixed-work")
    }

    /// Makes every step print `step <number> <begin ns> <end ns>`; read them with [`RunningJaxJob::next_line`].
    #[must_use]
    pub fn log_steps(self) -> Self {
        self.argument("--log")
    }

    /// Makes it say `traced` when a trace begins and `untraced` when it ends; see [`RunningJaxJob::says`].
    #[must_use]
    pub fn tell_traces(self) -> Self {
        self.argument("--tell-traces")
    }

    /// Makes every step do so many Python calls: fodder for the python tracer.
    #[must_use]
    pub fn calls(self, calls: u64) -> Self {
        self.argument("--calls").argument(&calls.to_string())
    }

    /// One more argument of `tests/scripts/jax_job.py`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs with this version of jaxlib instead of the newest.
    #[must_use]
    pub fn jaxlib(self, version: &str) -> Self {
        let folder = peer(&format!("jax/{version}")).display().to_string();
        self.variable("PYTHONPATH", &folder)
    }

    /// Listens on this port instead of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Is started by these words, such as `nsenter` and a network.
    #[must_use]
    pub fn below(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Starts the job, and waits until its profiler listens and its first step has run.
    ///
    /// # Panics
    /// If JAX is missing or does not come up.
    pub fn start(self) -> RunningJaxJob {
        let port = self.port.unwrap_or_else(free_port);
        let mut errors = tempfile::tempfile().expect("a temporary file");
        let python = peer("xprof/bin/python").display().to_string();
        let words: Vec<String> = self.prefix.into_iter().chain([python]).collect();
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .arg(workspace().join("tests/scripts/jax_job.py"))
            .args(["--port", &port.to_string()])
            .args(&self.arguments)
            .envs(self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().expect("a second handle"))
            .spawn()
            .expect("the peer's python starts");
        let stdin = child.stdin.take().expect("piped");
        let lines = lines_of(child.stdout.take().expect("piped"));
        let job = RunningJaxJob { child, stdin, lines, port };
        match job.lines.recv_timeout(START) {
            Ok(line) if line == "ready" => job,
            other => {
                let mut text = String::new();
                let _ = errors.seek(SeekFrom::Start(0)).and_then(|_| errors.read_to_string(&mut text));
                panic!("the JAX job did not start ({other:?}):\n{text}")
            }
        }
    }
}

/// A job that runs; killed when dropped, and it ends by itself when the test dies.
#[derive(Debug)]
pub struct RunningJaxJob {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
    port: u16,
}

impl RunningJaxJob {
    /// The port of its profiler.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`, as `--target` takes it.
    pub fn target(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the job prints, or none within `wait`.
    pub fn next_line(&self, wait: Duration) -> Option<String> {
        self.lines.recv_timeout(wait).ok()
    }

    /// Waits until it prints this line.
    ///
    /// # Panics
    /// If it does not.
    pub fn says(&self, line: &str) {
        until("a line of the job", || self.next_line(LIMIT).as_deref() == Some(line));
    }

    /// A line that it printed and nobody has read.
    pub fn said_now(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Makes the program trace itself into `folder`, and gives what came of it: `start ok`, or the error.
    pub fn start_trace(&mut self, folder: &Path) -> String {
        self.command(&format!("start {}", folder.display()))
    }

    /// Makes the program end its own trace, and gives what came of it: `stop ok`, or the error.
    pub fn stop_trace(&mut self) -> String {
        self.command("stop")
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.stdin, "{command}").expect("the job reads");
        self.next_line(START).expect("the job answers")
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it now.
    pub fn kill(&mut self) {
        // Already dead is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for RunningJaxJob {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on now. JAX takes no port 0, so a small race with other programs remains.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

fn lines_of(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
