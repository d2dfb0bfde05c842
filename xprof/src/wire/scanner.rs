//! Fields of messages that are read piece by piece through one buffer.

use std::io::{ErrorKind, Read, Seek, SeekFrom};

use super::{Error, Found, Span, slice::field_number, varint};

/// What the buffer starts with. Large enough that a system call costs nothing per event.
const BUFFER: usize = 256 << 10;
/// A tag and a length.
const LONGEST_HEADER: usize = 20;

/// What follows a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldPayload {
    /// A number, already read.
    Varint(u64),
    /// Eight bytes, already read.
    Fixed64(u64),
    /// Four bytes, already read.
    Fixed32(u32),
    /// This many bytes, not yet read; they lie within the enclosing message.
    Bytes(u64),
}

/// A field's tag and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The field's number.
    pub number: u32,
    /// Kind of the value that follows the tag.
    pub kind: FieldPayload,
    /// Where the tag lies.
    pub at: u64,
}

impl Header {
    /// The length of a length-delimited field.
    pub fn len(&self, expected: &'static str) -> Result<u64, Error> {
        match self.kind {
            FieldPayload::Bytes(len) => Ok(len),
            _ => Err(Error::damaged(self.at, expected, Found::OtherType)),
        }
    }

    /// The number in a varint field.
    pub fn varint(&self, expected: &'static str) -> Result<u64, Error> {
        match self.kind {
            FieldPayload::Varint(value) => Ok(value),
            _ => Err(Error::damaged(self.at, expected, Found::OtherType)),
        }
    }
}

/// A forward reader of nested messages in bounded memory.
#[derive(Debug)]
pub struct Scanner<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of `buffer[start]` in the input.
    offset: u64,
    /// The most bytes that are held at once.
    record: usize,
}

impl<R: Read> Scanner<R> {
    /// A scanner that holds records of up to `record` bytes.
    pub fn new(reader: R, record: usize) -> Self {
        Self { reader, buffer: vec![0; BUFFER], start: 0, end: 0, offset: 0, record: record.max(BUFFER) }
    }

    /// Where the next byte lies in the input.
    #[inline]
    pub fn position(&self) -> u64 {
        self.offset
    }

    /// The most bytes that [`Self::bytes`] hands out.
    pub fn record(&self) -> usize {
        self.record
    }

    /// The next field of a message that ends at `end`; `None` at that end. A message whose end is not known
    /// (`None`) ends with the input.
    pub fn header(&mut self, end: Option<u64>) -> Result<Option<Header>, Error> {
        let at = self.offset;
        let left = end.unwrap_or(u64::MAX).saturating_sub(at);
        if left == 0 {
            return Ok(None);
        }
        let held = self.fill(LONGEST_HEADER)?;
        if held == 0 {
            return match end {
                None => Ok(None),
                Some(_) => Err(Error::damaged(at, "a field", Found::End)),
            };
        }
        let held = held.min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = &self.buffer[self.start..self.start + held];
        let mut used = 0;
        let found = |held| if held < 10 { Found::End } else { Found::Varint };
        let tag = varint(bytes, &mut used).ok_or_else(|| Error::damaged(at, "a field tag", found(held)))?;
        let number = field_number(tag, at)?;
        let kind = match tag & 7 {
            0 => FieldPayload::Varint(
                varint(bytes, &mut used).ok_or_else(|| Error::damaged(at, "a number", found(held - used)))?,
            ),
            1 => FieldPayload::Fixed64(u64::from_le_bytes(fixed(bytes, &mut used, at)?)),
            2 => FieldPayload::Bytes(
                varint(bytes, &mut used).ok_or_else(|| Error::damaged(at, "a length", found(held - used)))?,
            ),
            5 => FieldPayload::Fixed32(u32::from_le_bytes(fixed(bytes, &mut used, at)?)),
            wire => {
                return Err(Error::damaged(at, "a field of a known wire type", Found::WireType(wire as u8)));
            }
        };
        self.advance(used);
        if let FieldPayload::Bytes(claimed) = kind {
            let left = left - used as u64;
            if claimed > left {
                let found = Found::Length { claimed, left };
                return Err(Error::damaged(at, "a field that ends within its message", found));
            }
        }
        Ok(Some(Header { number, kind, at }))
    }

    /// The next `len` bytes, which belong to `what`.
    pub fn bytes(&mut self, len: u64, what: &'static str) -> Result<&[u8], Error> {
        let wanted = match usize::try_from(len) {
            Ok(wanted) if wanted <= self.record => wanted,
            _ => return Err(Error::TooLarge { offset: self.offset, what, limit: self.record as u64 }),
        };
        let held = self.fill(wanted)?;
        if held < wanted {
            return Err(Error::damaged(self.offset + held as u64, what, Found::End));
        }
        let from = self.start;
        self.advance(wanted);
        Ok(&self.buffer[from..from + wanted])
    }

    /// What is buffered of the next `len` bytes, at least one of them; the caller tells with
    /// [`Self::consume`] how much it used. For loops over many small records.
    pub fn window(&mut self, len: u64, wanted: usize, what: &'static str) -> Result<&[u8], Error> {
        if wanted > self.record {
            return Err(Error::TooLarge { offset: self.offset, what, limit: self.record as u64 });
        }
        let held = self.fill(wanted)?;
        if held == 0 {
            return Err(Error::damaged(self.offset, what, Found::End));
        }
        let held = held.min(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(&self.buffer[self.start..self.start + held])
    }

    /// Moves over `len` bytes of what [`Self::window`] showed.
    pub fn consume(&mut self, len: usize) {
        self.advance(len.min(self.end - self.start));
    }

    /// Moves over the next `len` bytes.
    pub fn skip(&mut self, len: u64) -> Result<(), Error> {
        let mut left = len;
        while left > 0 {
            let held = self.fill(1)?;
            if held == 0 {
                return Err(Error::damaged(self.offset, "the rest of a field", Found::End));
            }
            let step = held.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.advance(step);
            left -= step as u64;
        }
        Ok(())
    }

    /// Makes `wanted` bytes contiguous if the input has them; how many are held then (perhaps more).
    #[inline]
    fn fill(&mut self, wanted: usize) -> Result<usize, Error> {
        if self.end - self.start >= wanted {
            return Ok(self.end - self.start);
        }
        self.refill(wanted)
    }

    fn refill(&mut self, wanted: usize) -> Result<usize, Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            if self.end == self.buffer.len() {
                // Only what really arrived makes the buffer grow, whatever a length claims.
                let grown = (self.buffer.len() * 2).min(self.record);
                self.buffer.resize(grown, 0);
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { offset: self.offset + self.end as u64, source }),
            }
        }
        Ok(self.end)
    }

    #[inline]
    fn advance(&mut self, by: usize) {
        self.start += by;
        self.offset += by as u64;
    }
}

impl<R: Read + Seek> Scanner<R> {
    /// Goes to `offset`, forward or back; within the buffer that costs nothing.
    pub fn seek(&mut self, offset: u64) -> Result<(), Error> {
        let begin = self.offset - self.start as u64;
        if (begin..=begin + self.end as u64).contains(&offset) {
            (self.start, self.offset) = ((offset - begin) as usize, offset);
            return Ok(());
        }
        self.reader.seek(SeekFrom::Start(offset)).map_err(|source| Error::Io { offset, source })?;
        (self.start, self.end, self.offset) = (0, 0, offset);
        Ok(())
    }

    /// The length of the input; the position stays.
    pub fn input_len(&mut self) -> Result<u64, Error> {
        let ends = |source| Error::Io { offset: 0, source };
        let len = self.reader.seek(SeekFrom::End(0)).map_err(ends)?;
        let behind_buffer = self.offset + (self.end - self.start) as u64;
        self.reader.seek(SeekFrom::Start(behind_buffer)).map_err(ends)?;
        Ok(len)
    }

    /// Hands the bytes of `span` to `sink` in pieces, to be copied as they are.
    pub fn copy<E: From<Error>>(
        &mut self,
        span: Span,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.seek(span.offset)?;
        let mut left = span.len;
        while left > 0 {
            let piece = self.window(left, 1, "the rest of a field")?;
            let used = piece.len();
            sink(piece)?;
            self.consume(used);
            left -= used as u64;
        }
        Ok(())
    }
}

fn fixed<const N: usize>(bytes: &[u8], used: &mut usize, at: u64) -> Result<[u8; N], Error> {
    let mut fixed = [0; N];
    let Some(found) = bytes.get(*used..*used + N) else {
        return Err(Error::damaged(at, "a fixed number", Found::End));
    };
    fixed.copy_from_slice(found);
    *used += N;
    Ok(fixed)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    /// Larger than two buffers, and no two places alike.
    fn input() -> Vec<u8> {
        (0..(BUFFER as u32) / 4 * 3).flat_map(u32::to_le_bytes).collect()
    }

    proptest! {
        #[test]
        fn every_place_has_its_bytes_however_one_came_there(
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0..2 * BUFFER, any::<bool>()), 1..40),
        ) {
            let input = input();
            let mut scanner = Scanner::new(Cursor::new(&input), BUFFER);
            for (place, near, back) in steps {
                let here = scanner.position() as usize;
                let place = match back {
                    true => here.saturating_sub(near % 1000),
                    false => place.index(input.len()),
                };
                scanner.seek(place as u64).unwrap();
                prop_assert_eq!(scanner.position(), place as u64);
                let wanted = near.min(BUFFER).min(input.len() - place);
                prop_assert_eq!(scanner.bytes(wanted as u64, "bytes").unwrap(), &input[place..place + wanted]);
                prop_assert_eq!(scanner.input_len().unwrap(), input.len() as u64);
            }
        }
    }
}
