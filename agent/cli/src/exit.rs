//! The exit codes of all commands. `docs/exit-codes.md` lists them.

use std::process::ExitCode;

/// The exit codes. The numbers are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded.
    Ok = 0,
    /// An internal error of tpuscope or of the system.
    Internal = 1,
    /// The command line is invalid.
    Usage = 2,
    /// The settings are invalid.
    Config = 3,
    /// Permission denied.
    Permission = 4,
    /// A file, session or process does not exist.
    NotFound = 5,
    /// No agent answers on the socket.
    NoAgent = 6,
    /// A port, a state directory, a session name or an output path is taken.
    Conflict = 7,
    /// A file or a received trace is damaged, incomplete or has another format.
    BadInput = 8,
    /// The host or its network does not answer.
    Unreachable = 10,
    /// No process listens on the port.
    NotListening = 11,
    /// The process that listens on the port is not a profiler.
    NotAProfiler = 12,
    /// The workload's profiler is in use.
    Busy = 13,
    /// The trace is empty.
    EmptyTrace = 14,
    /// A time limit was exceeded.
    Timeout = 15,
    /// A size limit was exceeded.
    TooLarge = 16,
    /// The disk is full.
    NoSpace = 17,
    /// The result is incomplete.
    Partial = 18,
    /// There is no process to profile, or there are fewer than are needed.
    NoTarget = 19,
    /// The session is kept, and its upload failed or is not done in time.
    NotUploaded = 20,
    /// The command of `tpuscope run` cannot be executed.
    NotExecutable = 126,
    /// The command of `tpuscope run` does not exist.
    CommandNotFound = 127,
    /// The command was interrupted.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_docs_list_every_code() {
        let docs = include_str!("../../../docs/exit-codes.md");
        let shown: Vec<&str> =
            docs.lines().filter(|line| line.starts_with("| ") && !line.contains("code")).collect();
        let source = include_str!("exit.rs");
        let (_, codes) = source.split_once("pub enum Exit {").unwrap();
        let (codes, _) = codes.split_once("\n}").unwrap();
        let lines: Vec<&str> = codes.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let wanted: Vec<String> = lines
            .chunks(2)
            .map(|pair| {
                let number = pair[1].trim_end_matches(',').split(" = ").nth(1).unwrap();
                format!("| {number} | {} |", pair[0].trim_start_matches("/// "))
            })
            .collect();
        assert_eq!(shown, wanted);
    }
}
