//! Writes nested messages whose length is known only when they end.

use std::io::{self, BufWriter, Seek, SeekFrom, Write};

/// An open length is a varint of five bytes: valid for every parser, and good for 32 GiB.
const OPEN: [u8; 5] = [0x80, 0x80, 0x80, 0x80, 0x00];

/// Something that can be written anywhere.
pub trait WriteSeek: Write + Seek {}
impl<T: Write + Seek> WriteSeek for T {}

/// The output, and the lengths that are to be filled in.
pub(super) struct Output<'o> {
    out: BufWriter<&'o mut dyn WriteSeek>,
    at: u64,
    open: Vec<u64>,
    /// Where a length stands and what it is.
    lengths: Vec<(u64, u64)>,
}

impl<'o> Output<'o> {
    pub(super) fn new(out: &'o mut dyn WriteSeek) -> Self {
        Self { out: BufWriter::with_capacity(256 << 10, out), at: 0, open: Vec::new(), lengths: Vec::new() }
    }

    /// Writes bytes as they are.
    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Begins the message in field `number` (below 16).
    pub(super) fn begin(&mut self, number: u8) -> io::Result<()> {
        self.raw(&[number << 3 | 2])?;
        self.open.push(self.at);
        self.raw(&OPEN)
    }

    /// Ends the message that was started last.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let from = self.open.pop().expect("every end has its begin");
        let len = self.at - from - OPEN.len() as u64;
        if len >= 1 << 35 {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "one plane of more than 32 GiB"));
        }
        self.lengths.push((from, len));
        Ok(())
    }

    /// Fills in the lengths, and returns how many bytes there are.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        for (at, len) in self.lengths {
            self.out.seek(SeekFrom::Start(at))?;
            let mut bytes = OPEN;
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte |= (len >> (7 * i)) as u8 & 0x7f;
            }
            self.out.write_all(&bytes)?;
        }
        self.out.seek(SeekFrom::Start(self.at))?;
        self.out.flush()?;
        Ok(self.at)
    }
}
