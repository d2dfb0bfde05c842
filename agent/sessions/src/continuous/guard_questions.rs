//! When the guard is asked whether it still works, and until when it has to answer: pure.
//!
//! A guard that is stopped or hangs keeps its pipes open, so that its end is not seen. Must never take a guard for dead that
//! stops a session, which takes longer than an answer.

use std::time::Duration;

/// From one question to the next.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardDue {
    /// The next question.
    Ask,
    /// Nothing was heard of it since a question.
    NoAnswer,
}

/// The questions to one guard. All times are since any fixed instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GuardQuestions {
    next: Duration,
    /// Until when it has to say something.
    answer_until: Option<Duration>,
    /// Until when it may be busy.
    busy_until: Duration,
}

impl GuardQuestions {
    /// The guard was started at `now` and told of the sessions, which it answers.
    pub(super) fn started(now: Duration) -> Self {
        let mut questions = Self { next: now, answer_until: None, busy_until: now };
        questions.asked(now);
        questions
    }

    /// A question was sent at `now`.
    pub(super) fn asked(&mut self, now: Duration) {
        self.next = now + ASK_EVERY;
        // An earlier question is not answered yet: its time counts.
        self.answer_until.get_or_insert(now + ANSWER);
    }

    /// It said something.
    pub(super) fn heard(&mut self) {
        self.answer_until = None;
    }

    /// It said at `now` that it stops a session, which takes `within` at most: it does not answer meanwhile.
    pub(super) fn is_busy(&mut self, now: Duration, within: Duration) {
        self.busy_until = now + within;
    }

    /// What is due next, and when.
    pub(super) fn due(&self) -> (Duration, GuardDue) {
        let ask = (self.next, GuardDue::Ask);
        match self.answer_until.map(|until| until.max(self.busy_until + ANSWER)) {
            Some(until) if until <= self.next => (until, GuardDue::NoAnswer),
            _ => ask,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_guard_that_says_nothing_is_dead_after_the_time_for_an_answer() {
        let mut questions = GuardQuestions::started(S);
        assert_eq!(questions.due(), (6 * S, GuardDue::NoAnswer));
        questions.heard();
        assert_eq!(questions.due(), (6 * S, GuardDue::Ask));
        questions.asked(6 * S);
        assert_eq!(questions.due(), (11 * S, GuardDue::NoAnswer));
    }

    #[test]
    fn a_guard_that_stops_a_session_is_not_dead() {
        let mut questions = GuardQuestions::started(S);
        questions.heard();
        questions.is_busy(2 * S, 20 * S);
        for at in [6, 11, 16, 21, 26] {
            assert_eq!(questions.due(), (at * S, GuardDue::Ask));
            questions.asked(at * S);
        }
        assert_eq!(questions.due(), (27 * S, GuardDue::NoAnswer));
    }

    proptest! {
        /// A guard that answers within the time is never dead; one that stops to answer is, within two intervals.
        #[test]
        fn only_a_guard_that_says_nothing_is_dead(answers in prop::collection::vec(0..4900_u64, 0..40)) {
            let mut questions = GuardQuestions::started(Duration::ZERO);
            let mut last = Duration::ZERO;
            for answer in answers {
                questions.heard();
                let (at, due) = questions.due();
                prop_assert_eq!(due, GuardDue::Ask);
                questions.asked(at);
                let (until, due) = questions.due();
                last = at + Duration::from_millis(answer);
                prop_assert!(due == GuardDue::Ask || until > last);
            }
            let dead = loop {
                match questions.due() {
                    (at, GuardDue::Ask) => questions.asked(at),
                    (at, GuardDue::NoAnswer) => break at,
                }
            };
            prop_assert!(dead <= last + ASK_EVERY + ANSWER);
        }
    }
}
