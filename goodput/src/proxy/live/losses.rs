//! The causes of lost time with their evidence: when, how long, and which chips.

use super::{block::ChipBits, second::SecondState};

/// The longest runs that are named for a loss.
const NAMED_RUNS: usize = 3;

/// A stretch of time in one state. Times are seconds of one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossPiece {
    /// The first second.
    pub from: i64,
    /// The second after the last.
    pub until: i64,
    /// How many of these seconds were in the state: fewer than all where only minutes are kept.
    pub seconds: u64,
    /// The state.
    pub state: SecondState,
    /// The chips that were the reason.
    pub chips: ChipBits,
}

/// One uninterrupted stretch of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossRun {
    /// The first second.
    pub from: i64,
    /// The second after the last.
    pub until: i64,
    /// Lost seconds in it.
    pub seconds: u64,
    /// The chips that were the reason at some time in it.
    pub chips: ChipBits,
}

/// Time that was lost for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLoss {
    /// The reason.
    pub state: SecondState,
    /// All seconds.
    pub seconds: u64,
    /// How many stretches they are.
    pub runs: u64,
    /// The longest stretches, the longest first.
    pub longest: Vec<LossRun>,
}

impl TimeLoss {
    fn add(&mut self, run: LossRun) {
        self.runs += 1;
        self.seconds += run.seconds;
        let at = self.longest.partition_point(|known| known.seconds >= run.seconds);
        self.longest.insert(at, run);
        self.longest.truncate(NAMED_RUNS);
    }
}

/// The losses in pieces that rise in time, the largest first. Neither progress nor what is unknown is a loss.
pub fn losses(pieces: impl IntoIterator<Item = LossPiece>) -> Vec<TimeLoss> {
    let mut losses: Vec<TimeLoss> = Vec::new();
    let mut open: Option<(SecondState, LossRun)> = None;
    for piece in pieces {
        if let Some((state, run)) = &mut open
            && *state == piece.state
            && run.until == piece.from
        {
            run.until = piece.until;
            run.seconds += piece.seconds;
            run.chips |= piece.chips;
            continue;
        }
        let LossPiece { from, until, seconds, state, chips } = piece;
        let next = (state, LossRun { from, until, seconds, chips });
        end(open.replace(next), &mut losses);
    }
    end(open, &mut losses);
    losses.sort_by(|a, b| b.seconds.cmp(&a.seconds).then(a.state.cmp(&b.state)));
    losses
}

fn end(run: Option<(SecondState, LossRun)>, losses: &mut Vec<TimeLoss>) {
    let Some((state, run)) = run.filter(|(state, _)| state.is_known() && !state.is_productive()) else {
        return;
    };
    match losses.iter_mut().find(|loss| loss.state == state) {
        Some(loss) => loss.add(run),
        None => {
            let mut loss = TimeLoss { state, seconds: 0, runs: 0, longest: Vec::new() };
            loss.add(run);
            losses.push(loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_joined_and_the_longest_are_named() {
        let piece = |from: i64, state, chips| LossPiece { from, until: from + 1, seconds: 1, state, chips };
        let mut pieces = Vec::new();
        pieces.extend((0..5).map(|second| piece(second, SecondState::Init, 1)));
        pieces.extend((5..20).map(|second| piece(second, SecondState::Active, 0)));
        // Four stalls, of which two adjoin without being one stretch: another state, and a hole.
        pieces.extend((20..32).map(|second| piece(second, SecondState::Stall, 1 << (second % 2))));
        pieces.extend((32..34).map(|second| piece(second, SecondState::Unknown, 2)));
        pieces.extend((34..40).map(|second| piece(second, SecondState::Stall, 4)));
        pieces.extend((50..57).map(|second| piece(second, SecondState::Stall, 8)));
        pieces.push(piece(70, SecondState::Stall, 1));
        let losses = losses(pieces);
        let shown: Vec<_> = losses.iter().map(|loss| (loss.state, loss.seconds, loss.runs)).collect();
        assert_eq!(shown, [(SecondState::Stall, 26, 4), (SecondState::Init, 5, 1)]);
        let longest: Vec<_> =
            losses[0].longest.iter().map(|run| (run.from, run.until, run.seconds, run.chips)).collect();
        assert_eq!(longest, [(20, 32, 12, 3), (50, 57, 7, 8), (34, 40, 6, 4)]);
    }
}
