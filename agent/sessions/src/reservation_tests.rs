//! A reservation against a model: random sequences of messages and time.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The clock of the host at a time of the lease: they need not agree.
fn host_time(now: Duration) -> Timestamp {
    Timestamp(1_700_000_000_000_000_000).plus(now)
}

/// A start so many milliseconds from the time at which it comes.
fn start(now: Duration, ahead_ms: i64) -> ReservationEvent {
    let now = host_time(now);
    ReservationEvent::Start { start: Timestamp(now.0 + ahead_ms * 1_000_000), now }
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Ready,
    Renew,
    Start(i64),
    ReserveAgain,
    HangUp,
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..8_000_u64).prop_map(Step::Wait),
        1 => (100_000..700_000_u64).prop_map(Step::Wait),
        4 => Just(Step::Ready),
        8 => Just(Step::Renew),
        2 => (-2_000..20_000_i64).prop_map(Step::Start),
        1 => (3_590_000..3_610_000_i64).prop_map(Step::Start),
        1 => Just(Step::ReserveAgain),
        1 => Just(Step::HangUp),
        4 => Just(Step::Tick),
    ]
}

proptest! {
    #[test]
    fn the_window_begins_once_and_only_while_the_caller_is_there(
        lease_ms in 1..20_000_u64,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let lease = Duration::from_millis(lease_ms);
        let mut now = seconds(1000);
        let (begun, mut heard) = (now, now);
        let mut reservation = HostReservation::new(lease, now);
        let (mut is_ready, mut started, mut over) = (false, false, None::<ReservationError>);
        for step in steps {
            let event = match step {
                Step::Wait(ms) => {
                    now += Duration::from_millis(ms);
                    continue;
                }
                Step::Ready => ReservationEvent::Ready,
                Step::Renew => ReservationEvent::Renewed,
                Step::Start(ahead) => start(now, ahead),
                Step::ReserveAgain => ReservationEvent::ReservedAgain,
                Step::HangUp => ReservationEvent::HungUp,
                Step::Tick => ReservationEvent::Tick,
            };
            let answer = reservation.apply(event, now);
            if let Some(error) = &over {
                prop_assert_eq!(answer, Err(error.clone()), "what is over stays over, for the same reason");
                prop_assert_eq!(reservation.deadline(), None);
                continue;
            }
            let silent = now - heard >= lease;
            let no_start = !started && now - begun >= START_LIMIT;
            match &answer {
                Err(ReservationError::LeaseOver(_)) => prop_assert!(silent),
                Err(ReservationError::NoStart) => prop_assert!(no_start && !silent),
                _ => prop_assert!(!silent && !no_start, "{:?} after the deadline", answer),
            }
            match (&answer, event) {
                (Ok(Some(at)), ReservationEvent::Start { start, now }) => {
                    prop_assert!(is_ready && !started);
                    prop_assert_eq!(*at, start);
                    prop_assert!(start >= now && start <= now.plus(HOUR));
                    started = true;
                }
                (Ok(Some(_)), other) => prop_assert!(false, "{:?} begins the window", other),
                (Ok(None), ReservationEvent::Start { .. } | ReservationEvent::HungUp | ReservationEvent::ReservedAgain) => {
                    prop_assert!(false, "{:?} goes on", event);
                }
                (Ok(None), _) => {}
                (Err(ReservationError::LateStart(by)), ReservationEvent::Start { start, now }) => {
                    prop_assert!(start < now && *by == start.age(now));
                }
                (Err(error), _) => {
                    let of_time = matches!(error, ReservationError::LeaseOver(_) | ReservationError::NoStart);
                    let harmless = matches!(event, ReservationEvent::Ready | ReservationEvent::Renewed | ReservationEvent::Tick);
                    prop_assert!(of_time || !harmless, "{:?} ends it: {}", event, error);
                }
            }
            is_ready |= event == ReservationEvent::Ready;
            if matches!(event, ReservationEvent::Renewed | ReservationEvent::Start { .. }) {
                heard = now;
            }
            over = answer.err();
            if over.is_none() {
                let limit = if started { heard + lease } else { (heard + lease).min(begun + START_LIMIT) };
                prop_assert_eq!(reservation.deadline(), Some(limit));
            }
        }
    }
}

#[test]
fn a_start_that_is_over_is_refused_with_how_late_it_came() {
    let mut reservation = HostReservation::new(DEFAULT_LEASE, Duration::ZERO);
    reservation.apply(ReservationEvent::Ready, SECOND).unwrap();
    let error = reservation.apply(start(SECOND, -1_250), SECOND).unwrap_err();
    assert_eq!(error.to_string(), "the start was 1.250 s in the past when it came");
    assert_eq!(reservation.deadline(), None);
}

#[test]
fn the_lease_goes_on_after_the_start() {
    let mut reservation = HostReservation::new(DEFAULT_LEASE, Duration::ZERO);
    reservation.apply(ReservationEvent::Ready, SECOND).unwrap();
    assert_eq!(reservation.apply(start(SECOND, 0), SECOND), Ok(Some(host_time(SECOND))));
    reservation.apply(ReservationEvent::Renewed, seconds(9)).unwrap();
    assert_eq!(reservation.deadline(), Some(seconds(19)));
    let error = reservation.apply(ReservationEvent::Tick, seconds(19)).unwrap_err();
    assert_eq!(error.to_string(), "the caller sent nothing for 10 s: its reservation ended");
}

#[test]
fn a_start_must_follow_ready_and_must_come_once() {
    let mut reservation = HostReservation::new(DEFAULT_LEASE, Duration::ZERO);
    let early = reservation.apply(start(SECOND, 10), SECOND).unwrap_err();
    assert_eq!(early.to_string(), "the caller sent a start before `ready`");
    let mut reservation = HostReservation::new(DEFAULT_LEASE, Duration::ZERO);
    reservation.apply(ReservationEvent::Ready, SECOND).unwrap();
    reservation.apply(start(SECOND, 10), SECOND).unwrap();
    let again = reservation.apply(start(SECOND, 20), SECOND).unwrap_err();
    assert_eq!(again.to_string(), "the caller sent a second start");
}

#[test]
fn a_caller_that_only_renews_does_not_hold_the_profilers_for_ever() {
    let mut reservation = HostReservation::new(DEFAULT_LEASE, Duration::ZERO);
    let mut now = Duration::ZERO;
    while now + seconds(9) < START_LIMIT {
        now += seconds(9);
        reservation.apply(ReservationEvent::Renewed, now).unwrap();
    }
    assert_eq!(reservation.deadline(), Some(START_LIMIT));
    assert_eq!(reservation.apply(ReservationEvent::Tick, START_LIMIT), Err(ReservationError::NoStart));
}
