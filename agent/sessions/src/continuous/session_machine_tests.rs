//! The machine against a model of a server, with answers that are lost, requests that come late, and a foreign client.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    Foreign,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is answered.
    Answered,
    /// It never arrives.
    Lost,
    /// It is worked on at once, and its answer is lost.
    AnswerLost,
    /// It is worked on so many milliseconds later, and its answer is lost.
    Late(u16),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Answered),
        1 => Just(Fate::Lost),
        1 => Just(Fate::AnswerLost),
        1 => (0..4000_u16).prop_map(Fate::Late),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u16),
    Drain(Fate),
    ForeignStart,
    ForeignStop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..5000_u16).prop_map(Step::Wait),
        4 => fate().prop_map(Step::Drain),
        1 => Just(Step::ForeignStart),
        1 => Just(Step::ForeignStop),
    ]
}

/// A server: one session at a time. A snapshot takes the session away and puts it back when it is done.
#[derive(Debug, Default)]
struct Server {
    session: Option<Whose>,
    /// A start that comes later.
    start_at: Option<Duration>,
    /// When the session comes back that a snapshot took.
    back_at: Option<(Duration, Whose)>,
}

impl Server {
    fn advance(&mut self, now: Duration) {
        if self.start_at.take_if(|at| *at <= now).is_some() && self.session.is_none() {
            self.session = Some(Whose::Ours);
        }
        if let Some((_, whose)) = self.back_at.take_if(|(at, _)| *at <= now)
            && self.session.is_none()
        {
            self.session = Some(whose);
        }
    }

    fn start(&mut self) -> StartAnswer {
        if self.session.is_some() {
            return StartAnswer::Refused;
        }
        self.session = Some(Whose::Ours);
        StartAnswer::Started
    }

    fn has_ours(&self) -> bool {
        let ours = Some(Whose::Ours);
        self.session == ours || self.start_at.is_some() || self.back_at.map(|(_, whose)| whose) == ours
    }
}

struct Run {
    server: Server,
    machine: SessionMachine,
    now: Duration,
    /// Whether anything happened that hides from us whose session there is.
    any_lost: bool,
    /// A foreign session was found or stopped where a request of ours was under way: it is in the way of ours.
    met_foreign: bool,
}

impl Run {
    fn start(fate: Fate) -> Self {
        let mut run = Self {
            server: Server::default(),
            machine: SessionMachine::starting(),
            now: Duration::ZERO,
            any_lost: fate != Fate::Answered,
            met_foreign: false,
        };
        let answer = match fate {
            Fate::Answered => run.server.start(),
            Fate::Lost => StartAnswer::Unknown,
            Fate::AnswerLost => {
                run.server.start();
                StartAnswer::Unknown
            }
            Fate::Late(ms) => {
                run.server.start_at = Some(Duration::from_millis(ms.into()));
                StartAnswer::Unknown
            }
        };
        run.machine.started(answer);
        run
    }

    fn drain(&mut self, fate: Fate) {
        if !self.machine.drain() {
            return;
        }
        self.any_lost |= fate != Fate::Answered;
        let answer = match (fate, self.server.session) {
            (Fate::Answered, None) => DrainAnswer::NoSession,
            (Fate::Answered, Some(Whose::Foreign)) => DrainAnswer::NotOurs,
            (Fate::Answered, Some(Whose::Ours)) => DrainAnswer::Taken,
            (Fate::Late(ms), Some(whose)) => {
                self.server.session = None;
                self.server.back_at = Some((self.now + Duration::from_millis(ms.into()), whose));
                DrainAnswer::Unknown
            }
            _ => DrainAnswer::Unknown,
        };
        self.met_foreign |= answer == DrainAnswer::NotOurs;
        self.machine.drained(answer);
    }

    /// Stops until the end; the first answers have these fates.
    fn stop(&mut self, fates: &[Fate]) -> Result<(), TestCaseError> {
        self.machine.stop();
        let mut fates = fates.iter();
        while self.machine.may_be_open() {
            prop_assert!(self.now < Duration::from_secs(1000), "it ends");
            self.server.advance(self.now);
            let taken = match fates.next() {
                Some(Fate::Lost) => None,
                Some(Fate::AnswerLost | Fate::Late(_)) => {
                    self.server.session = None;
                    None
                }
                Some(Fate::Answered) | None => Some(self.server.session.take()),
            };
            let answer = match taken {
                None => StopAnswer::Failed,
                Some(None) => StopAnswer::NoSession,
                Some(Some(whose)) => {
                    prop_assert!(whose == Whose::Ours || self.any_lost, "a foreign session was stopped");
                    self.met_foreign |= whose == Whose::Foreign;
                    StopAnswer::Stopped
                }
            };
            if let StopStep::Again(wait) = self.machine.stop_answered(answer, self.now) {
                self.now += wait;
            }
        }
        Ok(())
    }
}

proptest! {
    /// Whatever is lost or late, nothing of ours is left at the end, unless a foreign session came in between; and as long
    /// as nothing is lost and nobody else stops our session, nothing foreign is stopped.
    #[test]
    fn nothing_of_ours_is_left(
        start in fate(),
        steps in prop::collection::vec(step(), 0..12),
        stops in prop::collection::vec(fate(), 0..5),
    ) {
        let mut run = Run::start(start);
        for step in steps {
            match step {
                Step::Wait(ms) => run.now += Duration::from_millis(ms.into()),
                Step::Drain(fate) => run.drain(fate),
                Step::ForeignStart => { run.server.session.get_or_insert(Whose::Foreign); }
                // A foreign client that stops ours may start its own before we can see that.
                Step::ForeignStop => run.any_lost |= run.server.session.take() == Some(Whose::Ours),
            }
            run.server.advance(run.now);
            if !run.machine.may_be_open() {
                prop_assert!(run.met_foreign || !run.server.has_ours(), "over, and open: {:?}", run.server);
            }
        }
        run.stop(&stops)?;
        // What is late comes within the time to settle.
        run.server.advance(run.now + super::super::stopping::SETTLE);
        prop_assert!(run.met_foreign || !run.server.has_ours(), "{:?}", run.server);
    }
}

#[test]
fn three_drains_without_an_answer_end_a_session() {
    let mut machine = SessionMachine::starting();
    machine.started(StartAnswer::Started);
    for _ in 0..MOST_FAILED_DRAINS {
        assert_eq!(machine.stage(), SessionStage::Running);
        assert!(machine.drain() && !machine.drain());
        machine.drained(DrainAnswer::Unknown);
    }
    assert!(matches!(machine.stage(), SessionStage::Stopping(_)));
    assert!(!machine.drain());
}

#[test]
fn no_session_after_a_lost_answer_is_no_proof() {
    let mut machine = SessionMachine::starting();
    machine.started(StartAnswer::Started);
    for answer in [DrainAnswer::Unknown, DrainAnswer::NoSession] {
        assert!(machine.drain());
        machine.drained(answer);
        assert_eq!(machine.stage(), SessionStage::Running);
    }
    assert!(machine.drain());
    machine.drained(DrainAnswer::Taken);
    assert!(machine.drain());
    machine.drained(DrainAnswer::NoSession);
    assert_eq!(machine.stage(), SessionStage::Ended(SessionEnd::Lost));
}

#[test]
fn somebody_elses_session_is_left_alone() {
    let mut machine = SessionMachine::starting();
    machine.started(StartAnswer::Refused);
    assert_eq!(machine.stage(), SessionStage::Ended(SessionEnd::NotStarted));
    let mut machine = SessionMachine::starting();
    machine.started(StartAnswer::Started);
    assert!(machine.drain());
    machine.drained(DrainAnswer::NotOurs);
    machine.stop();
    assert_eq!(machine.stage(), SessionStage::Ended(SessionEnd::Lost));
}
