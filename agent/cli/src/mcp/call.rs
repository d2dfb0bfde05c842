//! One call of a tool: a command of this program, its bounded output, and its failure.

use std::{ffi::OsString, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

use super::arguments::ArgumentError;
use crate::{exit::Exit, failure::Failure};

/// The most of an output that is passed on.
pub(super) const MAX_OUTPUT: usize = 64 << 10;
/// The most of the messages of a command that is looked at.
const MAX_MESSAGES: usize = 8 << 10;
/// What this program calls itself in messages.
const PREFIX: &str = "tpuscope: ";
const WARNING: &str = "warning: ";

/// What a tool answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolText {
    output: String,
    /// What is missing in it. Apart, so that JSON stays JSON.
    note: Option<String>,
}

/// Why a tool has no answer: what failed, what to do, and the exit code of the command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolFailure {
    exit_code: i32,
    what: String,
    remedy: String,
}

impl ToolText {
    pub(super) fn result(&self) -> Value {
        let texts = [Some(&self.output), self.note.as_ref()].into_iter().flatten();
        let content: Vec<Value> = texts.map(|text| json!({ "type": "text", "text": text })).collect();
        json!({ "content": content, "isError": false })
    }
}

impl ToolFailure {
    fn new(exit: Exit, what: String, remedy: &str) -> Self {
        Self { exit_code: exit as i32, what, remedy: remedy.to_owned() }
    }

    pub(super) fn of_arguments(tool: &str, error: &ArgumentError) -> Self {
        let remedy = format!("send arguments as the inputSchema of {tool} has them");
        Self::new(Exit::Usage, error.to_string(), &remedy)
    }

    pub(super) fn too_many(most: usize) -> Self {
        Self::new(Exit::Conflict, format!("{most} calls run already"), "wait for one of them, or cancel it")
    }

    fn late(limit: Duration) -> Self {
        let what = format!("the command did not end within {} s, and was ended", limit.as_secs());
        Self::new(Exit::Timeout, what, "ask for less, or look at the agent: `journalctl -u tpuscope`")
    }

    /// The result, with the error as a model reads it and as a program does.
    pub(super) fn result(&self) -> Value {
        let Self { exit_code, what, remedy } = self;
        let text = if remedy.is_empty() { what.clone() } else { format!("{what}\n{remedy}") };
        json!({
            "content": [{ "type": "text", "text": text }],
            "structuredContent": { "error": { "exit_code": exit_code, "message": what, "remedy": remedy } },
            "isError": true,
        })
    }
}

impl From<Failure> for ToolFailure {
    fn from(failure: Failure) -> Self {
        Self { exit_code: failure.exit as i32, what: failure.what, remedy: failure.remedy }
    }
}

/// Runs the command with these words, and ends it at the limit, or when nobody waits for it any more.
pub(super) async fn run(
    words: &[OsString],
    socket: &[OsString],
    limit: Duration,
) -> Result<ToolText, ToolFailure> {
    // Options of all commands stand before what is no option.
    let options = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (before, after) = words.split_at(options);
    let mut command = Command::new("/proc/self/exe");
    command.args(before).args(socket).args(after).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    timeout(limit, ended(command)).await.unwrap_or_else(|_| Err(ToolFailure::late(limit)))
}

async fn ended(mut command: Command) -> Result<ToolText, ToolFailure> {
    let failed =
        |error: std::io::Error| Failure::internal(format_args!("cannot run a command of tpuscope: {error}"));
    let mut child = command.spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read = async { tokio::join!(first_of(stdout, MAX_OUTPUT), first_of(stderr, MAX_MESSAGES)) };
    let ((output, is_cut), (messages, _)) = read.await;
    // The pipe of an output that is cut is closed: the command ends as behind `head`.
    let status = child.wait().await.map_err(failed)?;
    let code = status.code().unwrap_or(Exit::Internal as i32);
    if is_cut {
        return Ok(truncated(output));
    }
    match code {
        0 => Ok(ToolText { output, note: None }),
        _ if code == Exit::Partial as i32 && !output.is_empty() => {
            let messages = messages.replace(PREFIX, "");
            let missing = if messages.trim().is_empty() { "something is missing" } else { messages.trim() };
            Ok(ToolText { output, note: Some(format!("[incomplete] {missing}")) })
        }
        _ => Err(said(code, &messages)),
    }
}

/// The first bytes of a stream, and whether there are more. It is closed afterwards.
async fn first_of(stream: Option<impl AsyncRead + Unpin>, most: usize) -> (String, bool) {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // A pipe that breaks has ended.
        let _ = stream.take(most as u64 + 1).read_to_end(&mut bytes).await;
    }
    let is_cut = bytes.len() > most;
    bytes.truncate(most);
    (String::from_utf8_lossy(&bytes).into_owned(), is_cut)
}

/// An output of which only the first part is here: whole lines, unless it is one.
fn truncated(mut output: String) -> ToolText {
    if let Some(end) = output.rfind('\n') {
        output.truncate(end + 1);
    }
    let note = format!(
        "[truncated: the first {} KiB; ask for less, such as one chip, a shorter time or a smaller limit]",
        MAX_OUTPUT >> 10
    );
    ToolText { output, note: Some(note) }
}

/// The failure that a command printed: one line, and what to do. Warnings before it are not part of it.
fn said(exit_code: i32, messages: &str) -> ToolFailure {
    let mut lines = messages
        .lines()
        .skip_while(|line| line.strip_prefix(PREFIX).is_none_or(|message| message.starts_with(WARNING)));
    let what = lines
        .next()
        .and_then(|line| line.strip_prefix(PREFIX))
        .unwrap_or("the command failed without a message");
    let remedy: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    ToolFailure { exit_code, what: what.to_owned(), remedy: remedy.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_what_the_command_said() {
        let failure = said(5, "tpuscope: warning: slow\ntpuscope: there is no chip 9\n  chips are 0 to 3\n");
        assert_eq!(
            failure,
            ToolFailure {
                exit_code: 5,
                what: "there is no chip 9".into(),
                remedy: "chips are 0 to 3".into()
            }
        );
        let result = failure.result();
        assert_eq!(result["content"][0]["text"], "there is no chip 9\nchips are 0 to 3");
        assert_eq!(result["structuredContent"]["error"]["exit_code"], 5);
        assert_eq!(said(1, "").what, "the command failed without a message");
        // Other code may print too, as a panic does.
        assert_eq!(said(101, "thread main panicked\n").exit_code, 101);
    }

    #[test]
    fn what_is_missing_of_an_output_is_said_beside_it() {
        let cut = truncated("a\nb\nc".into());
        assert_eq!(cut.output, "a\nb\n");
        let content = &cut.result()["content"];
        assert!(
            content[1]["text"].as_str().unwrap().starts_with("[truncated: the first 64 KiB;"),
            "{content}"
        );
        let whole = ToolText { output: "a".into(), note: None };
        assert_eq!(whole.result()["content"], json!([{ "type": "text", "text": "a" }]));
    }

    #[tokio::test]
    async fn an_output_is_read_up_to_its_bound() {
        let long = vec![b'x'; MAX_OUTPUT + 1];
        let (text, is_cut) = first_of(Some(&long[..]), MAX_OUTPUT).await;
        assert!(is_cut && text.len() == MAX_OUTPUT);
        let (text, is_cut) = first_of(Some(&long[1..]), MAX_OUTPUT).await;
        assert!(!is_cut && text.len() == MAX_OUTPUT);
        assert_eq!(first_of(None::<&[u8]>, 9).await, (String::new(), false));
    }
}
