//! The live ledger against the one of a whole file.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small whole numbers"
)]

use proptest::prelude::*;

use super::*;
use crate::proxy::{DeviceOpen, DutySamples, Hbm, HostObservations, Slots, proxy, wasted_seconds};

/// What each second of `observed` shows, from the first open to the end; with the first second.
fn seconds(observed: &HostObservations) -> (i64, Vec<Vec<ChipSecond>>) {
    let whole = |at: f64| at.ceil() as i64;
    let first = observed.opens.iter().map(|open| whole(open.2)).min().unwrap();
    let mut chips: Vec<i64> = observed.chips.clone();
    chips.extend(observed.opens.iter().map(|open| open.0));
    chips.sort_unstable();
    chips.dedup();
    let one = |second: i64, chip: i64| {
        let opens = || observed.opens.iter().filter(move |open| open.0 == chip);
        let duty = |samples: &&DutySamples| samples.0 == chip;
        let value = |DutySamples(_, start, values): &DutySamples| {
            usize::try_from(second - start.floor() as i64)
                .ok()
                .and_then(|at| values.get(at).copied().flatten())
        };
        let hbm = observed.hbm.iter().filter(|hbm| hbm.0 == chip && hbm.1.floor() as i64 == second);
        ChipSecond {
            chip: u32::try_from(chip).unwrap(),
            open: opens()
                .any(|open| whole(open.2) <= second && open.3.is_none_or(|until| second < whole(until))),
            closed: opens().any(|open| open.3.is_some_and(|until| whole(until) == second)),
            duty: observed.duty.iter().filter(duty).filter_map(value).next_back(),
            hbm: hbm.max_by(|a, b| a.1.total_cmp(&b.1)).map(|hbm| hbm.2),
        }
    };
    let until = observed.now.floor() as i64;
    let seconds =
        (first..until).map(|second| chips.iter().map(|chip| one(second, *chip)).collect()).collect();
    (first, seconds)
}

/// The ledger as it is read again after an agent has ended: from the bytes that were kept.
fn restarted(mut ledger: LiveLedger, kept: &mut Vec<(u64, Vec<u8>)>) -> LiveLedger {
    for block in ledger.changed_blocks() {
        kept.retain(|(number, _)| *number != block.number());
        kept.push((block.number(), block.to_bytes()));
    }
    ledger.kept();
    let text = serde_json::to_string(&ledger).unwrap();
    let read: LiveLedger = serde_json::from_str(&text).unwrap();
    read.with_blocks(kept.iter().map(|(number, bytes)| LedgerBlock::from_bytes(*number, bytes).unwrap()))
}

fn live(observed: &HostObservations, restart_at: usize) -> (i64, LiveLedger) {
    let chips: Vec<u32> = observed.chips.iter().map(|chip| u32::try_from(*chip).unwrap()).collect();
    let mut ledger = LiveLedger::new(&chips);
    let (first, seconds) = seconds(observed);
    let mut kept = Vec::new();
    for (at, second) in seconds.iter().enumerate() {
        if at == restart_at {
            ledger = restarted(ledger, &mut kept);
        }
        ledger.push(second);
    }
    (first, ledger)
}

/// The live answer is that of the whole file, and so is each second.
fn compare(observed: &HostObservations, restart_at: usize) -> Result<(), TestCaseError> {
    let (first, ledger) = live(observed, restart_at);
    let whole = Slots::new(observed).unwrap();
    let slots = ledger.slots(first);
    prop_assert_eq!(slots.first, whole.first);
    prop_assert_eq!(&slots.raw, &whole.raw);
    prop_assert_eq!(&slots.filled, &whole.filled);
    prop_assert_eq!(&slots.all_open, &whole.all_open);
    let wasted = observed.steps.as_deref().and_then(|steps| wasted_seconds(steps, &slots));
    let created = observed.created_at.map(|at| u64::try_from(first - at.ceil() as i64).unwrap_or(0));
    prop_assert_eq!(ledger.proxy(created, wasted), proxy(observed).unwrap());
    Ok(())
}

prop_compose! {
    /// A chip of a job with up to three opens, with samples and holes in them.
    fn chip(chip: i64)(
        first in 0_u32..20,
        lives in prop::collection::vec((1_u32..150, 0_u32..40), 1..4),
        stays_open in any::<bool>(),
        runs in prop::collection::vec((prop::sample::select(vec![Some(0.0), Some(10.0), Some(10.1), Some(95.0), None]), 1_usize..25), 1..24),
        hbm in prop::collection::vec((0_u32..300, prop::sample::select(vec![0.0, 0.02, 0.6])), 0..4),
        shift in prop::sample::select(vec![0.0, 0.25, 0.5]),
    ) -> (Vec<DeviceOpen>, DutySamples, Vec<Hbm>) {
        let (mut at, mut opens) = (f64::from(first) + shift, Vec::new());
        for (pid, (open, pause)) in lives.iter().enumerate() {
            let last = pid + 1 == lives.len() && stays_open;
            let until = at + f64::from(*open);
            opens.push(DeviceOpen(chip, pid as i64, at, (!last).then_some(until)));
            at = until + f64::from(*pause);
        }
        let values = runs.iter().flat_map(|(value, length)| std::iter::repeat_n(*value, *length)).collect();
        let hbm = hbm.into_iter().map(|(at, share)| Hbm(chip, f64::from(at), share)).collect();
        // No sample comes before the first open of any chip.
        (opens, DutySamples(chip, 20.0, values), hbm)
    }
}

proptest! {
    /// Whatever a host shows, and wherever the agent starts again.
    #[test]
    fn second_by_second_is_as_the_whole_file(
        chips in (chip(0), chip(1), chip(2)),
        count in 1_usize..4,
        now in 30_u32..400,
        created in prop::option::of(-50_i32..0),
        restart_at in 0_usize..400,
        knows in any::<bool>(),
    ) {
        let chips: Vec<_> = [chips.0, chips.1, chips.2].into_iter().take(count).collect();
        let mut observed = HostObservations {
            chips: if knows { (0..count as i64).collect() } else { Vec::new() },
            now: f64::from(now),
            created_at: created.map(f64::from),
            ..HostObservations::default()
        };
        for (opens, duty, hbm) in chips {
            let before = |at: f64| at < f64::from(now);
            observed.opens.extend(opens.iter().filter(|open| before(open.2)).copied());
            // Known from its first open on, and not before.
            let first = opens[0].2.ceil();
            if before(opens[0].2) {
                let values = duty.2.iter().enumerate();
                let known = values.map(|(at, value)| value.filter(|_| 20.0 + at as f64 >= first)).collect();
                observed.duty.push(DutySamples(duty.0, duty.1, known));
                observed.hbm.extend(hbm.into_iter().filter(|hbm| hbm.1 >= first));
            }
        }
        prop_assume!(!observed.opens.is_empty());
        compare(&observed, restart_at)?;
    }
}

/// One chip that shows this, `None` without a sample.
fn of(duty: Option<f64>) -> [ChipSecond; 1] {
    [ChipSecond { chip: 0, open: true, closed: false, duty, hbm: Some(0.5) }]
}

fn states(ledger: &LiveLedger) -> Vec<(SecondState, usize)> {
    let all =
        ledger.blocks().flat_map(LedgerBlock::seconds).map(|(slot, state, _)| ledger.as_counted(slot, state));
    let all: Vec<_> = all.collect();
    all.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

#[test]
fn what_nobody_observed_is_never_productive_and_costs_nothing() {
    let mut ledger = LiveLedger::new(&[]);
    (0..30).for_each(|_| ledger.push(&of(Some(90.0))));
    // Nine hours without an agent, and a day beyond.
    ledger.push_unobserved(9 * 3600);
    (0..30).for_each(|_| ledger.push(&of(Some(90.0))));
    assert_eq!(ledger.blocks().count(), 2);
    assert_eq!((ledger.counts().productive(), ledger.counts().of(SecondState::Unobserved)), (60, 9 * 3600));
    assert_eq!(ledger.len(), 60 + 9 * 3600);
    assert_eq!(ledger.proxy(None, None).scheduling_goodput, Some(1.0), "of what was observed");
    assert_eq!(ledger.counts().goodput(), None, "less than half is known");
    // An idle gap beside a hole is not between two active seconds.
    let mut ledger = LiveLedger::new(&[]);
    ledger.push(&of(Some(90.0)));
    ledger.push(&of(Some(0.0)));
    ledger.push_unobserved(1);
    ledger.push(&of(Some(90.0)));
    use SecondState::{Active, Stall, Unobserved};
    assert_eq!(states(&ledger), [(Active, 1), (Stall, 1), (Unobserved, 1), (Active, 1)]);
}

#[test]
fn causes_name_idle_seconds_only_and_short_gaps_stay_progress() {
    use SecondState::{Active, Filled, Init, Input, Restore, Save, Stall};
    let mut ledger = LiveLedger::new(&[]);
    let empty = [ChipSecond { hbm: None, ..of(Some(0.0))[0] }];
    (0..5).for_each(|_| ledger.push(&empty));
    (0..5).for_each(|_| ledger.push(&of(Some(90.0))));
    (0..20).for_each(|_| ledger.push(&of(Some(0.0))));
    ledger.name(StallCause::Restore, 2, 7);
    ledger.name(StallCause::Input, 0, 20);
    ledger.name(StallCause::Save, 18, 25);
    ledger.name(StallCause::Input, 18, 1000);
    let named = [(Init, 2), (Restore, 3), (Active, 5), (Input, 8), (Save, 7), (Input, 5)];
    assert_eq!(states(&ledger), named);
    assert_eq!((ledger.counts().of(Save), ledger.counts().of(Input), ledger.counts().of(Stall)), (7, 13, 0));
    // A gap that turns out to be short.
    ledger.push(&of(Some(90.0)));
    (0..8).for_each(|_| ledger.push(&of(Some(0.0))));
    ledger.name(StallCause::Input, 31, 39);
    ledger.push(&of(Some(90.0)));
    assert_eq!(states(&ledger)[6..], [(Active, 1), (Filled, 8), (Active, 1)]);
    assert_eq!(ledger.counts().elapsed(), 40);
}

#[test]
fn a_restart_without_a_closed_second_is_a_disruption_and_a_new_attempt() {
    let mut ledger = LiveLedger::new(&[]);
    ledger.push(&of(Some(90.0)));
    ledger.restart();
    ledger.push(&[ChipSecond { hbm: None, ..of(Some(0.0))[0] }]);
    ledger.push(&[]);
    ledger.push(&of(Some(90.0)));
    use SecondState::{Active, Closed, Init};
    assert_eq!(states(&ledger), [(Active, 1), (Init, 1), (Closed, 1), (Active, 1)]);
    assert_eq!(ledger.disruptions(), 2);
}

#[test]
fn a_long_job_keeps_two_blocks_in_memory_and_all_of_its_counts() {
    let mut ledger = LiveLedger::new(&[]);
    for second in 0..5 * 3600 {
        if second % 600 == 0 {
            ledger.kept();
        }
        ledger.push(&of(Some(if second % 60 < 15 { 0.0 } else { 90.0 })));
    }
    assert_eq!(ledger.blocks().map(LedgerBlock::number).collect::<Vec<_>>(), [3, 4]);
    // Of the first minute it is preparation, of the others a stall.
    assert_eq!(ledger.counts().of(SecondState::Stall), 299 * 15);
    assert_eq!(ledger.proxy(None, None).proxy_runtime_goodput, Some(0.75));
}

#[derive(serde::Deserialize)]
struct Vector {
    trace: HostObservations,
    expected: serde_json::Value,
}

#[test]
fn every_golden_vector_second_by_second_with_a_restart_in_the_middle() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden/proxy");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 8, "the vectors are there");
    for file in files {
        let vector: Vector = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let middle = vector.trace.now as usize / 2;
        compare(&vector.trace, middle).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let answer = serde_json::to_value(proxy(&vector.trace).unwrap()).unwrap();
        for (field, wanted) in vector.expected.as_object().unwrap() {
            assert_eq!(&answer[field], wanted, "{}: {field}", file.display());
        }
    }
}

/// Duty and memory of each chip as a public training run logged them: times, and for each chip percent and share.
fn logged(text: &str) -> (Vec<f64>, Vec<Vec<(f64, f64)>>) {
    let mut lines = text.lines();
    let chips = lines.next().unwrap().matches(".dutyCycle").count();
    let (mut times, mut values) = (Vec::new(), vec![Vec::new(); chips]);
    for line in lines {
        let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
        times.push(cells[0]);
        for (chip, values) in values.iter_mut().enumerate() {
            values.push((cells[1 + 3 * chip], cells[2 + 3 * chip] / 100.0));
        }
    }
    (times, values)
}

/// The observations of such a run: each sample is seen once, or in each second until the next.
fn observed_run(times: &[f64], values: &[Vec<(f64, f64)>], repeated: bool) -> HostObservations {
    let (start, end) = (times[0].floor(), times[times.len() - 1].floor() + 15.0);
    let mut observed = HostObservations { now: end, ..HostObservations::default() };
    for (chip, values) in (0..).zip(values) {
        let mut duty: Vec<Option<f64>> = vec![None; (end - start) as usize];
        for (at, (percent, share)) in values.iter().enumerate().filter(|(_, value)| value.0.is_finite()) {
            let from = (times[at].floor() - start) as usize;
            let next = times.get(at + 1).map_or(duty.len(), |next| (next.floor() - start) as usize);
            let until = if repeated { next } else { from + 1 };
            duty[from..until].fill(Some(*percent));
            observed.hbm.push(Hbm(chip, times[at].floor(), *share));
        }
        observed.chips.push(chip);
        observed.opens.push(DeviceOpen(chip, 1, start, None));
        observed.duty.push(DutySamples(chip, start, duty));
    }
    observed
}

/// Public data of other projects, which is not in the repository. A letter is a sample of 15 s: `i` where a chip has a
/// duty of 10 % or less, `A` where none has, as read from the files by eye and by a script of another language.
#[test]
fn real_series_second_by_second_where_they_are_at_hand() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/real/series");
    if !std::path::Path::new(folder).exists() {
        eprintln!("SKIPPED: no real series in {folder}");
        return;
    }
    for (name, wanted, seconds) in REAL_RUNS {
        let (times, values) = logged(&std::fs::read_to_string(format!("{folder}/{name}.csv")).unwrap());
        for repeated in [false, true] {
            let observed = observed_run(&times, &values, repeated);
            compare(&observed, times.len() * 7).unwrap_or_else(|error| panic!("{name}: {error}"));
            let (_, ledger) = live(&observed, times.len() * 7);
            let mut has_worked = false;
            let states: String = ledger
                .blocks()
                .flat_map(LedgerBlock::seconds)
                .step_by(15)
                .map(|second| {
                    has_worked |= second.1 == SecondState::Active;
                    match second.1 {
                        SecondState::Active => 'A',
                        SecondState::Stall if has_worked => 'i',
                        SecondState::Prep if !has_worked => 'i',
                        other => panic!("{name}: {other:?}"),
                    }
                })
                .collect();
            assert_eq!(states, runs(wanted), "{name}");
            let of = |state| ledger.counts().of(state);
            let counted = [of(SecondState::Prep), of(SecondState::Stall), of(SecondState::Active)];
            assert!(!repeated || counted == seconds, "{name}: {counted:?}");
            // A sample holds for its second and five more of 15.
            assert_eq!(ledger.counts().coverage(), if repeated { 1.0 } else { 0.4 }, "{name}");
        }
    }
}

/// `3i2A` as `iiiAA`.
fn runs(text: &str) -> String {
    let of = |run: &str| {
        let (count, letter) = run.split_at(run.len() - 1);
        letter.repeat(count.parse().unwrap())
    };
    text.split_inclusive(char::is_alphabetic).map(of).collect()
}

/// Name, samples, and the seconds in preparation, stalled and productive where each sample holds until the next.
const REAL_RUNS: [(&str, &str, [u64; 3]); 5] = [
    ("v5p-8-run1", "20i1A2i3A1i5A", [300, 45, 135]),
    ("v5p-8-run2", "3i1A2i12A6i2A1i90A", [45, 135, 1575]),
    ("v6e-8-run1", "3i1A3i10A5i", [45, 120, 165]),
    ("v6e-8-run2", "3i1A2i11A5i1A1i1A1i59A", [45, 135, 1095]),
    ("v6e-8-run3", "5i1A3i8A", [75, 45, 135]),
];
