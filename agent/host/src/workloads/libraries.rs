//! Which of libtpu, jaxlib and torch_xla a process has mapped, from the kernel's `/proc/<pid>/maps`.

use std::{
    ffi::OsStr,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

/// Maximum number of bytes of `/proc/<pid>/maps` that are read.
const MAX_BYTES: u64 = 16 << 20;

/// The libraries that a process has mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Its libtpu.so, as the process sees the path.
    pub(super) libtpu: Option<PathBuf>,
    /// `jaxlib` or `torch_xla`, and one of its libraries.
    pub(super) framework: Option<(&'static str, PathBuf)>,
    /// The libtpu.so was replaced on disk after it was mapped.
    pub(super) libtpu_deleted: bool,
    /// The version of Python in the first path that has one, such as `3.11`.
    pub(super) python: Option<String>,
}

impl Mapped {
    /// Whether any of the three is mapped.
    pub(super) fn any(&self) -> bool {
        self.libtpu.is_some() || self.framework.is_some()
    }

    fn complete(&self) -> bool {
        self.libtpu.is_some() && self.framework.is_some()
    }

    fn add(&mut self, path: &[u8]) {
        let (path, deleted) = match path.strip_suffix(b" (deleted)") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        if self.python.is_none() {
            self.python = python_version(path);
        }
        if !contains(name, b".so") {
            return;
        }
        let owned = || PathBuf::from(OsStr::from_bytes(path));
        if name.starts_with(b"libtpu") {
            self.libtpu = Some(owned());
            self.libtpu_deleted = deleted;
        } else if name.starts_with(b"_XLAC") || contains(path, b"/torch_xla/") {
            self.framework = Some(("torch_xla", owned()));
        } else if self.framework.is_none()
            && (contains(path, b"/jaxlib/") || name == b"libjax_common.so" || name == b"xla_extension.so")
        {
            self.framework = Some(("jaxlib", owned()));
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The version in `/usr/bin/python3.11`, `/venv/lib/python3.11/…` or `libpython3.11.so.1.0`.
fn python_version(path: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"python3.";
    let at = path.windows(NAME.len()).position(|window| window == NAME)?;
    let minor: Vec<u8> =
        path[at + NAME.len()..].iter().copied().take_while(u8::is_ascii_digit).take(3).collect();
    let minor = String::from_utf8(minor).ok().filter(|minor| !minor.is_empty())?;
    Some(format!("3.{minor}"))
}

/// Reads maps in pieces and stops when all libraries are found.
pub(super) fn mapped(maps: impl Read) -> io::Result<Mapped> {
    let mut maps = maps.take(MAX_BYTES);
    let mut found = Mapped::default();
    let (mut text, mut chunk) = (Vec::with_capacity(64 * 1024), [0; 16 * 1024]);
    let mut last = Vec::new();
    loop {
        let count = maps.read(&mut chunk)?;
        text.extend_from_slice(&chunk[..count]);
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..end].split(|byte| *byte == b'\n') {
            // Neither addresses, permissions, offset, device nor inode contain a slash.
            let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
            let path = &line[at..];
            // A library has several segments in a row.
            if path != last {
                path.clone_into(&mut last);
                found.add(path);
            }
        }
        text.drain(..end);
        if count == 0 || found.complete() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "55d0-55d1 r--p 00000000 fe:01 12 /usr/bin/python3.11
7f00-7f01 r--p 00000000 fe:01 13 /venv/lib/python3.11/site-packages/jaxlib/libjax_common.so
7f01-7f02 r-xp 00000000 fe:01 13 /venv/lib/python3.11/site-packages/jaxlib/libjax_common.so
7f02-7f03 rw-p 00000000 00:00 0
7f03-7f04 r--p 00000000 fe:01 14 /venv/lib/python3.11/site-packages/libtpu/libtpu.so (deleted)
7ffe-7fff rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn libraries_are_known_by_name() {
        let found = mapped(MAPS.as_bytes()).unwrap();
        assert_eq!(found.libtpu, Some("/venv/lib/python3.11/site-packages/libtpu/libtpu.so".into()));
        assert!(found.libtpu_deleted);
        assert_eq!(found.framework.unwrap().0, "jaxlib");
        assert_eq!(found.python.as_deref(), Some("3.11"));
        assert_eq!(python_version(b"/usr/lib/libpython3.9.so.1.0").as_deref(), Some("3.9"));
        assert_eq!(python_version(b"/usr/bin/python3"), None);
        let torch = "1-2 r-xp 0 0:0 1 /s/_XLAC.cpython-311-x86_64-linux-gnu.so\n";
        assert_eq!(mapped(torch.as_bytes()).unwrap().framework.unwrap().0, "torch_xla");
        assert!(!mapped("1-2 r-xp 0 0:0 1 /srv/jaxlib/readme.txt\n".as_bytes()).unwrap().any());
    }
}
