//! Buckets and ratios over the slots.

use serde::Serialize;

use super::{
    estimated::Estimated,
    limits::{HBM0, MIN_COVER, MIN_SECONDS},
    observations::HostObservations,
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

pub(super) fn ratios(
    observed: &HostObservations,
    slots: &Slots,
    wasted: Option<usize>,
    estimated: Option<Estimated>,
) -> Proxy {
    let buckets = buckets(observed, slots);
    let elapsed = slots.len();
    let known = elapsed - buckets.unknown;
    let coverage = share(known, elapsed).unwrap_or(0.0);
    let long_enough = elapsed >= MIN_SECONDS;
    let ratio =
        |part: usize, whole: usize| share(part, whole).filter(|_| long_enough && coverage >= MIN_COVER);
    let raw = slots.raw.iter().filter(|state| **state == SlotState::Active).count();
    let open = slots.all_open.iter().filter(|open| **open).count();
    let (created, origin) = match observed.created_at {
        Some(created) => (ceil(created).min(slots.first), "created_at"),
        None => (slots.first, "first_open"),
    };
    let since = usize::try_from(floor(observed.now).saturating_sub(created)).unwrap_or(0);
    Proxy {
        elapsed_s: elapsed,
        buckets,
        productive_raw_s: raw,
        coverage,
        proxy_runtime_goodput: ratio(buckets.productive, known),
        proxy_runtime_goodput_raw: ratio(raw, known),
        proxy_runtime_goodput_while_open: ratio(buckets.productive, open - buckets.unknown),
        proxy_runtime_goodput_60s: minutes(slots),
        scheduling_goodput: share(open, since).filter(|_| long_enough),
        scheduling_origin: origin,
        wasted_s: wasted,
        proxy_minus_wasted: wasted.and_then(|wasted| ratio(buckets.productive.saturating_sub(wasted), known)),
        estimated,
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

/// Whether a chip has memory in use, by the latest sample at each second.
fn loaded(observed: &HostObservations, slots: &Slots) -> Vec<bool> {
    let mut samples = observed.hbm.clone();
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

/// The share of full minutes whose last ten seconds have a mean duty above 10 % on every chip.
fn minutes(slots: &Slots) -> Option<f64> {
    share(slots.minutes.iter().filter(|active| **active).count(), slots.minutes.len())
}
