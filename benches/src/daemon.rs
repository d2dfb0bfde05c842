//! Long-running programs that are measured side by side: the agent, its peers, and the services that they read.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{time::clock_getcpuclockid, unistd::Pid};

/// Longer than any daemon takes to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A running program, ended when dropped.
#[derive(Debug)]
pub struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl From<Child> for Daemon {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Daemon {
    /// Starts a command without input and output.
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Starts a command and waits until the HTTP page `path` at `address` is as `wanted`; how long that took.
    pub fn start_until(
        command: &mut Command,
        address: SocketAddr,
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> (Self, Duration) {
        let start = Instant::now();
        let daemon = Self::start(command);
        while !get(address, path).is_ok_and(|page| wanted(&page)) {
            assert!(start.elapsed() < START_LIMIT, "{command:?} does not serve {path} as wanted");
            sleep(Duration::from_millis(1));
        }
        (daemon, start.elapsed())
    }

    /// The CPU time of all its threads so far, in user and system mode. The process' clock counts nanoseconds;
    /// `/proc/PID/stat` counts 10 ms, a tenth of what the agent uses in minutes on a host without chips.
    fn cpu(&self) -> Duration {
        let pid = Pid::from_raw(self.0.id().try_into().unwrap());
        Duration::from(clock_getcpuclockid(pid).unwrap().now().unwrap())
    }

    fn peak_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

/// What a daemon used while it was watched.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// CPU time in per cent of one core.
    pub percent: f64,
    /// Peak resident memory since its start, in MiB.
    pub mib: f64,
}

/// Measures several daemons over the same time, so that what disturbs one disturbs the others too.
#[derive(Debug)]
pub struct Watch<'a> {
    since: Instant,
    daemons: Vec<(&'a Daemon, Duration)>,
}

impl<'a> Watch<'a> {
    /// Starts to measure.
    pub fn start(daemons: &[&'a Daemon]) -> Self {
        Self {
            since: Instant::now(),
            daemons: daemons.iter().map(|daemon| (*daemon, daemon.cpu())).collect(),
        }
    }

    /// What each daemon used, in the same order.
    pub fn end(self) -> Vec<Use> {
        let seconds = self.since.elapsed().as_secs_f64();
        let used = |(daemon, before): (&Daemon, Duration)| Use {
            percent: (daemon.cpu() - before).as_secs_f64() / seconds * 100.0,
            mib: daemon.peak_mib(),
        };
        self.daemons.into_iter().map(used).collect()
    }
}

/// A loopback address that was free a moment ago.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The answer to GET `path`, status line and headers included.
pub fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}
