//! A process that passes bytes on to a port of another one, as a user of its own or as the holder of chips.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use fakes::jax_job::free_port;

use super::Killed;

/// Passes bytes on between a port of its own and another one, and holds files open.
const RELAY: &str = "
import os, socket, sys, threading
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
held = [os.open(path, os.O_RDONLY) for path in sys.argv[3:]]
listener = socket.create_server(('127.0.0.1', int(sys.argv[2])))
print(listener.getsockname()[1], flush=True)
while True:
    near, _ = listener.accept()
    far = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    for ends in ((near, far), (far, near)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
";

/// The process, and where it listens.
pub(super) struct Relay {
    child: Killed,
    pub(super) at: String,
}

impl Relay {
    /// One that `prefix` starts.
    pub(super) fn start(prefix: &[&str], port: u16) -> Self {
        Self::run(prefix, port, &["0".to_owned()])
    }

    pub(super) fn of_user(uid: u32, port: u16) -> Self {
        let user = [format!("--reuid={uid}"), format!("--regid={uid}")];
        Self::start(&["setpriv", &user[0], &user[1], "--clear-groups"], port)
    }

    /// A workload that holds these nodes of chips, and whose profiler is the one at `port`.
    pub(super) fn workload(nodes: &[PathBuf], port: u16) -> Self {
        let own = free_port().to_string();
        let variable = format!("TPUSCOPE_PROFILER_PORT={own}");
        let nodes = nodes.iter().map(|node| node.display().to_string());
        let arguments: Vec<String> = [own].into_iter().chain(nodes).collect();
        Self::run(&["env", &variable], port, &arguments)
    }

    fn run(prefix: &[&str], port: u16, arguments: &[String]) -> Self {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).args(["/usr/bin/python3", "-c", RELAY, &port.to_string()]).args(arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = Killed(child.unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, at: format!("127.0.0.1:{}", line.trim()) }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }
}
