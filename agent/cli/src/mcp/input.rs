//! The lines of standard input, read by a thread of its own. A line that is too long is left out, and said to be.

use std::io::{self, BufRead, Read};

use tokio::sync::mpsc;

use crate::failure::Failure;

/// The longest line.
const MAX_LINE: u64 = 1 << 20;
/// Lines that wait: the client waits with the next ones.
const WAITING: usize = 16;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InputLine {
    /// A line without its end.
    Line(Vec<u8>),
    /// A longer one, which was not kept.
    TooLong,
}

/// The lines until the end of the input.
pub(super) fn lines() -> Result<mpsc::Receiver<InputLine>, Failure> {
    let (send, lines) = mpsc::channel(WAITING);
    let read = move || {
        let mut input = io::stdin().lock();
        // An input that cannot be read has ended.
        while let Ok(Some(line)) = next(&mut input, MAX_LINE) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("mcp-input".into())
        .spawn(read)
        .map_err(|error| Failure::internal(format_args!("cannot start a thread: {error}")))?;
    Ok(lines)
}

/// The next line that is not empty; `None` at the end.
fn next(input: &mut impl BufRead, max: u64) -> io::Result<Option<InputLine>> {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(max).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') && read as u64 == max {
            input.skip_until(b'\n')?;
            return Ok(Some(InputLine::TooLong));
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            return Ok(Some(InputLine::Line(text.to_vec())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_does_not_hide_the_next_one() {
        let mut input = io::BufReader::with_capacity(3, &b"abc\r\n\n  \n12345678\nd\n12345"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next(&mut input, 6).unwrap() {
            lines.push(line);
        }
        let line = |text: &str| InputLine::Line(text.as_bytes().to_vec());
        assert_eq!(lines, [line("abc"), InputLine::TooLong, line("d"), line("12345")]);
    }
}
