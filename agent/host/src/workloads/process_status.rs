//! What `/proc/<pid>/stat` and `/proc/<pid>/status` say about a process. Pure: text in, values out.
//!
//! `procfs-core` parses `stat`. It slices around the command's brackets without looking, so a text of another shape is
//! refused first. `status` is read here: three of its lines are wanted, and `procfs-core` needs 16 times as long for
//! all sixty (26 µs against 1.6 µs) and refuses the text where a sandbox such as gVisor shows fewer.

use std::time::Duration;

use procfs_core::{FromRead, process};

use crate::boot_clock;

/// From `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessStat {
    pub(super) parent: u32,
    pub(super) start_ticks: u64,
    /// Bytes of address space: mapping a library changes it.
    pub(super) address_space: u64,
    /// Address of its environment, which an exec moves; 0 when the kernel hides it.
    pub(super) image: u64,
    /// Whether a signal or a debugger has stopped it.
    pub(super) stopped: bool,
}

impl ProcessStat {
    /// Whether it is the same process and has not called exec in between.
    pub(super) fn same_program(self, other: Self) -> bool {
        (self.start_ticks, self.image) == (other.start_ticks, other.image)
    }

    /// How long it has run at this time since boot; `None` when it had not started.
    pub(super) fn age(self, uptime: Duration) -> Option<Duration> {
        boot_clock::age(self.start_ticks, uptime)
    }
}

/// The time since boot, from `/proc/uptime`.
pub(super) fn uptime(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.split_ascii_whitespace().next()?.parse().ok()?).ok()
}

/// Parses `stat`; the command in it may contain spaces and brackets.
pub(super) fn stat(text: &[u8]) -> Option<ProcessStat> {
    if !has_stat_shape(text) {
        return None;
    }
    let stat = process::Stat::from_read(text).ok()?;
    Some(ProcessStat {
        parent: u32::try_from(stat.ppid).ok()?,
        start_ticks: stat.starttime,
        address_space: stat.vsize,
        image: stat.env_start.unwrap_or(0),
        stopped: matches!(stat.state, 'T' | 't'),
    })
}

/// Whether the text begins as the kernel's does: `PID (COMMAND) S`.
fn has_stat_shape(text: &[u8]) -> bool {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let Some(close) = text.iter().rposition(|byte| *byte == b')') else { return false };
    let opens = digits > 0 && text[digits..].starts_with(b" (") && close > digits + 1;
    opens && matches!(text[close + 1..], [b' ', state, ..] if state.is_ascii_alphabetic())
}

/// From `/proc/<pid>/status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessIds {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Its pid in its own namespace, when that is not the one of this procfs.
    pub(super) container_pid: Option<u32>,
}

/// When a process started, from its `stat`: ticks since boot. `None` for a text of another shape.
pub fn start_ticks(text: &[u8]) -> Option<u64> {
    stat(text).map(|stat| stat.start_ticks)
}

/// Whether a signal or a debugger has stopped the process that started then, from its `stat`. `None` for another process, or a
/// text of another shape.
pub fn is_stopped(text: &[u8], start_ticks: u64) -> Option<bool> {
    stat(text).filter(|stat| stat.start_ticks == start_ticks).map(|stat| stat.stopped)
}

/// The numbers of the line `key:` of `status` or of the `fdinfo` of a pidfd. Empty if there is no such line, or if it has
/// anything else.
pub fn numbers(text: &str, key: &str) -> Vec<i64> {
    let numbers = value(text, key).unwrap_or_default().split_ascii_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().unwrap_or_default()
}

/// The value of a line of `status`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

/// The process that a process or thread belongs to, from `status`.
pub(super) fn thread_group(text: &str) -> Option<u32> {
    value(text, "Tgid")?.trim().parse().ok()
}

/// Parses `status`; `None` without a user id.
pub(super) fn ids(text: &str) -> Option<ProcessIds> {
    let first = |key: &str| value(text, key)?.split_ascii_whitespace().next()?.parse::<u32>().ok();
    let pids = numbers(text, "NSpid");
    let inner = pids.get(1..).and_then(<[i64]>::last);
    Some(ProcessIds {
        uid: first("Uid")?,
        gid: first("Gid")?,
        container_pid: inner.and_then(|pid| u32::try_from(*pid).ok()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_command_may_contain_brackets() {
        let mut line = String::from("41 (a) b (c)) S 7 ");
        line.extend((5..=52).map(|number| format!("{number} ")));
        let want = ProcessStat { parent: 7, start_ticks: 22, address_space: 23, image: 50, stopped: false };
        assert_eq!(stat(line.as_bytes()), Some(want));
        // A command need not be UTF-8.
        let odd: Vec<u8> = line.bytes().map(|byte| if byte == b'c' { 0xe2 } else { byte }).collect();
        assert_eq!(stat(&odd), Some(want));
        for state in ["T", "t"] {
            let stopped = line.replacen(" S ", &format!(" {state} "), 1);
            assert_eq!(stat(stopped.as_bytes()), Some(ProcessStat { stopped: true, ..want }));
            assert_eq!(is_stopped(stopped.as_bytes(), 22), Some(true));
        }
        assert_eq!((is_stopped(line.as_bytes(), 22), is_stopped(line.as_bytes(), 21)), (Some(false), None));
        assert_eq!(stat(b"41 (x) S"), None);
        assert_eq!(stat(b""), None);
    }

    #[test]
    fn the_numbers_of_a_line_are_all_or_none() {
        let text = "Pid:\t-1\nNSpid:\t41\t1\nNStgid:\tx 1\n";
        assert_eq!(numbers(text, "NSpid"), [41, 1]);
        assert_eq!(numbers(text, "Pid"), [-1]);
        assert_eq!((numbers(text, "NStgid"), numbers(text, "NS")), (vec![], vec![]));
    }

    #[test]
    fn this_process_is_parsed() {
        let text = std::fs::read("/proc/self/stat").unwrap();
        assert!(start_ticks(&text).unwrap() <= boot_clock::ticks().unwrap());
        assert_eq!(stat(&text).unwrap().parent, std::os::unix::process::parent_id());
    }

    #[test]
    fn the_innermost_pid_is_the_containers() {
        let text = "Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\nNSpid:\t901\t33\t7\n";
        assert_eq!(ids(text), Some(ProcessIds { uid: 1000, gid: 5, container_pid: Some(7) }));
        let text = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t901\n";
        assert_eq!(ids(text).and_then(|ids| ids.container_pid), None);
        assert_eq!(ids("Name:\tx\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            near in "[0-9]{0,2} ?[()]{0,3}[ -~é]{0,3}[()]{0,2}[ ]{0,2}[A-Z]?[ 0-9]{0,80}",
            text in any::<String>(),
        ) {
            let _ = stat(&bytes);
            let _ = stat(near.as_bytes());
            let _ = (ids(&text), thread_group(&text));
        }
    }
}
