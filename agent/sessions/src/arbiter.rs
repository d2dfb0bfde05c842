//! Who has which profiler: a workload's profiler takes one session at a time.
//!
//! ```text
//!           grant                     told_busy
//!  free ────────────> held ─────────────────────────> foreign
//!   ^  ^                │ release (the holder alone)     │ grant: asking again is the only way
//!   │  └────────────────┘                                │ to learn that it has become free
//!   └── the process is gone ─────────────────────────────┘──> held
//! ```
//!
//! A pure state machine: no I/O, no clock. A session is ours only while it is held here; whatever else runs in
//! a workload is somebody else's, and [`Arbiter::may_end`] never allows to end it.

use std::collections::BTreeMap;

use model::workload::ProcessKey;
use xprof::{client::Target, session::SessionName};

/// A profiler, by what cannot be mistaken for a later one where that is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profiler {
    /// Of a known process: its pid, its start, its port.
    Process(ProcessKey, u16),
    /// Only an address is known.
    Address(Target),
}

/// Who of us uses a profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// A capture, by the name of its session.
    Capture(SessionName),
}

/// A right to use one profiler, given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant(u64);

/// Who has a profiler; nobody where there is no state.
#[derive(Debug)]
enum State {
    /// One of us.
    Held { grant: Grant, user: User },
    /// Somebody else, as the profiler said when it was last asked.
    Foreign,
}

/// The arbiter; see the module.
#[derive(Debug, Default)]
pub struct Arbiter {
    states: BTreeMap<Profiler, State>,
    grants: u64,
}

impl Arbiter {
    /// Gives `profiler` to `user`.
    ///
    /// # Errors
    /// If one of us has it: who.
    pub fn grant(&mut self, profiler: &Profiler, user: User) -> Result<Grant, User> {
        if let Some(State::Held { user, .. }) = self.states.get(profiler) {
            return Err(user.clone());
        }
        self.grants += 1;
        let grant = Grant(self.grants);
        self.states.insert(profiler.clone(), State::Held { grant, user });
        Ok(grant)
    }

    /// The holder is done. Without effect for anybody else.
    pub fn release(&mut self, profiler: &Profiler, grant: Grant) {
        if self.may_end(profiler, grant) {
            self.states.remove(profiler);
        }
    }

    /// The profiler told the holder that somebody else has it.
    pub fn told_busy(&mut self, profiler: &Profiler, grant: Grant) {
        if self.may_end(profiler, grant) {
            self.states.insert(profiler.clone(), State::Foreign);
        }
    }

    /// Whether the session that runs in `profiler` is that of `grant`, and so its to end.
    pub fn may_end(&self, profiler: &Profiler, grant: Grant) -> bool {
        matches!(self.states.get(profiler), Some(State::Held { grant: held, .. }) if *held == grant)
    }

    /// Forgets profilers of processes that are gone, unless one of us still waits for them.
    pub fn forget(&mut self, alive: impl Fn(ProcessKey) -> bool) {
        self.states.retain(|profiler, state| match profiler {
            Profiler::Process(process, _) => alive(*process) || matches!(state, State::Held { .. }),
            Profiler::Address(_) => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Grant(u8, bool),
        Release(u8, usize),
        ToldBusy(u8, usize),
        Forget(u8),
    }

    fn profiler(n: u8) -> Profiler {
        Profiler::Process(ProcessKey { pid: u32::from(n), start_ticks: 1 }, 9012)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3_u8, any::<bool>()).prop_map(|(n, recorder)| Step::Grant(n, recorder)),
            (0..3_u8, 0..9_usize).prop_map(|(n, grant)| Step::Release(n, grant)),
            (0..3_u8, 0..9_usize).prop_map(|(n, grant)| Step::ToldBusy(n, grant)),
            (0..3_u8).prop_map(Step::Forget),
        ]
    }

    proptest! {
        /// Against a model: each profiler has at most one grant that counts, the last one given and not given back.
        #[test]
        fn one_holder_at_a_time_and_nobody_ends_what_is_not_his(steps in proptest::collection::vec(step(), 0..60)) {
            let mut arbiter = Arbiter::default();
            let mut given: Vec<(u8, Grant)> = Vec::new();
            let mut holders: BTreeMap<u8, Grant> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Grant(n, recorder) => {
                        let user = User::Capture(if recorder { "r" } else { "s" }.parse().unwrap());
                        let granted = arbiter.grant(&profiler(n), user);
                        prop_assert_eq!(granted.is_ok(), !holders.contains_key(&n));
                        if let Ok(grant) = granted {
                            prop_assert!(given.iter().all(|(_, old)| *old != grant));
                            given.push((n, grant));
                            holders.insert(n, grant);
                        }
                    }
                    Step::Release(n, index) => if let Some(&(_, grant)) = given.get(index) {
                        arbiter.release(&profiler(n), grant);
                        if holders.get(&n) == Some(&grant) {
                            holders.remove(&n);
                        }
                    },
                    Step::ToldBusy(n, index) => if let Some(&(_, grant)) = given.get(index) {
                        arbiter.told_busy(&profiler(n), grant);
                        if holders.get(&n) == Some(&grant) {
                            holders.remove(&n);
                            prop_assert!(matches!(arbiter.states.get(&profiler(n)), Some(State::Foreign)));
                        }
                    },
                    Step::Forget(n) => {
                        arbiter.forget(|process| process.pid != u32::from(n));
                        prop_assert!(!matches!(arbiter.states.get(&profiler(n)), Some(State::Foreign)));
                    }
                }
                for n in 0..3 {
                    for (_, grant) in &given {
                        prop_assert_eq!(arbiter.may_end(&profiler(n), *grant), holders.get(&n) == Some(grant));
                    }
                    let ours = matches!(arbiter.states.get(&profiler(n)), Some(State::Held { .. }));
                    prop_assert_eq!(ours, holders.contains_key(&n));
                }
            }
        }
    }

    #[test]
    fn a_later_process_with_the_same_pid_is_another() {
        let mut arbiter = Arbiter::default();
        let of = |start_ticks| Profiler::Process(ProcessKey { pid: 1, start_ticks }, 9012);
        let grant = arbiter.grant(&of(1), User::Capture("r".parse().unwrap())).unwrap();
        assert!(arbiter.grant(&of(2), User::Capture("r".parse().unwrap())).is_ok());
        assert!(!arbiter.may_end(&of(2), grant));
        let second = arbiter.grant(&of(1), User::Capture("x".parse().unwrap()));
        assert_eq!(second, Err(User::Capture("r".parse().unwrap())));
    }
}
