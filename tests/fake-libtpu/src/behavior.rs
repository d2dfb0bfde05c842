//! How a call behaves.
//!
//! | behavior | effect |
//! |---|---|
//! | `values A\|B` | these values |
//! | `error CODE TEXT` | that error |
//! | `hang` | never returns |
//! | `slow MS` | returns `1` after so many milliseconds |
//! | `abort`, `segfault`, `exit CODE` | the process ends |
//! | `leak BYTES` | keeps so many more bytes, touched, and returns `1` |
//! | `stderr BYTES` | writes so many bytes to standard error and returns `1` |
//! | `count N` | claims N values |
//! | `length N` | claims a description of N bytes |
//! | `endless` | a value without its NUL byte |
//! | `nothing` | no error and no metric |
//! | `scribble` | writes bytes of its own to every open socket |
//! | `facts` | what the process is: lines of `/proc/self/status`, its folder, variables, descriptors and limits |

use std::{env, fs, io::Write, os::fd::FromRawFd, process, thread, time::Duration};

/// What a call does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Behavior {
    Values(Vec<String>),
    Error(i32, String),
    Hang,
    Slow(u64),
    Abort,
    Segfault,
    Exit(i32),
    Leak(usize),
    WriteStderr(usize),
    Count(usize),
    Length(usize),
    Endless,
    Nothing,
    Scribble,
    Facts,
}

impl Behavior {
    /// Reads a behavior; what is none of the above are values.
    pub(crate) fn parse(text: &str) -> Self {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let number = || rest.trim().parse::<usize>().unwrap_or(0);
        match word {
            "error" => {
                let (code, message) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Error(code.parse().unwrap_or(2), message.to_owned())
            }
            "hang" => Self::Hang,
            "slow" => Self::Slow(number() as u64),
            "abort" => Self::Abort,
            "segfault" => Self::Segfault,
            "exit" => Self::Exit(rest.parse().unwrap_or(0)),
            "leak" => Self::Leak(number()),
            "stderr" => Self::WriteStderr(number()),
            "count" => Self::Count(number()),
            "length" => Self::Length(number()),
            "endless" => Self::Endless,
            "nothing" => Self::Nothing,
            "scribble" => Self::Scribble,
            "facts" => Self::Facts,
            "values" if rest.is_empty() => Self::Values(Vec::new()),
            "values" => Self::Values(rest.split('|').map(str::to_owned).collect()),
            _ => Self::Values(vec![text.to_owned()]),
        }
    }

    /// Does what is not an answer, and says which values to answer with.
    pub(crate) fn act(&self) -> Vec<String> {
        match self {
            Self::Values(values) => return values.clone(),
            Self::Hang => loop {
                thread::park();
            },
            Self::Slow(milliseconds) => thread::sleep(Duration::from_millis(*milliseconds)),
            Self::Abort => process::abort(),
            Self::Segfault => segfault(),
            Self::Exit(code) => process::exit(*code),
            Self::Leak(bytes) => {
                // A zeroed allocation would cost nothing before it is touched.
                vec![0xc5_u8; *bytes].leak();
            }
            Self::WriteStderr(bytes) => {
                // A closed standard error is no matter here.
                let _ = std::io::stderr().write_all(&b"libtpu says something at length\n".repeat(bytes / 32));
            }
            Self::Scribble => scribble(),
            Self::Facts => return facts(),
            Self::Error(..) | Self::Count(_) | Self::Length(_) | Self::Endless | Self::Nothing => {}
        }
        vec!["1".to_owned()]
    }
}

fn segfault() {
    let nowhere = std::hint::black_box(8 as *mut u8);
    // SAFETY: none: the write is meant to kill the process.
    unsafe { nowhere.write_volatile(1) };
}

/// Writes a length beyond every limit to all sockets.
fn scribble() {
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let socket = fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        if let (true, Some(fd)) = (socket, entry.file_name().to_str().and_then(|name| name.parse().ok())) {
            // SAFETY: the descriptor is open; it is not closed here.
            let mut file = std::mem::ManuallyDrop::new(unsafe { fs::File::from_raw_fd(fd) });
            let _ = file.write_all(&[0xff; 64]);
        }
    }
}

fn facts() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let wanted = ["Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Cap"];
    let status = read("/proc/self/status");
    let mut facts: Vec<String> = status
        .lines()
        .filter(|line| wanted.iter().any(|start| line.starts_with(start)))
        .map(|line| line.replace('\t', " "))
        .collect();
    let limits = read("/proc/self/limits");
    facts.extend(limits.lines().filter(|line| line.starts_with("Max core")).map(str::to_owned));
    facts.push(format!("cwd: {}", env::current_dir().unwrap_or_default().display()));
    facts.push(format!("oom_score_adj: {}", read("/proc/self/oom_score_adj").trim()));
    facts.extend(env::vars().map(|(name, value)| format!("env: {name}={value}")));
    for fd in 0..1024 {
        if let Ok(to) = fs::read_link(format!("/proc/self/fd/{fd}")) {
            facts.push(format!("fd {fd}: {}", to.display()));
        }
    }
    facts
}
