//! Where the time of a job went, as messages.

use std::collections::BTreeMap;

use goodput::proxy::live::{ChipBits, LossRun, SecondState, TimeLoss};
use jobs::ledger::{JobGoodput, LEDGER};
use proto::tpuscope::v1::{self, GoodputLoss, LostStretch};

const SECOND_NS: i64 = 1_000_000_000;

/// One job.
pub(super) fn job(job: &JobGoodput) -> v1::JobGoodput {
    let counts = &job.counts;
    let mut seconds = BTreeMap::new();
    for state in SecondState::ALL {
        *seconds.entry(state.name().to_owned()).or_insert(0) += counts.of(state);
    }
    v1::JobGoodput {
        key: Some(v1::JobKey {
            kind: job.key.kind.as_str().to_owned(),
            cluster: job.key.cluster.clone(),
            uid: job.key.uid,
            id: job.key.id.clone(),
        }),
        name: job.name.clone(),
        running: job.is_running,
        ledger: LEDGER.to_owned(),
        confidence: counts.confidence().name().to_owned(),
        from_unix_ns: nanoseconds(job.from),
        until_unix_ns: nanoseconds(job.until),
        resolution_seconds: if job.has_minutes { 60 } else { 1 },
        elapsed_seconds: counts.elapsed(),
        known_seconds: counts.known(),
        coverage_ratio: counts.coverage(),
        goodput_ratio: counts.goodput(),
        scheduling_goodput_ratio: counts.scheduling_goodput(),
        seconds,
        disruptions: job.disruptions,
        chips: job.chips.clone(),
        losses: job.losses.iter().map(loss).collect(),
        states: packed(&job.seconds),
    }
}

fn nanoseconds(second: i64) -> i64 {
    second.saturating_mul(SECOND_NS)
}

fn loss(loss: &TimeLoss) -> GoodputLoss {
    GoodputLoss {
        reason: loss.state.name().to_owned(),
        seconds: loss.seconds,
        stretches: loss.runs,
        source: source(loss.state).to_owned(),
        longest: loss.longest.iter().map(stretch).collect(),
    }
}

fn stretch(run: &LossRun) -> LostStretch {
    LostStretch {
        from_unix_ns: nanoseconds(run.from),
        until_unix_ns: nanoseconds(run.until),
        seconds: run.seconds,
        chips: chips(run.chips),
    }
}

fn chips(bits: ChipBits) -> Vec<u32> {
    (0..ChipBits::BITS).filter(|chip| bits >> chip & 1 == 1).collect()
}

/// What says that a second is in a state.
fn source(state: SecondState) -> &'static str {
    match state {
        SecondState::Closed | SecondState::Partial => "the open device files of the job's processes",
        SecondState::Restore | SecondState::Save => {
            "the duty cycle of the job's runtime, and the metrics of Orbax"
        }
        SecondState::Input => "the duty cycle of the job's runtime, and the metrics of Grain",
        SecondState::Init | SecondState::Prep => {
            "the duty cycle and the memory in use that the job's runtime reports"
        }
        SecondState::Stall
        | SecondState::Active
        | SecondState::Filled
        | SecondState::Unknown
        | SecondState::Unobserved => "the duty cycle that the job's runtime reports",
    }
}

/// Four bits each, the earlier second in the low bits.
fn packed(states: &[SecondState]) -> Vec<u8> {
    let byte = |pair: &[SecondState]| pair.iter().rev().fold(0, |byte, state| byte << 4 | state.code());
    states.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_packed_and_chips_are_listed() {
        use SecondState::{Active, Closed, Save};
        assert_eq!(packed(&[Closed, Active, Save]), [0xa1, 0x07]);
        assert_eq!(chips(0b1010 | 1 << 63), [1, 3, 63]);
    }
}
