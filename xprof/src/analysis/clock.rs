//! A core's two clocks: that of its line, and the device's own, which operations carry in their stats.
//!
//! On real hardware the line's clock jumps by up to 200 ms and stays off for seconds; the device's clock does not.
//! Durations and the order of events on a core therefore come from the device's clock. The line's clock only says
//! where the core's time lies on the host's time line: a straight line is fitted through the most frequent offsets.
//! Where the line agrees with one straight line everywhere, its own values are used.
//!
//! Must never hold events: both clocks are held as stretches in which they run alike.

use std::{
    io::{Read, Seek},
    ops::ControlFlow,
};

use super::{
    device_events::{self, DeviceEvent, DeviceStats, Interval},
    module_extents::ModuleExtents,
    straight_fit::{Fit, Stretch, drifted},
};
use crate::{
    reader::{PlaneIndex, Reader, SessionTimes},
    wire::Error,
};

/// A change of the offset that counts as a jump; smaller ones are drift that is not straight.
const JUMP_PS: i64 = 10_000_000;
/// How many stretches are held; beyond that neighbours are joined.
const MAX_STRETCHES: usize = 1 << 14;
/// What is known of the two clocks of a core while its operations are read.
#[derive(Debug, Default)]
pub(super) struct Survey {
    stretches: Vec<Stretch>,
    /// Jumps that lie between stretches, and within events.
    jumps: u64,
    disagrees: bool,
}

impl Survey {
    /// Takes an event that has both clocks. Events come in the order of the line.
    pub(super) fn push(&mut self, line: Interval, device: Interval) {
        let Some(last) = self.stretches.last_mut() else {
            self.stretches.push(Stretch::new(line.start, device.start));
            return self.check_end(line, device);
        };
        match last.with(line.start, device.start) {
            Some(drift) => {
                last.drift = drift;
                last.last = last.last.max(device.start);
                last.events += 1;
            }
            None => {
                let new = Stretch::new(line.start, device.start);
                let apart = new.offset().saturating_sub(last.offset_at(device.start));
                self.jumps += u64::from(apart.saturating_abs() > JUMP_PS);
                if self.stretches.len() == MAX_STRETCHES {
                    self.thin();
                }
                self.stretches.push(new);
            }
        }
        self.check_end(line, device);
    }

    /// An event whose end lies elsewhere has a jump within it.
    fn check_end(&mut self, line: Interval, device: Interval) {
        let Some(last) = self.stretches.last_mut() else { return };
        match last.with(line.end, device.end) {
            Some(drift) => last.drift = drift,
            None => self.disagrees = true,
        }
    }

    /// Joins each second stretch to the one before it.
    fn thin(&mut self) {
        let joined = self.stretches.chunks(2).map(|pair| match pair {
            [one, other] => {
                Stretch { events: one.events + other.events, last: one.last.max(other.last), ..*one }
            }
            _ => pair[0],
        });
        self.stretches = joined.collect();
    }

    /// The clock to read the core by, and how the two clocks relate.
    pub(super) fn finish(mut self) -> (CoreClock, Option<ClockFacts>) {
        let straight = self.stretches.len() == 1 && !self.disagrees;
        self.stretches.sort_by_key(|stretch| stretch.line);
        let Some(fit) = Fit::of(&self.stretches) else { return (CoreClock::Line, None) };
        let apart = |stretch: &Stretch| stretch.offset().saturating_sub(fit.offset_at(stretch.device));
        let facts = ClockFacts {
            by_device: !straight,
            shift_ps: fit.offset.saturating_neg(),
            drift_ppm: -fit.drift * 1e6,
            jumps: self.jumps,
            farthest_ps: self.stretches.iter().map(|at| apart(at).saturating_abs()).max().unwrap_or(0),
        };
        let clock = if straight {
            CoreClock::Line
        } else {
            CoreClock::Device(Box::new(DeviceClock { fit, stretches: self.stretches }))
        };
        (clock, Some(facts))
    }
}

/// How the two clocks of a core relate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ClockFacts {
    /// Whether the core is read by the device's clock.
    pub(super) by_device: bool,
    /// What to add to the line's time to have the device's.
    pub(super) shift_ps: i64,
    /// How much faster the device's clock runs.
    pub(super) drift_ppm: f64,
    /// How often the line's clock jumped.
    pub(super) jumps: u64,
    /// How far it was from the straight line at most.
    pub(super) farthest_ps: i64,
}

/// The clock that a core is read by.
///
/// Times of the core are what this clock reads, from the place on that the session's time line has at the fit's
/// time: durations stay as the device counted them, and [`Self::place`] says where they lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CoreClock {
    /// The line's: times of the core are those of the session.
    Line,
    /// The device's.
    Device(Box<DeviceClock>),
}

/// The device's clock, and how the line's runs against it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeviceClock {
    fit: Fit,
    /// By the line's time.
    stretches: Vec<Stretch>,
}

impl CoreClock {
    /// Where an event lies by the core's clock. An event without a device time is moved by what the line was off
    /// at that time.
    #[inline]
    pub(super) fn time(&self, line: Interval, device: Option<Interval>) -> Interval {
        match self {
            Self::Line => line,
            Self::Device(clock) => clock.time(line, device),
        }
    }

    /// Where an instant of the core lies on the session's time line.
    pub(super) fn place(&self, time: i64) -> i64 {
        match self {
            Self::Line => time,
            Self::Device(clock) => time.saturating_add(drifted(
                clock.fit.drift,
                time,
                clock.fit.at.saturating_add(clock.fit.offset),
            )),
        }
    }

    /// The opposite of [`Self::place`].
    pub(super) fn unplace(&self, line: i64) -> i64 {
        match self {
            Self::Line => line,
            Self::Device(clock) => {
                let at = clock.fit.at.saturating_add(clock.fit.offset);
                let drift = clock.fit.drift;
                line.saturating_sub(drifted(drift / (1.0 + drift), line, at))
            }
        }
    }

    /// Whether it is the device's.
    pub(super) fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

impl DeviceClock {
    fn time(&self, line: Interval, device: Option<Interval>) -> Interval {
        let shift = |time: i64| time.saturating_add(self.fit.offset);
        match device {
            Some(device) => Interval { start: shift(device.start), end: shift(device.end) },
            None => {
                let start = shift(self.device_at(line.start));
                Interval { start, end: shift(self.device_at(line.end)).max(start) }
            }
        }
    }

    /// What the device's clock read when the line's read `line`.
    fn device_at(&self, line: i64) -> i64 {
        let after = self.stretches.partition_point(|stretch| stretch.line <= line);
        let Some(stretch) = self.stretches.get(after.saturating_sub(1)) else { return line };
        let since = line.saturating_sub(stretch.line);
        stretch.device.saturating_add(since).saturating_sub(drifted(stretch.slope(), since, 0))
    }
}

/// What one pass over the operations of a core tells of its clocks.
#[derive(Debug)]
pub(super) struct Surveyed {
    pub(super) clock: CoreClock,
    pub(super) facts: Option<ClockFacts>,
    /// Per program execution, from the start of its first to the end of its last operation, by the device's clock.
    pub(super) extents: Vec<Option<Interval>>,
}

impl Surveyed {
    /// A core that is read by its line's clock.
    pub(super) fn by_line() -> Self {
        Self { clock: CoreClock::Line, facts: None, extents: Vec::new() }
    }
}

/// Reads the clocks of the operations on the lines called `name`. `modules` are the executions of programs on the
/// core, by start.
pub(super) fn survey<R: Read + Seek>(
    reader: &mut Reader<R>,
    plane: &PlaneIndex,
    session: &SessionTimes,
    name: &str,
    modules: &[DeviceEvent],
) -> Result<Surveyed, Error> {
    let stats = DeviceStats::of(&plane.stat_names);
    if !stats.has_device_clock() {
        return Ok(Surveyed::by_line());
    }
    let mut survey = Survey::default();
    let mut extents = ModuleExtents::of(modules);
    for (line, start) in device_events::lines(plane, session, name) {
        reader.events(line.span, |event| {
            if event.has_stats()
                && let (Some(device), _) = stats.of_op(event)?
            {
                let line = device_events::interval(start, event);
                survey.push(line, device);
                extents.push(line, device);
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
    }
    let (clock, facts) = survey.finish();
    Ok(Surveyed { clock, facts, extents: extents.finish() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::straight_fit::TOLERANCE_PS, *};

    const MS: i64 = 1_000_000_000;
    const S: i64 = 1000 * MS;

    fn surveyed(events: &[(Interval, Interval)]) -> (CoreClock, Option<ClockFacts>) {
        let mut survey = Survey::default();
        events.iter().for_each(|&(line, device)| survey.push(line, device));
        survey.finish()
    }

    /// Events of `length` each, `gap` apart by the device's clock. `off` says how far the line's clock is from a
    /// straight line at each of them.
    fn events(
        (shift, drift): (i64, f64),
        (length, gap): (i64, i64),
        off: &[i64],
    ) -> Vec<(Interval, Interval)> {
        let line = |device: i64, off: i64| device + shift + (drift * device as f64).round() as i64 + off;
        let event = |(at, &off): (i64, &i64)| {
            let device = Interval::new(S + at * (length + gap), length);
            (Interval { start: line(device.start, off), end: line(device.end, off) }, device)
        };
        (0..).zip(off).map(event).collect()
    }

    #[test]
    fn a_straight_line_is_used() {
        for drift in [0.0, 14e-6, -300e-6, 499e-6] {
            let events = events((2 * MS, drift), (MS, 100_000), &[0; 5000]);
            let (clock, facts) = surveyed(&events);
            assert_eq!(clock, CoreClock::Line, "{drift}");
            let facts = facts.expect("both clocks");
            assert_eq!((facts.by_device, facts.jumps), (false, 0));
            assert!((facts.drift_ppm + drift * 1e6).abs() < 0.1, "{facts:?}");
        }
        assert_eq!(surveyed(&[]), (CoreClock::Line, None));
        assert_eq!(surveyed(&events((5, 0.0), (MS, 0), &[0])).0, CoreClock::Line);
    }

    #[test]
    fn the_last_microsecond_decides() {
        let mut off = [0; 100];
        off[50] = TOLERANCE_PS;
        assert_eq!(surveyed(&events((0, 0.0), (MS, 0), &off)).0, CoreClock::Line);
        off[50] = 2 * TOLERANCE_PS + 100;
        assert!(surveyed(&events((0, 0.0), (MS, 0), &off)).0.is_device());
    }

    #[test]
    fn a_jump_within_an_event_is_seen() {
        let mut events = events((0, 0.0), (MS, 0), &[0; 10]);
        events[9].0.end += 5 * MS;
        let (clock, facts) = surveyed(&events);
        assert!(clock.is_device() && facts.is_some_and(|facts| facts.by_device));
        assert_eq!(clock.time(events[9].0, Some(events[9].1)).len(), MS);
    }

    #[test]
    fn events_without_a_device_time_are_moved_with_their_neighbours() {
        let off: Vec<i64> = (0..300).map(|at| if at < 200 { 0 } else { 80 * MS }).collect();
        let events = events((3 * MS, 14e-6), (10 * MS, MS), &off);
        let (clock, facts) = surveyed(&events);
        let facts = facts.expect("both clocks");
        assert_eq!(facts.jumps, 1);
        assert!((facts.farthest_ps - 80 * MS).abs() < 1_000_000, "{facts:?}");
        for (line, device) in [events[0], events[199], events[200], events[299]] {
            let inner = Interval { start: line.start + MS, end: line.end - MS };
            let (found, known) = (clock.time(inner, None), clock.time(line, Some(device)));
            assert!((found.start - known.start - MS).abs() < 1_000_000, "{found:?} {known:?}");
            assert!((found.len() - known.len() + 2 * MS).abs() < 1_000_000, "{found:?} {known:?}");
        }
    }

    #[test]
    fn as_many_stretches_as_there_may_be_are_held() {
        let off: Vec<i64> = (0..5 * MAX_STRETCHES as i64).map(|at| (at * 7919 % 101) * MS).collect();
        let mut survey = Survey::default();
        for (line, device) in events((0, 0.0), (MS, 0), &off) {
            survey.push(line, device);
            assert!(survey.stretches.len() <= MAX_STRETCHES);
        }
        let counted: u64 = survey.stretches.iter().map(|stretch| stretch.events).sum();
        assert_eq!(counted, off.len() as u64);
        assert!(survey.finish().0.is_device());
    }

    fn any_time() -> impl Strategy<Value = i64> {
        prop_oneof![
            any::<i64>(),
            -S..100 * S,
            Just(i64::MIN),
            Just(i64::MAX),
            Just((1 << 62) + 7),
            Just(-(1 << 62)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Jumps of both signs, while most of the time the line is right: the fit finds the line, durations are the
        /// device's, and events lie where the straight line has them.
        #[test]
        fn jumps_do_not_move_the_fit(
            shift in -10 * S..10 * S,
            drift in -450e-6..450e-6f64,
            jumps in prop::collection::vec((-200 * MS..200 * MS, 1..12usize, 12..40usize), 1..12),
            length in 1_000..50 * MS,
        ) {
            let off: Vec<i64> = jumps
                .iter()
                .flat_map(|&(by, stays, after)| {
                    let by = if by.abs() < 20 * MS { by.signum() * 20 * MS + by } else { by };
                    std::iter::repeat_n(0, after).chain(std::iter::repeat_n(by, stays))
                })
                .chain([0; 12])
                .collect();
            prop_assume!(off.iter().any(|&off| off != 0));
            let events = events((shift, drift), (length, length / 7), &off);
            let (clock, facts) = surveyed(&events);
            prop_assert!(clock.is_device());
            prop_assert!(facts.is_some_and(|facts| facts.jumps >= 1));
            for (&(line, device), &off) in events.iter().zip(&off) {
                let at = clock.time(line, Some(device));
                prop_assert_eq!(at.len(), device.len());
                let straight = line.start - off;
                prop_assert!((clock.place(at.start) - straight).abs() < 2_000_000, "{} {}", at.start, straight);
                prop_assert!((clock.unplace(clock.place(at.start)) - at.start).abs() <= 2);
            }
        }

        /// A clock that wraps around, or any other values: nothing panics, and time never runs backwards within an
        /// event.
        #[test]
        fn hostile_values_do_no_harm(
            values in prop::collection::vec((any_time(), any_time(), any_time(), any_time()), 0..60),
        ) {
            let events: Vec<(Interval, Interval)> = values
                .iter()
                .map(|&(line, length, device, time)| (Interval::new(line, length), Interval::new(device, time)))
                .collect();
            let (clock, _) = surveyed(&events);
            for &(line, device) in &events {
                let at = clock.time(line, Some(device));
                prop_assert!(at.start <= at.end);
                let at = clock.time(line, None);
                prop_assert!(at.start <= at.end);
                clock.unplace(clock.place(at.start));
            }
        }
    }
}
