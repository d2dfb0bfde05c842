//! Splits an exported log into its entries: one JSON object per line, or one JSON array of objects.
//!
//! The text comes in chunks of any size. Memory is bounded by the size of one entry. The splitter finds only the
//! bounds of entries; it must never accept more of their content than [`MAX_ENTRY_BYTES`].

/// The maximum size of an entry in bytes. Cloud Logging's own limit is 256 KiB.
pub const MAX_ENTRY_BYTES: usize = 1 << 20;
/// The byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Why a text cannot be split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct SplitError {
    /// The line, from 1.
    pub line: u64,
    /// The error in that line.
    pub fault: SplitFault,
}

/// An error in the structure of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SplitFault {
    /// The text is neither lines of objects nor an array.
    #[error("the file is not a log: it begins with neither {{ nor [")]
    NotALog,
    /// The array has an element that is not an object.
    #[error("the array holds something else than log entries")]
    NotEntries,
    /// There is text after the array.
    #[error("there is text after the end of the array")]
    AfterArray,
    /// An entry is larger than the limit.
    #[error("an entry of more than {} KiB; the file is not an exported log", MAX_ENTRY_BYTES >> 10)]
    TooLong,
    /// The text has no entry and no array.
    #[error("the file is empty")]
    Empty,
}

/// The end of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEnd {
    /// The text is complete.
    Complete,
    /// The last line has no line feed. It may be an incomplete entry.
    LastLine {
        /// The line, from 1.
        line: u64,
        /// The text of the line.
        text: Vec<u8>,
    },
    /// The array ends in this line, within an entry or before its closing bracket.
    Cut {
        /// The line, from 1.
        line: u64,
    },
}

/// The position in the structure of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before the first byte that is not white space, after this many bytes of a byte order mark.
    Start { mark: usize },
    /// In a line.
    Line,
    /// In the array, between entries.
    Between,
    /// In an entry of the array.
    Inside { depth: usize, text: bool, escaped: bool },
    /// After the array.
    Done,
}

/// Splits one text.
#[derive(Debug)]
pub struct LogSplitter {
    position: Position,
    array: bool,
    line: u64,
    item: Vec<u8>,
    item_line: u64,
}

impl Default for LogSplitter {
    fn default() -> Self {
        let position = Position::Start { mark: 0 };
        Self { position, array: false, line: 1, item: Vec::new(), item_line: 1 }
    }
}

impl LogSplitter {
    /// A splitter at the start of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the text is one array.
    pub fn is_array(&self) -> bool {
        self.array
    }

    /// Reads the next chunk. Passes each line or element that ends in it to `each`, with the number of its first
    /// line; blank lines too.
    ///
    /// # Errors
    /// A [`SplitError`], or the first error of `each`.
    pub fn push<E: From<SplitError>>(
        &mut self,
        mut chunk: &[u8],
        each: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !chunk.is_empty() {
            chunk = match self.position {
                Position::Start { mark } => self.start(mark, chunk)?,
                Position::Line => self.line(chunk, each)?,
                Position::Between => self.between(chunk)?,
                Position::Inside { depth, text, escaped } => {
                    self.inside(depth, (text, escaped), chunk, each)?
                }
                Position::Done => self.done(chunk)?,
            };
        }
        Ok(())
    }

    /// The end of the text.
    ///
    /// # Errors
    /// If there was no text.
    pub fn finish(self) -> Result<LogEnd, SplitError> {
        match self.position {
            Position::Start { .. } => Err(self.fault(SplitFault::Empty)),
            Position::Line => Ok(LogEnd::LastLine { line: self.item_line, text: self.item }),
            Position::Between | Position::Inside { .. } => Ok(LogEnd::Cut { line: self.line }),
            Position::Done => Ok(LogEnd::Complete),
        }
    }

    /// The first byte that is neither white space nor of the byte order mark decides the form of the text.
    fn start<'b>(&mut self, mark: usize, chunk: &'b [u8]) -> Result<&'b [u8], SplitError> {
        let after_mark = Position::Start { mark: BYTE_ORDER_MARK.len() };
        match BYTE_ORDER_MARK.get(mark) {
            Some(byte) if chunk[0] == *byte => {
                self.position = Position::Start { mark: mark + 1 };
                return Ok(&chunk[1..]);
            }
            Some(_) if mark > 0 => return Err(self.fault(SplitFault::NotALog)),
            _ => self.position = after_mark,
        }
        let Some(at) = self.skip_space(chunk) else { return Ok(&[]) };
        self.item_line = self.line;
        match chunk[at] {
            b'[' => {
                (self.position, self.array) = (Position::Between, true);
                Ok(&chunk[at + 1..])
            }
            b'{' => {
                self.position = Position::Line;
                Ok(&chunk[at..])
            }
            _ => Err(self.fault(SplitFault::NotALog)),
        }
    }

    /// The index of the first byte that is not white space; counts lines.
    fn skip_space(&mut self, chunk: &[u8]) -> Option<usize> {
        let at = chunk.iter().position(|byte| !byte.is_ascii_whitespace());
        let space = &chunk[..at.unwrap_or(chunk.len())];
        self.line += memchr::memchr_iter(b'\n', space).count() as u64;
        at
    }

    fn line<'b, E: From<SplitError>>(
        &mut self,
        chunk: &'b [u8],
        each: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<&'b [u8], E> {
        let Some(end) = memchr::memchr(b'\n', chunk) else {
            self.collect(chunk)?;
            return Ok(&[]);
        };
        self.item(&chunk[..end], each)?;
        self.line += 1;
        self.item_line = self.line;
        Ok(&chunk[end + 1..])
    }

    fn between<'b>(&mut self, chunk: &'b [u8]) -> Result<&'b [u8], SplitError> {
        let Some(at) = self.skip_space(chunk) else { return Ok(&[]) };
        match chunk[at] {
            b',' => Ok(&chunk[at + 1..]),
            b']' => {
                self.position = Position::Done;
                Ok(&chunk[at + 1..])
            }
            b'{' => {
                self.position = Position::Inside { depth: 0, text: false, escaped: false };
                self.item_line = self.line;
                Ok(&chunk[at..])
            }
            _ => {
                self.item_line = self.line;
                Err(self.fault(SplitFault::NotEntries))
            }
        }
    }

    fn inside<'b, E: From<SplitError>>(
        &mut self,
        mut depth: usize,
        (mut text, mut escaped): (bool, bool),
        chunk: &'b [u8],
        each: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<&'b [u8], E> {
        for (at, byte) in chunk.iter().enumerate() {
            self.line += u64::from(*byte == b'\n');
            match byte {
                _ if escaped => escaped = false,
                b'\\' if text => escaped = true,
                b'"' => text = !text,
                b'{' | b'[' if !text => depth += 1,
                b'}' | b']' if !text => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.position = Position::Between;
                self.item(&chunk[..=at], each)?;
                return Ok(&chunk[at + 1..]);
            }
        }
        self.position = Position::Inside { depth, text, escaped };
        self.collect(chunk)?;
        Ok(&[])
    }

    fn done<'b>(&mut self, chunk: &'b [u8]) -> Result<&'b [u8], SplitError> {
        if self.skip_space(chunk).is_some() {
            self.item_line = self.line;
            return Err(self.fault(SplitFault::AfterArray));
        }
        Ok(&[])
    }

    /// Passes on the collected bytes with the last part of them. Without collected bytes nothing is copied.
    fn item<E: From<SplitError>>(
        &mut self,
        last: &[u8],
        each: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.item.is_empty() && last.len() <= MAX_ENTRY_BYTES {
            return each(self.item_line, last);
        }
        self.collect(last)?;
        let result = each(self.item_line, &self.item);
        self.item.clear();
        result
    }

    fn collect(&mut self, bytes: &[u8]) -> Result<(), SplitError> {
        if self.item.len() + bytes.len() > MAX_ENTRY_BYTES {
            return Err(self.fault(SplitFault::TooLong));
        }
        self.item.extend_from_slice(bytes);
        Ok(())
    }

    fn fault(&self, fault: SplitFault) -> SplitError {
        SplitError { line: self.item_line, fault }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Split = (Vec<(u64, String)>, Result<LogEnd, SplitError>);

    fn split(text: &[u8], chunk: usize) -> Split {
        let (mut splitter, mut items) = (LogSplitter::new(), Vec::new());
        let mut each = |line, item: &[u8]| {
            items.push((line, String::from_utf8_lossy(item).into_owned()));
            Ok::<(), SplitError>(())
        };
        let pushed = text.chunks(chunk).try_for_each(|chunk| splitter.push(chunk, &mut each));
        (items, pushed.and_then(|()| splitter.finish()))
    }

    fn items(text: &str) -> Vec<(u64, String)> {
        let (items, end) = split(text.as_bytes(), usize::MAX);
        assert!(end.is_ok(), "{end:?}");
        items
    }

    #[test]
    fn lines_and_arrays_have_the_same_entries() {
        let item = |line, text: &str| (line, text.to_owned());
        assert_eq!(items("\u{feff}\n{\"a\":1}\n\n{}\n"), [item(2, "{\"a\":1}"), item(3, ""), item(4, "{}")]);
        let array = "[{\"a\":\n[1]},\n {\"}\\\"\": {}}\n]\n";
        assert_eq!(items(array), [item(1, "{\"a\":\n[1]}"), item(3, "{\"}\\\"\": {}}")]);
    }

    #[test]
    fn ends_and_faults_name_their_line() {
        let end = |text: &str| split(text.as_bytes(), 3).1;
        let fault = |line, fault| Err(SplitError { line, fault });
        assert_eq!(end("[{}]\n"), Ok(LogEnd::Complete));
        assert_eq!(end("{}\n{"), Ok(LogEnd::LastLine { line: 2, text: b"{".to_vec() }));
        assert_eq!(end("[\n{},\n{"), Ok(LogEnd::Cut { line: 3 }));
        assert_eq!(end(" \n"), fault(1, SplitFault::Empty));
        assert_eq!(end("\nhello"), fault(2, SplitFault::NotALog));
        assert_eq!(end("[{},\n7]"), fault(2, SplitFault::NotEntries));
        assert_eq!(end("[]\n\n[]"), fault(3, SplitFault::AfterArray));
        assert_eq!(end(&format!("{{}}\n{}", "x".repeat(MAX_ENTRY_BYTES + 1))), fault(2, SplitFault::TooLong));
    }

    proptest! {
        #[test]
        fn the_size_of_chunks_makes_no_difference(
            text in "(\u{feff})?[ \n]{0,2}[\\[{]([{}\\[\\]\",\\\\\n a]){0,40}",
            chunk in 1..20usize,
        ) {
            prop_assert_eq!(split(text.as_bytes(), chunk), split(text.as_bytes(), usize::MAX));
        }
    }
}
