//! How far another host's clock is from ours, from round trips of small messages. Pure: it reads no clock.
//!
//! A round trip with times `sent` and `returned` of ours, `received` and `replied` of theirs, says that the offset lies between
//! `replied - returned` and `received - sent`, however unequal the two ways are: each way takes at least no time. The trip
//! with the least delay says it best: the middle is the estimate, and half the delay bounds its error.

/// The times of one round trip, nanoseconds since the epoch of the clock that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// Our clock when the question left.
    pub sent: i64,
    /// Their clock when it came.
    pub received: i64,
    /// Their clock when the answer left.
    pub replied: i64,
    /// Our clock when it came.
    pub returned: i64,
}

/// The offset of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetEstimate {
    /// Their clock minus ours, nanoseconds.
    pub offset_ns: i64,
    /// The true offset is no further away from `offset_ns`, nanoseconds.
    pub bound_ns: u64,
}

/// Why the offset is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockOffsetError {
    /// No round trip is possible in the times that it has.
    #[error("no round trip was measured")]
    NoTrip,
    /// Two round trips contradict each other.
    #[error("a clock was set while it was measured")]
    Stepped,
}

/// What one round trip says: the offset lies between the two, nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Interval {
    least: i128,
    most: i128,
}

impl Interval {
    /// None for times that run backwards.
    fn of(trip: &RoundTrip) -> Option<Self> {
        let [sent, received, replied, returned] =
            [trip.sent, trip.received, trip.replied, trip.returned].map(i128::from);
        let interval = Self { least: replied - returned, most: received - sent };
        (returned >= sent && replied >= received && interval.delay() >= 0).then_some(interval)
    }

    /// The time that both ways took together.
    fn delay(self) -> i128 {
        self.most - self.least
    }

    fn meets(self, other: Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}

/// The offset of their clock.
///
/// # Errors
/// If no round trip says it, or two contradict each other.
pub fn clock_offset(trips: &[RoundTrip]) -> Result<OffsetEstimate, ClockOffsetError> {
    let intervals: Vec<Interval> = trips.iter().filter_map(Interval::of).collect();
    let best = *intervals.iter().min_by_key(|interval| interval.delay()).ok_or(ClockOffsetError::NoTrip)?;
    if !intervals.iter().all(|interval| interval.meets(best)) {
        return Err(ClockOffsetError::Stepped);
    }
    let middle = best.least + best.delay() / 2;
    // Rounded up: the middle of an odd delay is half a nanosecond off.
    let bound = (best.delay() + 1) / 2;
    let in_range = |_| ClockOffsetError::NoTrip;
    Ok(OffsetEstimate {
        offset_ns: i64::try_from(middle).map_err(in_range)?,
        bound_ns: u64::try_from(bound).map_err(in_range)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A round trip with this true offset, delays of the two ways, and time over there.
    fn trip(at: i64, offset: i64, there: i64, work: i64, back: i64) -> RoundTrip {
        let received = at + there + offset;
        RoundTrip { sent: at, received, replied: received + work, returned: at + there + work + back }
    }

    #[test]
    fn the_trip_with_the_least_delay_decides() {
        let trips = [trip(0, 500, 90, 5, 10), trip(1000, 500, 4, 5, 2), trip(2000, 500, 30, 5, 30)];
        assert_eq!(clock_offset(&trips), Ok(OffsetEstimate { offset_ns: 501, bound_ns: 3 }));
        // Both ways alike: no error, the same bound.
        assert_eq!(
            clock_offset(&[trip(0, -7, 10, 0, 10)]),
            Ok(OffsetEstimate { offset_ns: -7, bound_ns: 10 })
        );
    }

    #[test]
    fn impossible_times_say_nothing_and_contradictions_are_found() {
        assert_eq!(clock_offset(&[]), Err(ClockOffsetError::NoTrip));
        let backwards = RoundTrip { sent: 10, received: 0, replied: 0, returned: 5 };
        let faster_than_it_worked = RoundTrip { sent: 0, received: 0, replied: 100, returned: 50 };
        assert_eq!(clock_offset(&[backwards, faster_than_it_worked]), Err(ClockOffsetError::NoTrip));
        let good = trip(0, 0, 5, 0, 5);
        assert_eq!(clock_offset(&[backwards, good]), Ok(OffsetEstimate { offset_ns: 0, bound_ns: 5 }));
        let after_a_step = trip(1000, 50_000, 5, 0, 6);
        assert_eq!(clock_offset(&[good, after_a_step]), Err(ClockOffsetError::Stepped));
        let extreme = RoundTrip { sent: i64::MIN, received: i64::MIN, replied: i64::MAX, returned: i64::MAX };
        assert_eq!(clock_offset(&[extreme]), Ok(OffsetEstimate { offset_ns: 0, bound_ns: 0 }));
        let out_of_range =
            RoundTrip { sent: i64::MIN, received: i64::MAX, replied: i64::MAX, returned: i64::MIN };
        assert_eq!(clock_offset(&[out_of_range]), Err(ClockOffsetError::NoTrip));
    }

    proptest! {
        #[test]
        fn the_true_offset_lies_within_the_bound(
            offset in -10_000_000_000_i64..10_000_000_000,
            ways in prop::collection::vec((0_i64..20_000_000, 0_i64..1_000_000, 0_i64..20_000_000), 1..20),
        ) {
            let mut at = 1_800_000_000_000_000_000;
            let trips: Vec<RoundTrip> = ways.iter().map(|&(there, work, back)| {
                at += 100_000_000;
                trip(at, offset, there, work, back)
            }).collect();
            let found = clock_offset(&trips).unwrap();
            prop_assert!(found.offset_ns.abs_diff(offset) <= found.bound_ns, "{found:?}");
            let least = ways.iter().map(|(there, _, back)| there + back).min().unwrap();
            prop_assert_eq!(found.bound_ns, least.unsigned_abs().div_ceil(2));
        }

        #[test]
        fn any_times_are_taken(times in prop::array::uniform4(any::<i64>())) {
            let [sent, received, replied, returned] = times;
            let _ = clock_offset(&[RoundTrip { sent, received, replied, returned }]);
        }
    }
}
