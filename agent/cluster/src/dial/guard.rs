//! A process that kills the commands of another one that died, however it died: the system kills no process group by itself.
//!
//! It is told of each group on standard input, and learns from the end of input that the other one is gone. One serves all
//! commands of a process.
//!
//! Must never kill a group that is not one of these: a number may have a new owner.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use host::workloads::process_status;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// The longest line that the guard reads, bytes.
const LONGEST_LINE: u64 = 32;

/// The guard of the commands of this process. It ends with the value.
#[derive(Debug)]
pub struct GroupGuard {
    process: Child,
    input: Mutex<Option<ChildStdin>>,
}

/// A group that is killed if this process dies while the value exists.
#[derive(Debug)]
pub(super) struct GuardedGroup {
    guard: Arc<GroupGuard>,
    group: Pid,
}

impl GroupGuard {
    /// Starts the guard: a program that calls [`run_guard`] with its standard input.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path, words: &[&str]) -> io::Result<Self> {
        let mut process = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The signals of the terminal are not for it.
            .process_group(0)
            .spawn()?;
        let input = Mutex::new(process.stdin.take());
        Ok(Self { process, input })
    }

    /// Guards a group from now on.
    pub(super) fn watch(self: &Arc<Self>, group: Pid) -> GuardedGroup {
        self.tell('+', group);
        GuardedGroup { guard: Arc::clone(self), group }
    }

    fn tell(&self, sign: char, group: Pid) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        // A guard that was killed guards nothing; the commands still end with their streams.
        let _ = input.as_mut().map(|input| writeln!(input, "{sign}{group}"));
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Nothing is left to guard, so it ends at once.
        let _ = self.process.wait();
    }
}

impl Drop for GuardedGroup {
    fn drop(&mut self) {
        self.guard.tell('-', self.group);
    }
}

/// The guard itself: reads groups until the end of input, gives those that are left `grace` to end by themselves, and kills
/// them.
pub fn run_guard(input: &mut impl BufRead, grace: Duration) {
    let mut groups: HashMap<i32, Option<u64>> = HashMap::new();
    let mut line = String::new();
    while matches!(io::Read::take(&mut *input, LONGEST_LINE).read_line(&mut line), Ok(1..)) {
        let (sign, number) = line.trim_end().split_at_checked(1).unwrap_or_default();
        // 0 and 1 would be groups of others.
        match (sign, number.parse()) {
            ("+", Ok(group @ 2..)) => drop(groups.insert(group, started(group))),
            ("-", Ok(group)) => drop(groups.remove(&group)),
            _ => {}
        }
        line.clear();
    }
    if groups.is_empty() {
        return;
    }
    thread::sleep(grace);
    for (group, known) in groups {
        // The number stays with the group while a process of it is left, also when its first one is gone.
        let now = started(group);
        if now.is_none() || now == known {
            // It has ended.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

/// When the process with this number started; none if there is none.
fn started(pid: i32) -> Option<u64> {
    process_status::start_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use std::{io::BufReader, process::ExitStatus};

    use super::*;

    /// A command in a group of its own, which never ends by itself.
    fn endless() -> Child {
        Command::new("sleep").arg("1000").process_group(0).spawn().unwrap()
    }

    fn ended_by_kill(status: ExitStatus) -> bool {
        std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
    }

    fn guard(lines: &str) {
        run_guard(&mut BufReader::new(lines.as_bytes()), Duration::ZERO);
    }

    #[test]
    fn what_is_left_at_the_end_of_input_is_killed() {
        let (mut left, mut released) = (endless(), endless());
        guard(&format!("+{}\n+{}\n-{}\n", left.id(), released.id(), released.id()));
        assert!(ended_by_kill(left.wait().unwrap()));
        assert!(released.try_wait().unwrap().is_none());
        released.kill().unwrap();
        released.wait().unwrap();
    }

    #[test]
    fn numbers_of_others_and_nonsense_are_ignored() {
        let mut other = endless();
        // Not a group: the number belongs to a process that started later than the group that had it.
        let mut groups = String::from("+0\n+1\n+-1\nx\n+\n\n");
        groups.push_str(&"9".repeat(100));
        guard(&groups);
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(started(i32::try_from(other.id()).unwrap()), None);
    }
}
