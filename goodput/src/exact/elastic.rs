//! Events of elastic jobs: waits, re-initialisation and slice counts.

use std::{collections::HashMap, sync::Arc};

use super::ranges::Ranges;
use crate::{
    badput::{BadputType, Buckets},
    entry::{Boundary, JobEvent, SliceCounts, StartupPhase},
};

/// Time-weighted shares of slices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SliceEfficiency {
    /// Share of slices that stepped.
    pub stepping: f64,
    /// Share of slices that could step.
    pub available: f64,
}

/// Elastic events of a walk.
#[derive(Debug, Default)]
pub(crate) struct Elastic {
    waiting: HashMap<Arc<str>, f64>,
    reinit: Option<f64>,
    tpu_init: Option<f64>,
    prep: Option<f64>,
    /// In the order a bucket was first created.
    waits: Vec<(BadputType, f64)>,
    reinits: Vec<(f64, f64)>,
    inits: Vec<(f64, f64)>,
    preps: Vec<(f64, f64)>,
    /// By time; of one time in log order.
    slices: Vec<SliceCounts>,
}

impl Elastic {
    pub(crate) fn push(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Wait(kind, Boundary::Start, at) => {
                self.waiting.insert(Arc::clone(kind), *at);
            }
            JobEvent::Wait(kind, Boundary::End, at) => {
                let Some(start) = self.waiting.remove(kind).filter(|start| start < at) else { return };
                let scale_up = kind.to_lowercase().contains("scale_up");
                let bucket = if scale_up { BadputType::ElasticScaleUp } else { BadputType::ElasticSliceDown };
                match self.waits.iter_mut().find(|(kind, _)| *kind == bucket) {
                    Some((_, sum)) => *sum += at - start,
                    None => self.waits.push((bucket, at - start)),
                }
            }
            JobEvent::Reinit(boundary, at) => span(&mut self.reinit, &mut self.reinits, *boundary, *at),
            JobEvent::Phase(StartupPhase::TpuInit, boundary, at) => {
                span(&mut self.tpu_init, &mut self.inits, *boundary, *at);
            }
            JobEvent::Phase(StartupPhase::TrainingPrep, boundary, at) => {
                span(&mut self.prep, &mut self.preps, *boundary, *at);
            }
            JobEvent::Slices(slices) => {
                let position = self.slices.partition_point(|other| other.at <= slices.at);
                self.slices.insert(position, **slices);
            }
            _ => {}
        }
    }

    /// Adds the elastic buckets, and subtracts the overlap with re-initialisation from the start-up buckets.
    pub(crate) fn add_to(&self, buckets: &mut Buckets) {
        for (bucket, seconds) in &self.waits {
            buckets.add(*bucket, *seconds);
        }
        for (start, end) in &self.reinits {
            buckets.add(BadputType::ElasticReinitialization, end - start);
        }
        for (bucket, spans) in
            [(BadputType::TpuInitialization, &self.inits), (BadputType::TrainingPrep, &self.preps)]
        {
            let overlap = self.overlap(spans);
            if overlap > 0.0 {
                let left = (buckets.seconds(bucket) - overlap).max(0.0);
                buckets.set(bucket, crate::badput::Amount::Flat(left));
            }
        }
    }

    fn overlap(&self, spans: &[(f64, f64)]) -> f64 {
        let mut reaches = Ranges::default();
        self.reinits.iter().for_each(|(begin, end)| reaches.push(*begin, *end));
        let touching = |span: &(f64, f64)| &self.reinits[reaches.overlapping(span.1, span.0)];
        let pairs = spans.iter().flat_map(|span| touching(span).iter().map(move |reinit| (span, reinit)));
        pairs.map(|(span, reinit)| (span.1.min(reinit.1) - span.0.max(reinit.0)).max(0.0)).sum()
    }

    /// The efficiency between two times; `None` without slice counts.
    pub(crate) fn efficiency(&self, from: f64, to: f64) -> Option<SliceEfficiency> {
        if self.slices.is_empty() {
            return None;
        }
        let none = SliceEfficiency { stepping: 0.0, available: 0.0 };
        if to <= from {
            return Some(none);
        }
        let first = self.slices.partition_point(|slices| slices.at <= from);
        let last = self.slices.partition_point(|slices| slices.at < to).max(first);
        let seed = self.slices[..first].last().map(|slices| SliceCounts { at: from, ..*slices });
        let timeline: Vec<SliceCounts> =
            seed.into_iter().chain(self.slices[first..last].iter().copied()).collect();
        let mut sums = none;
        for (at, slices) in timeline.iter().enumerate() {
            let seconds = timeline.get(at + 1).map_or(to, |next| next.at) - slices.at;
            sums.stepping += slices.active / slices.total * seconds;
            sums.available += slices.available / slices.total * seconds;
        }
        let whole = to - from;
        Some(SliceEfficiency { stepping: sums.stepping / whole, available: sums.available / whole })
    }
}

/// Pairs a start with an end: a start overwrites, an end without one is ignored, an empty span is dropped.
fn span(open: &mut Option<f64>, spans: &mut Vec<(f64, f64)>, boundary: Boundary, at: f64) {
    if boundary == Boundary::Start {
        *open = Some(at);
    } else if let Some(start) = open.take()
        && start < at
    {
        spans.push((start, at));
    }
}
