//! Numbers of a message that arrives in pieces.

/// A varint whose bytes come one at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PushedVarint {
    value: u64,
    bytes: u32,
}

impl PushedVarint {
    /// Takes one byte; the value once complete; `Err` when it is too long.
    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<u64>, ()> {
        let bits = u64::from(byte & 0x7f);
        if self.bytes == 9 && bits > 1 || self.bytes > 9 {
            return Err(());
        }
        self.value |= bits << (7 * self.bytes);
        self.bytes += 1;
        Ok((byte < 0x80).then_some(self.value))
    }

    /// Whether a byte of it was taken.
    pub(crate) fn is_open(self) -> bool {
        self.bytes > 0
    }
}
