//! The error type of all commands: an exit code, what failed, and what to do about it.
//!
//! Errors of the other crates become failures in [`remedies`](crate::remedies).

use std::fmt;

use crate::{exit::Exit, output::one_line};

/// Why a command failed, in the words that the user reads.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// One line: what failed.
    pub what: String,
    /// One line: what to do about it. Empty if there is nothing to add.
    pub remedy: String,
}

impl Failure {
    /// A failure without a remedy.
    pub fn new(exit: Exit, what: impl fmt::Display) -> Self {
        Self { exit, what: what.to_string(), remedy: String::new() }
    }

    /// A fault of tpuscope or of the system.
    pub fn internal(what: impl fmt::Display) -> Self {
        Self::new(Exit::Internal, what)
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = remedy.to_string();
        self
    }

    /// As `--json` has it: `docs/schemas/failure.schema.json`.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({ "error": { "message": self.what, "remedy": self.remedy } })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_the_terminal() {
        let failure = Failure::new(Exit::BadInput, "bad \u{1b}[31mname\n").remedy("rename it");
        assert_eq!(failure.to_string(), "bad \\u{1b}[31mname\\n\n  rename it");
    }
}
