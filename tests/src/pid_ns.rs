//! A pid namespace with a /proc of its own, as a container has. Gone when dropped.

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Child, Command, Stdio},
};

/// The first process: it waits for a command that it becomes.
const INIT: &str = "echo up && read -r command && eval \"exec $command\"";

/// The namespace.
#[derive(Debug)]
pub struct PidNs {
    unshare: Child,
    /// Its first process, as this namespace numbers it.
    init: u32,
    enter: [String; 2],
}

impl PidNs {
    /// Makes one.
    ///
    /// # Panics
    /// If this user may not, or `unshare` is missing.
    #[expect(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut up = [0; 3];
        unshare.stdout.as_mut().expect("piped").read_exact(&mut up).expect("the namespace comes up");
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let children = fs::read_to_string(children).expect("unshare has forked");
        let init = children.trim().parse().expect("one child");
        Self {
            unshare,
            init,
            enter: [format!("--pid=/proc/{init}/ns/pid"), format!("--mount=/proc/{init}/ns/mnt")],
        }
    }

    /// Its inode.
    ///
    /// # Panics
    /// If its first process ended.
    pub fn inode(&self) -> u64 {
        fs::metadata(format!("/proc/{}/ns/pid", self.init)).expect("it lives").ino()
    }

    /// Makes its first process this command, without input, whose output goes to `log`.
    ///
    /// # Panics
    /// If it is one already.
    pub fn first_process(&mut self, command: &Command, log: &Path) {
        let quoted = |word: &OsStr| format!("'{}'", word.to_str().expect("a text").replace('\'', r"'\''"));
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted);
        let words = words.collect::<Vec<_>>().join(" ");
        let mut input = self.unshare.stdin.take().expect("its first process waits");
        writeln!(input, "{words} </dev/null >{} 2>&1", quoted(log.as_os_str())).expect("it reads");
    }

    /// The words that start a command inside.
    pub fn enter(&self) -> [&str; 3] {
        ["nsenter", &self.enter[0], &self.enter[1]]
    }
}

impl Drop for PidNs {
    fn drop(&mut self) {
        // Already dead is as good; the namespace ends with `unshare`.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}
