//! What the small text files of a process say. Pure: text in, facts out.

/// From `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) parent: u32,
    pub(super) start_ticks: u64,
    /// Bytes of address space: a library cannot be mapped without changing it.
    pub(super) address_space: u64,
    /// Address of its environment, which an exec moves; 0 when the kernel hides it.
    pub(super) image: u64,
}

impl Stat {
    /// Whether it is the same process, and has not exec'd in between.
    pub(super) fn same_program(self, other: Self) -> bool {
        (self.start_ticks, self.image) == (other.start_ticks, other.image)
    }
}

/// Reads `stat`; the command in it may hold spaces and brackets.
pub(super) fn stat(text: &[u8]) -> Option<Stat> {
    let after = text.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(&text[after..]).ok()?;
    // The first field here is field 3 of proc(5).
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        parent: field(4).and_then(|pid| u32::try_from(pid).ok())?,
        start_ticks: field(22)?,
        address_space: field(23).unwrap_or(0),
        image: field(50).unwrap_or(0),
    })
}

/// From `/proc/<pid>/status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Its pid in its own namespace, when that is not the one of this procfs.
    pub(super) container_pid: Option<u32>,
}

/// Reads `status`; `None` without a user id.
pub(super) fn status(text: &str) -> Option<Status> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let first = |key: &str| value(key)?.split_ascii_whitespace().next()?.parse::<u32>().ok();
    let mut pids = value("NSpid").into_iter().flat_map(str::split_ascii_whitespace);
    let outer = pids.next();
    let inner = pids.next_back();
    Some(Status {
        uid: first("Uid")?,
        gid: first("Gid")?,
        container_pid: inner.filter(|_| outer.is_some()).and_then(|pid| pid.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_hold_brackets() {
        let mut line = String::from("41 (a) b (c)) S 7 ");
        line.extend((5..=52).map(|number| format!("{number} ")));
        let want = Stat { parent: 7, start_ticks: 22, address_space: 23, image: 50 };
        assert_eq!(stat(line.as_bytes()), Some(want));
        assert_eq!(stat(b"41 (x) S"), None);
        assert_eq!(stat(b""), None);
    }

    #[test]
    fn the_innermost_pid_is_the_containers() {
        let text = "Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\nNSpid:\t901\t33\t7\n";
        assert_eq!(status(text), Some(Status { uid: 1000, gid: 5, container_pid: Some(7) }));
        let text = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t901\n";
        assert_eq!(status(text).and_then(|status| status.container_pid), None);
        assert_eq!(status("Name:\tx\n"), None);
    }
}
