//! A short command that answers a question, such as `squeue`: bounded output, a deadline, and killed with all that it started.

use std::{io, process::Stdio, time::Duration};

use model::untrusted::{MESSAGE, clean};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

/// The most bytes of an answer: 65,536 names of 60 bytes.
const MOST_BYTES: u64 = 4 << 20;

/// Why a command gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryCommandError {
    /// It cannot be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// It did not end in time, and was killed.
    #[error("{program} did not answer within {limit:?}")]
    Late {
        /// The program.
        program: String,
        /// The time that it had.
        limit: Duration,
    },
    /// It failed.
    #[error("{said}")]
    Failed {
        /// The program.
        program: String,
        /// The last line of its standard error, or how it ended.
        said: String,
    },
    /// It wrote too much, or something that is no text.
    #[error("the answer of {program} is not text of at most {MOST_BYTES} bytes")]
    Answer {
        /// The program.
        program: String,
    },
}

/// Runs a command and returns its standard output.
///
/// # Errors
/// If it gives no answer within `limit`.
pub(super) async fn answer(
    program: &str,
    words: &[&str],
    limit: Duration,
) -> Result<String, QueryCommandError> {
    let started = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child =
        started.map_err(|error| QueryCommandError::Start { program: program.to_owned(), error })?;
    let group = child.id().and_then(|pid| i32::try_from(pid).ok());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let all = async { tokio::join!(read(stdout), read(stderr), child.wait()) };
    let Ok((stdout, stderr, ended)) = timeout(limit, all).await else {
        if let Some(group) = group {
            // It may have ended meanwhile; it is not reaped, so the number is still its own.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        return Err(QueryCommandError::Late { program: program.to_owned(), limit });
    };
    let status = ended.map_err(|error| QueryCommandError::Start { program: program.to_owned(), error })?;
    if !status.success() {
        let text = String::from_utf8_lossy(&stderr);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        let said = last.map_or_else(|| format!("{program} ended with {status}"), |line| clean(line, MESSAGE));
        return Err(QueryCommandError::Failed { program: program.to_owned(), said });
    }
    let text = String::from_utf8(stdout).ok().filter(|text| text.len() as u64 <= MOST_BYTES);
    text.ok_or_else(|| QueryCommandError::Answer { program: program.to_owned() })
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error counts.
        let _ = pipe.take(MOST_BYTES + 1).read_to_end(&mut bytes).await;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_answer_or_the_reason_is_returned() {
        let answered = answer("echo", &["n[1-2]"], LIMIT).await.unwrap();
        assert_eq!(answered, "n[1-2]\n");
        let failed =
            answer("sh", &["-c", "echo one >&2; echo 'two\u{1b}' >&2; exit 3"], LIMIT).await.unwrap_err();
        assert_eq!(failed.to_string(), "two\u{fffd}");
        let silent = answer("false", &[], LIMIT).await.unwrap_err();
        assert_eq!(silent.to_string(), "false ended with exit status: 1");
        let none = answer("/nonexistent/squeue", &[], LIMIT).await.unwrap_err();
        assert!(matches!(none, QueryCommandError::Start { .. }), "{none}");
        let binary = answer("sh", &["-c", "printf '\\377'"], LIMIT).await.unwrap_err();
        assert!(matches!(binary, QueryCommandError::Answer { .. }), "{binary}");
    }

    #[tokio::test]
    async fn a_late_or_endless_command_is_killed() {
        let late = answer("sleep", &["1000"], Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(late, QueryCommandError::Late { .. }), "{late}");
        let endless = answer("yes", &[], LIMIT).await.unwrap_err();
        assert!(matches!(endless, QueryCommandError::Failed { .. }), "{endless}");
    }
}
