//! The exit codes of all commands. `docs/exit-codes.md` lists them.

use std::process::ExitCode;

/// Every way a `tpuscope` command ends. The numbers are stable; `docs/exit-codes.md` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// A fault of tpuscope itself, or of the system under it.
    Internal = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration is wrong.
    Config = 3,
    /// Not allowed.
    Permission = 4,
    /// What was named does not exist.
    NotFound = 5,
    /// No agent answers on the socket.
    NoAgent = 6,
    /// Something else already is where this would go: a port, a state directory, a session name.
    Conflict = 7,
    /// The input file is damaged or of another kind.
    BadInput = 8,
    /// The host or its network does not answer.
    Unreachable = 10,
    /// The host answers, but nothing listens on the port.
    NotListening = 11,
    /// Something listens, but it is no profiler.
    NotAProfiler = 12,
    /// The workload's profiler is in use.
    Busy = 13,
    /// The profiler answered with an empty trace.
    EmptyTrace = 14,
    /// The deadline passed.
    Timeout = 15,
    /// More bytes than the limit.
    TooLarge = 16,
    /// The disk is full.
    NoSpace = 17,
    /// Some of what was asked is there, some is missing.
    Partial = 18,
    /// No process to work on.
    NoTarget = 19,
    /// Interrupted by the user.
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
