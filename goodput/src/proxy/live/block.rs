//! An hour of seconds in a form that can be kept: four bits a second, and which chips were the reason.
//!
//! Must never take bytes that it cannot read for a state: what is missing is unobserved.

use super::second::SecondState;

/// Seconds of a block.
pub const BLOCK_SECONDS: u64 = 3600;
/// The most changes of the chips in a block. A chip that changes each second would need 3600.
const MOST_CHANGES: usize = 512;
/// The form of the bytes.
const FORM: u8 = 1;

/// The chips that were the reason for a state, one bit for each chip number below 64.
pub type ChipBits = u64;

/// Which chips is not recorded: they changed too often.
const NOT_RECORDED: ChipBits = ChipBits::MAX;

/// One hour of the seconds of a ledger, or the part of it that has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerBlock {
    number: u64,
    length: u16,
    /// Two seconds to a byte, the earlier one in the low bits.
    states: Vec<u8>,
    /// Since which second of the block which chips are the reason.
    chips: Vec<(u16, ChipBits)>,
}

impl LedgerBlock {
    /// An empty block. Its first second is `number` hours after the first of the ledger.
    pub fn new(number: u64) -> Self {
        Self { number, length: 0, states: Vec::new(), chips: Vec::new() }
    }

    /// Which block it is.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The first second, counted from the first of the ledger.
    pub fn first(&self) -> u64 {
        self.number.saturating_mul(BLOCK_SECONDS)
    }

    /// The number of seconds.
    pub fn len(&self) -> u64 {
        u64::from(self.length)
    }

    /// Whether it has no second.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether it has all of its seconds.
    pub fn is_full(&self) -> bool {
        self.len() >= BLOCK_SECONDS
    }

    /// Adds a second. A full block stays as it is.
    pub(super) fn push(&mut self, state: SecondState, chips: ChipBits) {
        if self.is_full() {
            return;
        }
        if self.chips.last().map_or(0, |last| last.1) != chips && self.chips.len() < MOST_CHANGES {
            let chips = if self.chips.len() + 1 == MOST_CHANGES { NOT_RECORDED } else { chips };
            self.chips.push((self.length, chips));
        }
        if self.length.is_multiple_of(2) {
            self.states.push(state.code());
        } else if let Some(last) = self.states.last_mut() {
            *last |= state.code() << 4;
        }
        self.length += 1;
    }

    /// The state of a second of this block.
    pub fn state(&self, offset: u64) -> SecondState {
        if offset >= self.len() {
            return SecondState::Unobserved;
        }
        let byte = usize::try_from(offset / 2).ok().and_then(|at| self.states.get(at)).copied().unwrap_or(0);
        SecondState::of_code(if offset.is_multiple_of(2) { byte & 0xf } else { byte >> 4 })
    }

    /// Changes a second that it has.
    pub(super) fn set(&mut self, offset: u64, state: SecondState) {
        let at = usize::try_from(offset / 2).ok();
        let Some(byte) = at.filter(|_| offset < self.len()).and_then(|at| self.states.get_mut(at)) else {
            return;
        };
        *byte = match offset.is_multiple_of(2) {
            true => *byte & 0xf0 | state.code(),
            false => *byte & 0x0f | state.code() << 4,
        };
    }

    /// Each second with its state and the chips that were the reason; no chip where that is not recorded.
    pub fn seconds(&self) -> impl Iterator<Item = (u64, SecondState, ChipBits)> + '_ {
        let mut changes = self.chips.iter().peekable();
        let mut now = 0;
        (0..self.len()).map(move |offset| {
            while let Some((_, chips)) = changes.next_if(|change| u64::from(change.0) <= offset) {
                now = if *chips == NOT_RECORDED { 0 } else { *chips };
            }
            (self.first() + offset, self.state(offset), now)
        })
    }

    /// The bytes to keep.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + self.chips.len() * 10 + self.states.len());
        bytes.push(FORM);
        bytes.extend(self.length.to_le_bytes());
        bytes.extend(u16::try_from(self.chips.len()).unwrap_or(u16::MAX).to_le_bytes());
        for (offset, chips) in &self.chips {
            bytes.extend(offset.to_le_bytes());
            bytes.extend(chips.to_le_bytes());
        }
        bytes.extend(&self.states);
        bytes
    }

    /// Reads what [`LedgerBlock::to_bytes`] wrote; `None` of other bytes.
    pub fn from_bytes(number: u64, bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<5>()?;
        let length = u16::from_le_bytes([head[1], head[2]]);
        let changes = usize::from(u16::from_le_bytes([head[3], head[4]]));
        let (chips, states) = rest.split_at_checked(changes.checked_mul(10)?)?;
        let fits = u64::from(length) <= BLOCK_SECONDS && states.len() == usize::from(length.div_ceil(2));
        if head[0] != FORM || !fits || changes > MOST_CHANGES {
            return None;
        }
        let chips = chips.as_chunks::<10>().0.iter().map(|chunk| {
            let [a, b, chips @ ..] = *chunk;
            (u16::from_le_bytes([a, b]), ChipBits::from_le_bytes(chips))
        });
        Some(Self { number, length, states: states.to_vec(), chips: chips.collect() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is kept is read again, and any other bytes are refused or read without harm.
        #[test]
        fn bytes_are_read_as_they_were_written(
            seconds in prop::collection::vec((0_u8..12, 0_u64..4), 0..3700),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut block = LedgerBlock::new(7);
            for (code, chips) in &seconds {
                block.push(SecondState::of_code(*code), *chips);
            }
            let bytes = block.to_bytes();
            prop_assert_eq!(LedgerBlock::from_bytes(7, &bytes), Some(block.clone()));
            let read: Vec<_> = block.seconds().map(|(_, state, _)| state.code()).collect();
            let wanted: Vec<_> = seconds.iter().take(3600).map(|second| second.0).collect();
            prop_assert_eq!(read, wanted);
            let shorter = &bytes[..cut.index(bytes.len())];
            prop_assert_eq!(LedgerBlock::from_bytes(7, shorter), None);
        }
    }

    #[test]
    fn chips_that_change_too_often_are_not_recorded_any_more() {
        let mut block = LedgerBlock::new(0);
        for second in 0..3600_u64 {
            block.push(SecondState::Stall, second % 2 + 1);
        }
        let chips: Vec<_> = block.seconds().map(|second| second.2).collect();
        assert_eq!((chips[0], chips[1], chips[510], chips[511], chips[3599]), (1, 2, 1, 0, 0));
        block.set(3599, SecondState::Save);
        assert_eq!((block.state(3599), block.state(3598)), (SecondState::Save, SecondState::Stall));
        assert!(block.to_bytes().len() < 8 << 10);
    }
}
