//! Looks for the mark of a session in its trace while it is written.
//!
//! A profiler writes the options of the start into each snapshot, so a snapshot with our mark is of our session. Must never
//! change or hold back a byte.

use std::io::{self, Write};

use memchr::memmem;

/// A sink that knows whether a mark went through it.
#[derive(Debug)]
pub(super) struct MarkedSink<W> {
    sink: W,
    mark: Vec<u8>,
    /// The last bytes that were written, fewer than the mark has.
    tail: Vec<u8>,
    found: bool,
}

impl<W> MarkedSink<W> {
    pub(super) fn new(sink: W, mark: &str) -> Self {
        Self { sink, mark: mark.as_bytes().to_owned(), tail: Vec::new(), found: false }
    }

    /// The sink, and whether the mark was in what was written.
    pub(super) fn into_parts(self) -> (W, bool) {
        (self.sink, self.found)
    }

    fn look(&mut self, bytes: &[u8]) {
        if self.found {
            return;
        }
        let keep = self.mark.len().saturating_sub(1);
        // A mark that begins in the bytes before ends within so many bytes of these.
        self.tail.extend_from_slice(&bytes[..bytes.len().min(keep)]);
        self.found =
            memmem::find(&self.tail, &self.mark).is_some() || memmem::find(bytes, &self.mark).is_some();
        if bytes.len() > keep {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - keep..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(keep));
        }
    }
}

impl<W: Write> Write for MarkedSink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.look(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_mark_is_found_however_it_is_cut(
            text in "[ab]{0,24}",
            mark in "[ab]{1,6}",
            cuts in prop::collection::vec(1..7_usize, 1..30),
        ) {
            let mut sink = MarkedSink::new(Vec::new(), &mark);
            let (mut rest, mut cuts) = (text.as_bytes(), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                sink.write_all(piece).unwrap();
                rest = after;
            }
            let (written, found) = sink.into_parts();
            prop_assert_eq!(written, text.as_bytes());
            prop_assert_eq!(found, text.contains(&mark));
        }
    }
}
