//! Joins the samples of several endpoints of one host: no device twice, and one series where several processes count the
//! same.
//!
//! Must never let a sum fall because one process did not answer.

use std::{collections::HashMap, sync::Arc};

use model::{
    label::{CHIP, CORE, Labels},
    metric::MetricRef,
    sample::{Sample, SampleValue},
};

/// What makes two samples the same.
type Key = (MetricRef, Labels);

/// The samples of all endpoints.
#[derive(Default)]
pub(super) struct JoinedSamples {
    samples: Vec<Sample>,
    /// The position of each series; made only when there is a second endpoint.
    positions: HashMap<Key, usize>,
    /// How many samples are in it.
    indexed: usize,
}

impl JoinedSamples {
    /// Adds the samples of another endpoint; gives whether another one speaks for it. A device that is already there
    /// was answered for by a port that speaks for several processes; then this endpoint's totals without a device are
    /// in that port's as well. Otherwise distributions of one workload are added up.
    pub(super) fn add(&mut self, more: Vec<Sample>) -> bool {
        if self.samples.is_empty() {
            self.samples = more;
            return false;
        }
        self.index();
        let positions: Vec<_> = more.iter().map(|sample| self.positions.get(&key(sample)).copied()).collect();
        let covered = more.iter().zip(&positions).any(|(sample, at)| is_of_device(sample) && at.is_some());
        for (sample, position) in more.into_iter().zip(positions) {
            match position {
                None => self.samples.push(sample),
                Some(_) if covered => {}
                Some(at) if self.samples[at].workload_id() == sample.workload_id() => {
                    add_up(&mut self.samples[at].value, &sample.value);
                }
                Some(_) => self.samples.push(sample),
            }
        }
        covered
    }

    /// Adds what an endpoint that is silent now last counted to the sums of its workload.
    pub(super) fn add_silent(&mut self, last: Vec<Sample>) {
        self.index();
        for sample in last.into_iter().filter(|sample| !is_of_device(sample)) {
            let Some(&at) = self.positions.get(&key(&sample)) else { continue };
            let sum = &mut self.samples[at];
            if sum.workload_id() != sample.workload_id() {
                continue;
            }
            if let (SampleValue::Distribution(mine), SampleValue::Distribution(theirs)) =
                (&mut sum.value, &sample.value)
            {
                Arc::make_mut(mine).histogram.add(&theirs.histogram);
            }
        }
    }

    /// All samples.
    pub(super) fn into_samples(self) -> Vec<Sample> {
        self.samples
    }

    fn index(&mut self) {
        for (at, sample) in self.samples.iter().enumerate().skip(self.indexed) {
            self.positions.entry(key(sample)).or_insert(at);
        }
        self.indexed = self.samples.len();
    }
}

fn is_of_device(sample: &Sample) -> bool {
    sample.labels.get(CORE).is_some() || sample.labels.get(CHIP).is_some()
}

/// For a core only its id, because not every port reports its chip.
fn key(sample: &Sample) -> Key {
    let of_core = sample.labels.get(CORE).is_some();
    let labels = if of_core { sample.labels.without(CHIP) } else { sample.labels.clone() };
    (sample.metric.clone(), labels)
}

fn add_up(mine: &mut SampleValue, theirs: &SampleValue) {
    let (SampleValue::Distribution(mine), SampleValue::Distribution(theirs)) = (mine, theirs) else { return };
    let mine = Arc::make_mut(mine);
    mine.histogram.add(&theirs.histogram);
    match (&mut mine.window, &theirs.window) {
        (Some(mine), Some(theirs)) => {
            mine.add(theirs);
        }
        (none @ None, Some(theirs)) => *none = Some(theirs.clone()),
        (_, None) => {}
    }
}
