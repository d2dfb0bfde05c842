//! The time of a job divided into pieces. Where claims overlap, the claim with the highest priority has the piece.

use std::collections::BTreeMap;

use crate::badput::BadputType;

/// The bucket of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceLabel {
    Productive,
    Lost(BadputType),
    /// A custom event by the number of its type.
    Custom(u32),
}

/// A claim of a bucket on a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) label: PieceLabel,
    pub(super) start: i64,
    pub(super) end: i64,
}

impl PieceLabel {
    /// The priority of a claim: lost work is first, then events that block training, then training, then events
    /// outside of training.
    fn priority(self) -> (u8, u32) {
        use BadputType as B;
        match self {
            PieceLabel::Lost(B::WastedProgress) => (12, 0),
            PieceLabel::Lost(B::ElasticReinitialization) => (11, 0),
            PieceLabel::Lost(B::ElasticScaleUp) => (10, 1),
            PieceLabel::Lost(B::ElasticSliceDown) => (10, 0),
            PieceLabel::Custom(kind) => (9, u32::MAX - kind),
            PieceLabel::Lost(B::CheckpointSave) => (8, 0),
            PieceLabel::Lost(B::ProgramStartup) => (7, 0),
            PieceLabel::Productive => (6, 0),
            PieceLabel::Lost(B::CheckpointRestore) => (5, 0),
            PieceLabel::Lost(B::TpuInitialization) => (4, 0),
            PieceLabel::Lost(B::DataLoadingSync) => (3, 0),
            PieceLabel::Lost(B::TrainingPrep) => (2, 0),
            PieceLabel::Lost(B::InfrastructureRecovery) => (1, 0),
            PieceLabel::Lost(B::Other | B::DataLoadingAsync | B::CustomEvents) => (0, 0),
        }
    }
}

/// The pieces in order, without gaps.
#[derive(Debug)]
pub(super) struct Timeline(Vec<(i64, i64, PieceLabel)>);

impl Timeline {
    /// Divides `start..end` by the claims. A piece without a claim is [`BadputType::Other`].
    pub(super) fn new(start: i64, end: i64, claims: Vec<Claim>) -> Self {
        let mut boundaries: Vec<(i64, bool, PieceLabel)> = Vec::with_capacity(claims.len() * 2);
        for claim in claims {
            let (from, to) = (claim.start.max(start), claim.end.min(end));
            if from < to {
                boundaries.push((from, true, claim.label));
                boundaries.push((to, false, claim.label));
            }
        }
        boundaries.sort_unstable_by_key(|(at, ..)| *at);
        let mut pieces: Vec<(i64, i64, PieceLabel)> = Vec::new();
        let mut active: BTreeMap<(u8, u32), (PieceLabel, u32)> = BTreeMap::new();
        let mut from = start;
        for (at, begins, label) in boundaries {
            if at > from {
                push(&mut pieces, from, at, highest(&active));
                from = at;
            }
            if begins {
                active.entry(label.priority()).or_insert((label, 0)).1 += 1;
            } else if let Some((_, count)) = active.get_mut(&label.priority()) {
                *count -= 1;
                if *count == 0 {
                    active.remove(&label.priority());
                }
            }
        }
        push(&mut pieces, from, end, highest(&active));
        Self(pieces)
    }

    /// The pieces between two times, cut at these times.
    pub(super) fn within(&self, start: i64, end: i64) -> impl Iterator<Item = (PieceLabel, i64, i64)> {
        let first = self.0.partition_point(|piece| piece.1 <= start);
        self.0[first..]
            .iter()
            .take_while(move |piece| piece.0 < end)
            .map(move |piece| (piece.2, piece.0.max(start), piece.1.min(end)))
    }
}

fn highest(active: &BTreeMap<(u8, u32), (PieceLabel, u32)>) -> PieceLabel {
    active.last_key_value().map_or(PieceLabel::Lost(BadputType::Other), |(_, (label, _))| *label)
}

fn push(pieces: &mut Vec<(i64, i64, PieceLabel)>, from: i64, to: i64, label: PieceLabel) {
    match pieces.last_mut() {
        _ if from >= to => {}
        Some(last) if last.2 == label => last.1 = to,
        _ => pieces.push((from, to, label)),
    }
}
