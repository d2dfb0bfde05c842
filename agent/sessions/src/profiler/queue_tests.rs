//! The request queue against a model: random sequences of requests, answers and time, and the sequences that matter most.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What the outside does to a queue.
#[derive(Debug, Clone)]
enum Step {
    /// Time passes, in milliseconds.
    Wait(u16),
    /// A user reserves for so many milliseconds.
    Reserve(u16),
    /// The given lease, counted from the last one, asks for a probe (0), a call (1) or a profile.
    Push(usize, u8),
    /// The given lease, counted from the last one, is released.
    Release(usize),
    /// Starts the next action, unless one runs.
    Next,
    /// The running action ends: well, failed, or as foreign.
    Finish(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2000_u16).prop_map(Step::Wait),
        (1..3000_u16).prop_map(Step::Reserve),
        (0..3_usize, 0..4_u8).prop_map(|(lease, operation)| Step::Push(lease, operation)),
        (0..3_usize).prop_map(Step::Release),
        Just(Step::Next),
        (0..3_u8).prop_map(Step::Finish),
    ]
}

fn user(n: usize) -> ProfilerUser {
    ProfilerUser::Capture(format!("s{n}").parse().unwrap())
}

fn foreign() -> ForeignUse {
    ForeignUse { continuous: false, message: "active".to_owned(), connected: Vec::new() }
}

/// What must hold, kept by simpler means than the queue's.
#[derive(Default)]
struct Model {
    now: Duration,
    leases: Vec<LeaseId>,
    /// The lease that counts: its index and its end.
    current: Option<(usize, Duration)>,
    foreign_at: Option<Duration>,
    requests: BTreeMap<RequestId, usize>,
    running: Option<Action>,
    /// Sessions that may be open in the profiler.
    open: Vec<String>,
    sessions: usize,
}

impl Model {
    fn expire(&mut self) {
        self.current.take_if(|(_, until)| *until <= self.now);
        self.foreign_at.take_if(|at| *at + FRESH <= self.now);
    }

    fn reserve(&mut self, queue: &mut RequestQueue, until: Duration) -> Result<(), TestCaseError> {
        self.expire();
        let next = self.leases.len();
        match (queue.reserve(user(next), until, self.now), self.current, self.foreign_at) {
            (Ok(lease), None, None) => {
                prop_assert!(!self.leases.contains(&lease));
                self.leases.push(lease);
                self.current = Some((next, until));
            }
            (Err(Refusal::Reserved(by)), Some((holder, _)), _) => prop_assert_eq!(by, user(holder)),
            (Err(Refusal::Foreign(_, age)), None, Some(at)) => {
                prop_assert!(age < FRESH);
                prop_assert_eq!(age, self.now - at);
            }
            other => prop_assert!(false, "{:?}", other),
        }
        Ok(())
    }

    fn next(&mut self, queue: &mut RequestQueue) -> Result<(), TestCaseError> {
        let Some(action) = queue.next_action() else { return Ok(()) };
        prop_assert!(self.running.is_none(), "one action at a time");
        match &action {
            Action::Probe(request) | Action::Call(request) | Action::Profile(request, _) => {
                let current = self.current.map(|(index, _)| index);
                prop_assert_eq!(self.requests.get(request).copied(), current, "of the lease that counts");
                prop_assert!(self.open.is_empty(), "nothing begins before {:?} is ended", self.open);
            }
            Action::End(session) => prop_assert!(self.open.contains(session), "{session} is not ours to end"),
        }
        if let Action::Profile(_, session) = &action {
            self.open.push(session.clone());
        }
        self.running = Some(action);
        Ok(())
    }

    fn finish(&mut self, queue: &mut RequestQueue, how: u8) {
        let Some(action) = self.running.take() else { return };
        let outcome = match (how, &action) {
            (1, _) => Outcome::Failed,
            (2, Action::Profile(..) | Action::Call(_)) => Outcome::Foreign(foreign()),
            _ => Outcome::Done,
        };
        match (&action, &outcome) {
            (Action::Profile(..) | Action::Call(_), Outcome::Foreign(_)) => {
                self.open.clear();
                self.foreign_at = Some(self.now);
            }
            // After the end nothing of ours is open: the server has answered, or is gone.
            (Action::Profile(..), Outcome::Done) | (Action::End(_), _) => self.open.clear(),
            _ => {}
        }
        queue.finished(outcome, self.now);
    }

    fn take(&mut self, queue: &mut RequestQueue, step: &Step) -> Result<(), TestCaseError> {
        let nth = |leases: &[LeaseId], back: usize| leases.len().checked_sub(back + 1);
        match *step {
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms.into());
                queue.expire(self.now);
                self.expire();
            }
            Step::Reserve(ms) => self.reserve(queue, self.now + Duration::from_millis(ms.into()))?,
            Step::Push(back, operation) => {
                let Some(index) = nth(&self.leases, back) else { return Ok(()) };
                self.sessions += 1;
                let session = format!("id{}", self.sessions);
                let operation = match operation {
                    0 => ProfilerOperation::Probe,
                    1 => ProfilerOperation::Call,
                    _ => ProfilerOperation::Profile(session),
                };
                let accepted = queue.push(self.leases[index], operation);
                let holds = self.current.is_some_and(|(current, _)| current == index);
                prop_assert_eq!(accepted == Err(NotAccepted::LeaseOver), !holds);
                if let Ok(request) = accepted {
                    self.requests.insert(request, index);
                }
            }
            Step::Release(back) => {
                let Some(index) = nth(&self.leases, back) else { return Ok(()) };
                queue.release(self.leases[index]);
                self.current.take_if(|(current, _)| *current == index);
            }
            Step::Next => self.next(queue)?,
            Step::Finish(how) => self.finish(queue, how),
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn one_user_at_a_time_and_only_own_sessions_are_ended(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let (mut queue, mut model) = (RequestQueue::default(), Model::default());
        for step in &steps {
            model.take(&mut queue, step)?;
            let abandoned = model.running.as_ref().is_some_and(|action| match action {
                Action::Probe(request) | Action::Call(request) | Action::Profile(request, _) => {
                    Some(model.requests[request]) != model.current.map(|(index, _)| index)
                }
                Action::End(_) => false,
            });
            prop_assert_eq!(queue.must_abandon(), abandoned);
            prop_assert!(queue.next_expiry().is_none_or(|at| at > model.now));
        }
        // Whatever happened: given time, all that may be open is ended and the profiler is free.
        let far = Step::Wait(4000);
        for step in [&far, &Step::Finish(1), &Step::Next, &Step::Finish(0), &far, &far] {
            model.take(&mut queue, step)?;
        }
        prop_assert!(model.open.is_empty(), "{:?} is left open", model.open);
        prop_assert!(queue.is_idle());
    }
}

const S: Duration = Duration::from_secs(1);

#[test]
fn a_failed_profile_is_ended_before_the_next_user_begins() {
    let mut queue = RequestQueue::default();
    let first = queue.reserve(user(1), 9 * S, S).unwrap();
    queue.push(first, ProfilerOperation::Profile("a".to_owned())).unwrap();
    assert!(matches!(queue.next_action(), Some(Action::Profile(_, id)) if id == "a"));
    queue.release(first);
    let second = queue.reserve(user(2), 9 * S, S).unwrap();
    queue.push(second, ProfilerOperation::Probe).unwrap();
    assert!(queue.must_abandon() && queue.next_action().is_none());
    queue.finished(Outcome::Failed, S);
    assert_eq!(queue.next_action(), Some(Action::End("a".to_owned())));
    assert_eq!(queue.next_action(), None);
    queue.finished(Outcome::Failed, S);
    assert!(matches!(queue.next_action(), Some(Action::Probe(_))));
}

#[test]
fn a_foreign_session_is_never_ended_and_soon_asked_about_again() {
    let mut queue = RequestQueue::default();
    let lease = queue.reserve(user(1), 9 * S, S).unwrap();
    queue.push(lease, ProfilerOperation::Profile("a".to_owned())).unwrap();
    queue.next_action().unwrap();
    queue.finished(Outcome::Foreign(foreign()), 2 * S);
    queue.release(lease);
    assert_eq!(queue.next_action(), None, "nothing to end");
    let early = 2 * S + FRESH / 4;
    assert_eq!(queue.reserve(user(2), 9 * S, early), Err(Refusal::Foreign(foreign(), FRESH / 4)));
    assert!(queue.reserve(user(2), 9 * S, 2 * S + FRESH).is_ok());
}

#[test]
fn a_lease_ends_by_itself() {
    let mut queue = RequestQueue::default();
    let lease = queue.reserve(user(1), 5 * S, S).unwrap();
    assert_eq!(queue.reserve(user(2), 9 * S, 4 * S), Err(Refusal::Reserved(user(1))));
    assert_eq!(queue.next_expiry(), Some(5 * S));
    assert!(queue.reserve(user(2), 9 * S, 5 * S).is_ok());
    assert_eq!(queue.push(lease, ProfilerOperation::Probe), Err(NotAccepted::LeaseOver));
}

#[test]
fn waiting_requests_are_bounded() {
    let mut queue = RequestQueue::default();
    let lease = queue.reserve(user(1), 5 * S, S).unwrap();
    for _ in 0..MAX_WAITING {
        queue.push(lease, ProfilerOperation::Probe).unwrap();
    }
    assert_eq!(queue.push(lease, ProfilerOperation::Probe), Err(NotAccepted::TooMany));
}

proptest! {
    #[test]
    fn the_recorder_makes_way_for_a_capture_and_for_nobody_else(
        held_ms in 1..20_000_u64,
        asked_ms in 0..20_000_u64,
        recorder_holds in any::<bool>(),
        recorder_asks in any::<bool>(),
    ) {
        let of = |is_recorder| if is_recorder { ProfilerUser::Recorder } else { user(1) };
        let (until, asked) = (Duration::from_millis(held_ms), Duration::from_millis(asked_ms));
        let mut queue = RequestQueue::default();
        let lease = queue.reserve(of(recorder_holds), until, Duration::ZERO).unwrap();
        let asks = of(recorder_asks);
        let holds = asked < until;
        let way = queue.makes_way(&asks, asked);
        prop_assert_eq!(way, holds && recorder_holds && !recorder_asks);
        prop_assert_eq!(queue.holds(lease), holds, "it has time to receive what was recorded");
        let end = if way { until.min(asked + YIELD) } else { until };
        if holds {
            prop_assert_eq!(queue.next_expiry(), Some(end));
            prop_assert_eq!(queue.reserve(user(2), end + S, asked), Err(Refusal::Reserved(of(recorder_holds))));
        }
        prop_assert!(queue.reserve(user(2), end + asked + S, end.max(asked)).is_ok());
    }
}
