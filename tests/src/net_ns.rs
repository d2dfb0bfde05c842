//! A network namespace with nothing but its own loopback, gone when dropped.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
};

/// The namespace.
#[derive(Debug)]
pub struct NetNs {
    keeper: Child,
    path: String,
}

impl NetNs {
    /// Makes one.
    ///
    /// # Panics
    /// If this user may not, or `unshare` and `ip` are missing.
    #[expect(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo up && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut up = [0; 3];
        keeper.stdout.as_mut().expect("piped").read_exact(&mut up).expect("the namespace comes up");
        let path = format!("--net=/proc/{}/ns/net", keeper.id());
        Self { keeper, path }
    }

    /// The words that start a command inside.
    pub fn enter(&self) -> [&str; 2] {
        ["nsenter", &self.path]
    }

    /// The process that keeps it.
    pub fn keeper(&self) -> u32 {
        self.keeper.id()
    }

    /// Runs `ip` inside.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, words: &str) {
        let output = self.command("ip").args(words.split(' ')).output().expect("ip runs");
        assert!(output.status.success(), "ip {words}: {output:?}");
    }

    /// Adds a link to the network of a process. Its end here has this name, and the one there is `eth0`; both are down.
    pub fn link(&self, name: &str, process: u32) {
        self.ip(&format!("link add {name} type veth peer name eth0 netns {process}"));
    }

    /// A command inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(&self.path).arg(program);
        command
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // Already dead is as good.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
