//! An hour of a ledger by the minute: how many seconds of each minute were in which state.

use super::{
    block::{BLOCK_SECONDS, LedgerBlock},
    counts::SecondCounts,
    second::SecondState,
};

const STATES: usize = SecondState::ALL.len();
const MINUTES: usize = 60;
/// The form of the bytes.
const FORM: u8 = 1;

/// One hour by the minute, or the part of it that has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinuteBlock {
    number: u64,
    minutes: Vec<[u8; STATES]>,
}

impl From<&LedgerBlock> for MinuteBlock {
    fn from(block: &LedgerBlock) -> Self {
        let mut minutes = Vec::new();
        for offset in 0..block.len() {
            if offset.is_multiple_of(60) {
                minutes.push([0; STATES]);
            }
            if let Some(minute) = minutes.last_mut() {
                minute[usize::from(block.state(offset).code())] += 1;
            }
        }
        Self { number: block.number(), minutes }
    }
}

impl MinuteBlock {
    /// Each minute with its first second, counted from the first of the ledger, and its seconds by state.
    pub fn minutes(&self) -> impl Iterator<Item = (u64, SecondCounts)> + '_ {
        let first = self.number.saturating_mul(BLOCK_SECONDS);
        (0_u64..).zip(&self.minutes).map(move |(minute, states)| {
            let mut counts = SecondCounts::default();
            for (state, seconds) in SecondState::ALL.into_iter().zip(states) {
                counts.add(state, u64::from(*seconds));
            }
            (first + minute * 60, counts)
        })
    }

    /// The bytes to keep.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![FORM];
        bytes.extend(self.minutes.iter().flatten());
        bytes
    }

    /// Reads what [`MinuteBlock::to_bytes`] wrote; `None` of other bytes.
    pub fn from_bytes(number: u64, bytes: &[u8]) -> Option<Self> {
        let (form, rest) = bytes.split_first()?;
        let (minutes, left) = rest.as_chunks::<STATES>();
        let is_minute =
            |states: &[u8; STATES]| states.iter().map(|seconds| u32::from(*seconds)).sum::<u32>() <= 60;
        let is_whole = *form == FORM && left.is_empty() && minutes.len() <= MINUTES;
        (is_whole && minutes.iter().all(is_minute)).then(|| Self { number, minutes: minutes.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_keeps_the_seconds_of_each_minute() {
        let mut block = LedgerBlock::new(2);
        (0..150_u64).for_each(|second| {
            block.push(if second < 90 { SecondState::Active } else { SecondState::Save }, 0);
        });
        let minutes = MinuteBlock::from(&block);
        let shown: Vec<_> = minutes
            .minutes()
            .map(|(first, counts)| (first, counts.productive(), counts.of(SecondState::Save)))
            .collect();
        assert_eq!(shown, [(7200, 60, 0), (7260, 30, 30), (7320, 0, 30)]);
        let bytes = minutes.to_bytes();
        assert_eq!(MinuteBlock::from_bytes(2, &bytes), Some(minutes));
        assert_eq!(MinuteBlock::from_bytes(2, &bytes[..bytes.len() - 1]), None);
        assert_eq!(MinuteBlock::from_bytes(2, &[FORM; 721 + 12]), None, "more than an hour");
        assert_eq!(MinuteBlock::from_bytes(2, &[[FORM].as_slice(), &[9; 12]].concat()), None, "108 s");
        assert_eq!(MinuteBlock::from_bytes(2, &[]), None);
    }
}
