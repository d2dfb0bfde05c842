//! Buckets and ratios over the slots.

use serde::Serialize;

use super::{
    estimated::Estimated,
    limits::{HBM0, MIN_COVER, MIN_SECONDS},
    observations::{Hbm, HostObservations},
    slots::{SlotState, Slots, ceil, floor},
};

/// Seconds by bucket; they add up to the elapsed seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SlotBuckets {
    /// Active.
    pub productive: usize,
    /// Idle before the first active slot of an attempt, without memory in use.
    pub init: usize,
    /// Idle before the first active slot of an attempt, with memory in use.
    pub prep: usize,
    /// Idle after the first active slot of an attempt.
    pub stall: usize,
    /// Only some of the chips open.
    pub partial: usize,
    /// No chip open.
    pub recovery: usize,
    /// Unknown.
    pub unknown: usize,
}

impl SlotBuckets {
    fn elapsed(&self) -> usize {
        self.productive + self.init + self.prep + self.stall + self.partial + self.recovery + self.unknown
    }
}

/// The proxy of one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "docs/goodput.md describes every field")]
pub struct Proxy {
    pub elapsed_s: usize,
    pub buckets: SlotBuckets,
    pub productive_raw_s: usize,
    pub coverage: f64,
    pub proxy_runtime_goodput: Option<f64>,
    pub proxy_runtime_goodput_raw: Option<f64>,
    pub proxy_runtime_goodput_while_open: Option<f64>,
    pub proxy_runtime_goodput_60s: Option<f64>,
    pub scheduling_goodput: Option<f64>,
    pub scheduling_origin: &'static str,
    pub wasted_s: Option<usize>,
    pub proxy_minus_wasted: Option<f64>,
    #[serde(flatten)]
    pub estimated: Option<Estimated>,
}

/// `part / whole`; `None` if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "seconds of at most 400 days")]
pub(super) fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The seconds that the figures follow from.
pub(super) struct ProxyCounts {
    pub(super) buckets: SlotBuckets,
    /// Active, without filled gaps.
    pub(super) raw: usize,
    /// With all chips open.
    pub(super) open: usize,
    /// Since the creation of the job or the first open.
    pub(super) since: usize,
    pub(super) is_created_known: bool,
    /// Full minutes that were active at their end, of all.
    pub(super) minutes: (usize, usize),
}

pub(super) fn ratios(
    observed: &HostObservations,
    slots: &Slots,
    wasted: Option<usize>,
    estimated: Option<Estimated>,
) -> Proxy {
    let created = observed.created_at.map_or(slots.first, |created| ceil(created).min(slots.first));
    let counts = ProxyCounts {
        buckets: buckets(observed, slots),
        raw: slots.raw.iter().filter(|state| **state == SlotState::Active).count(),
        open: slots.all_open.iter().filter(|open| **open).count(),
        since: usize::try_from(floor(observed.now).saturating_sub(created)).unwrap_or(0),
        is_created_known: observed.created_at.is_some(),
        minutes: (slots.minutes.iter().filter(|active| **active).count(), slots.minutes.len()),
    };
    Proxy::of(&counts, wasted, estimated)
}

impl Proxy {
    pub(super) fn of(counts: &ProxyCounts, wasted: Option<usize>, estimated: Option<Estimated>) -> Self {
        let buckets = counts.buckets;
        let elapsed = buckets.elapsed();
        let known = elapsed - buckets.unknown;
        let coverage = share(known, elapsed).unwrap_or(0.0);
        let long_enough = elapsed >= MIN_SECONDS;
        let ratio =
            |part: usize, whole: usize| share(part, whole).filter(|_| long_enough && coverage >= MIN_COVER);
        let known_open = buckets.productive + buckets.init + buckets.prep + buckets.stall;
        Self {
            elapsed_s: elapsed,
            buckets,
            productive_raw_s: counts.raw,
            coverage,
            proxy_runtime_goodput: ratio(buckets.productive, known),
            proxy_runtime_goodput_raw: ratio(counts.raw, known),
            proxy_runtime_goodput_while_open: ratio(buckets.productive, known_open),
            proxy_runtime_goodput_60s: share(counts.minutes.0, counts.minutes.1),
            scheduling_goodput: share(counts.open, counts.since).filter(|_| long_enough),
            scheduling_origin: if counts.is_created_known { "created_at" } else { "first_open" },
            wasted_s: wasted,
            proxy_minus_wasted: wasted
                .and_then(|wasted| ratio(buckets.productive.saturating_sub(wasted), known)),
            estimated,
        }
    }
}

fn buckets(observed: &HostObservations, slots: &Slots) -> SlotBuckets {
    let loaded = loaded(observed, slots);
    let mut buckets = SlotBuckets::default();
    let mut worked = false;
    for (slot, state) in slots.filled.iter().enumerate() {
        match state {
            SlotState::Active => {
                buckets.productive += 1;
                worked = true;
            }
            SlotState::Closed => {
                buckets.recovery += 1;
                worked = false;
            }
            SlotState::Partial => buckets.partial += 1,
            SlotState::Unknown => buckets.unknown += 1,
            SlotState::Idle if worked => buckets.stall += 1,
            SlotState::Idle if loaded[slot] => buckets.prep += 1,
            SlotState::Idle => buckets.init += 1,
        }
    }
    buckets
}

/// Whether a chip has memory in use, by the latest sample at each second. A sample does not hold beyond a close.
#[expect(clippy::cast_precision_loss, reason = "seconds of at most 400 days")]
fn loaded(observed: &HostObservations, slots: &Slots) -> Vec<bool> {
    let closes = observed.opens.iter().filter_map(|open| Some(Hbm(open.0, ceil(open.3?) as f64, 0.0)));
    let mut samples: Vec<Hbm> = closes.chain(observed.hbm.iter().copied()).collect();
    // Stable: in the second of a close the close comes first.
    samples.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut samples = samples.iter().peekable();
    let mut full = std::collections::BTreeSet::new();
    let mut loaded = Vec::with_capacity(slots.len());
    // The range that ends comes first: the other one is not asked for a second after the last.
    for (_, second) in (0..slots.len()).zip(slots.first..) {
        while let Some(sample) = samples.next_if(|sample| floor(sample.1) <= second) {
            if sample.2 >= HBM0 {
                full.insert(sample.0);
            } else {
                full.remove(&sample.0);
            }
        }
        loaded.push(!full.is_empty());
    }
    loaded
}
