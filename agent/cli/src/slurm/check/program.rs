//! The programs that Slurm runs as hooks, as they are on this host, and whether one calls tpuscope.
//!
//! Must never run one of them.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use host::regular_file;

use crate::slurm::hook::Hook;

/// The most bytes of a script that are read, and the most programs of a folder.
const MOST_BYTES: u64 = 1 << 20;
const MOST_PROGRAMS: usize = 256;

/// A program of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) state: ProgramState,
    /// What it says, if it is a script.
    pub(super) text: String,
}

/// Whether Slurm can run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramState {
    /// Yes.
    Sound,
    /// There is none.
    Missing,
    /// It is no regular file, or nobody may execute it.
    NotExecutable,
    /// It is neither a program nor a script that names its interpreter: the kernel cannot run it.
    NoInterpreter,
    /// Another user than root can change it.
    Writable,
}

/// The programs that a value of the configuration names: a path, or a pattern of the files of a folder.
pub(super) fn programs(value: &str) -> Vec<Program> {
    paths(Path::new(value)).into_iter().map(look).collect()
}

fn paths(value: &Path) -> Vec<PathBuf> {
    let Some((folder, pattern)) = value.parent().zip(value.file_name().and_then(|name| name.to_str())) else {
        return vec![value.to_owned()];
    };
    if !pattern.contains(['*', '?']) {
        return vec![value.to_owned()];
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // As glob(3): a pattern does not begin the name of a hidden file.
    let matching =
        names.filter(|name| !name.starts_with('.') && matches(pattern.as_bytes(), name.as_bytes()));
    let mut paths: Vec<PathBuf> = matching.take(MOST_PROGRAMS).map(|name| folder.join(name)).collect();
    paths.sort_unstable();
    paths
}

/// Whether a name has the form of a pattern with `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // Where to go on if the rest does not match: behind the last star, one byte further in the name.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

fn look(path: PathBuf) -> Program {
    let (state, text) = match regular_file::open(&path) {
        Ok(file) => state_and_text(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (ProgramState::Missing, String::new()),
        Err(_) => (ProgramState::NotExecutable, String::new()),
    };
    Program { path, state, text }
}

fn state(file: &File) -> ProgramState {
    let Ok(metadata) = file.metadata() else { return ProgramState::NotExecutable };
    let mode = metadata.permissions().mode();
    if mode & 0o111 == 0 {
        ProgramState::NotExecutable
    } else if metadata.uid() != 0 || mode & 0o022 != 0 {
        ProgramState::Writable
    } else {
        ProgramState::Sound
    }
}

/// Its state, and the text of a script; empty for a binary.
fn state_and_text(file: File) -> (ProgramState, String) {
    let (state, mut bytes) = (state(&file), Vec::new());
    if file.take(MOST_BYTES).read_to_end(&mut bytes).is_err() {
        return (state, String::new());
    }
    let is_binary = bytes.starts_with(b"\x7fELF");
    let state = match state {
        ProgramState::Sound if !is_binary && !bytes.starts_with(b"#!") => ProgramState::NoInterpreter,
        state => state,
    };
    let is_text = !is_binary && !bytes.contains(&0);
    (state, if is_text { String::from_utf8_lossy(&bytes).into_owned() } else { String::new() })
}

/// How a script calls tpuscope for a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// The word that names tpuscope.
    pub(super) program: String,
    /// `exec` comes before it.
    pub(super) by_exec: bool,
    /// `timeout` comes before it.
    pub(super) has_timeout: bool,
    /// Its status does not become that of the script.
    pub(super) is_harmless: bool,
}

/// The last call of tpuscope for this hook in a script: it decides how the script ends.
pub(super) fn call(script: &str, hook: Hook) -> Option<Call> {
    let lines: Vec<&str> = script.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    lines.iter().enumerate().rev().find_map(|(at, line)| {
        let words: Vec<&str> = line.split([' ', '\t', ';']).filter(|word| !word.is_empty()).collect();
        let named = words.windows(3).position(|three| {
            three[0].trim_matches('"').ends_with("tpuscope") && three[1] == "slurm" && three[2] == hook.name()
        })?;
        let rest = lines[at..].join("\n");
        Some(Call {
            program: words[named].trim_matches('"').to_owned(),
            by_exec: words[..named].contains(&"exec"),
            has_timeout: words[..named].iter().any(|word| word.ends_with("timeout")),
            is_harmless: ["exit 0", "|| true", "|| :"].iter().any(|end| rest.contains(end)),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, wanted) in [
            ("*", "a", true),
            ("*.sh", "a.sh", true),
            ("*.sh", "a.shx", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?0-*", "10-tpu", true),
            ("?0-*", "0-tpu", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn the_programs_of_a_folder_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, text: &str, mode| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let script = make("20-b", "#!/bin/sh\nexit 0\n", 0o775);
        let plain = make("10-a", "\u{7f}ELF", 0o644);
        make(".hidden", "", 0o755);
        let found = programs(&dir.path().join("*").display().to_string());
        let wanted = [
            Program { path: plain, state: ProgramState::NotExecutable, text: String::new() },
            Program { path: script, state: ProgramState::Writable, text: "#!/bin/sh\nexit 0\n".to_owned() },
        ];
        assert_eq!(found, wanted);
        // Root alone may change these, but not those of a test that another user runs.
        let bare = make("bare", "exec /usr/bin/tpuscope slurm prolog\n", 0o755);
        let looked = look(bare);
        let is_root = nix::unistd::geteuid().is_root();
        let wanted = if is_root { ProgramState::NoInterpreter } else { ProgramState::Writable };
        assert_eq!(looked.state, wanted);
        assert!(call(&looked.text, Hook::Prolog).is_some_and(|call| call.by_exec), "{looked:?}");
        let missing = dir.path().join("none");
        assert_eq!(programs(&missing.display().to_string())[0].state, ProgramState::Missing);
        assert_eq!(programs(&dir.path().display().to_string())[0].state, ProgramState::NotExecutable);
        assert_eq!(programs(&dir.path().join("x*").display().to_string()), []);
    }

    #[test]
    fn our_own_scripts_call_tpuscope_and_harm_nothing() {
        for (hook, script) in [
            (Hook::Prolog, include_str!("../../../../../packaging/slurm/prolog")),
            (Hook::Epilog, include_str!("../../../../../packaging/slurm/epilog")),
            (Hook::TaskProlog, include_str!("../../../../../packaging/slurm/task-prolog")),
            (Hook::TaskEpilog, include_str!("../../../../../packaging/slurm/task-epilog")),
        ] {
            let wanted = Call {
                program: "/usr/bin/tpuscope".to_owned(),
                by_exec: false,
                has_timeout: true,
                is_harmless: true,
            };
            assert_eq!(call(script, hook), Some(wanted), "{}", hook.name());
        }
    }

    #[test]
    fn a_call_that_can_drain_a_node_is_seen() {
        let of = |script: &str| call(script, Hook::Epilog);
        assert_eq!(of("#!/bin/sh\n# /usr/bin/tpuscope slurm epilog\n"), None);
        assert_eq!(of("/usr/bin/tpuscope slurm prolog; exit 0"), None);
        let call = of("exec tpuscope slurm epilog").unwrap();
        assert!(call.by_exec && !call.has_timeout && !call.is_harmless);
        assert_eq!(call.program, "tpuscope");
        let call = of("timeout 6 \"/opt/tpuscope\" slurm epilog || true").unwrap();
        assert!(!call.by_exec && call.has_timeout && call.is_harmless);
        assert_eq!(call.program, "/opt/tpuscope");
    }
}
