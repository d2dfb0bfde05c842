//! The one place where errors become exit codes.
//!
//! A command fails with a [`Failure`]: a code of [`Exit`], one line that says what was wrong, and one that
//! says what to do. Rooms below know nothing of exit codes: their errors are turned into failures here or
//! in the command that called them.

use std::{fmt, process::ExitCode};

use model::untrusted::harmless;

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

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// One line: what was wrong.
    pub what: String,
    /// One line: what to do about it; empty where there is nothing to add.
    pub remedy: String,
}

impl Failure {
    /// A failure without a remedy.
    pub fn new(exit: Exit, what: impl fmt::Display) -> Self {
        Self { exit, what: what.to_string(), remedy: String::new() }
    }

    /// Adds what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = remedy.to_string();
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.what))?;
        if !self.remedy.is_empty() {
            write!(f, "\n  {}", one_line(&self.remedy))?;
        }
        Ok(())
    }
}

/// `text` on one line with what could disturb or deceive escaped: it may quote a file or a peer.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) {
            line.push(c);
        } else {
            line.extend(c.escape_default());
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_the_terminal() {
        let failure = Failure::new(Exit::BadInput, "bad \u{1b}[31mname\n").remedy("rename it");
        assert_eq!(failure.to_string(), "bad \\u{1b}[31mname\\n\n  rename it");
        assert_eq!(one_line("äexe.\u{202e}cod"), "äexe.\\u{202e}cod");
    }

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
