//! Which processes are recorded, and why the others are not. Pure.

use std::net::SocketAddr;

use host::workloads::RECORD_VARIABLE;
use model::workload::{Address, EndpointKind, Owner};
use store::segments::RecorderChoice;
use thiserror::Error;

use super::{
    settings::{RecorderMode, RecorderSettings},
    strategy::Strategy,
};
use crate::old_jaxlib;

/// Why a process is not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotRecorded {
    /// Nobody asked for it.
    #[error("recorder.mode is off; `tpuscope recorder on` switches it on for your own jobs")]
    Off,
    /// Its owner switched it off.
    #[error("it was switched off, with `tpuscope recorder off` or StopContinuousProfiling")]
    SwitchedOff,
    /// Its environment says so.
    #[error("TPUSCOPE_RECORD=0 is in its environment")]
    OptedOut,
    /// It has no profiler that can be used.
    #[error("{0}")]
    NoProfiler(String),
    /// A call could reach another process.
    #[error(
        "it shares its profiler port {0} with another process, and a call reaches either; give each process a port of its own"
    )]
    SharedPort(u16),
    /// A profile from outside may stop it for ever.
    #[error("{}", old_jaxlib::reason(.0))]
    OldJaxlib(String),
    /// Another program uses its profiler, or it traces itself.
    #[error(
        "another program used its profiler, or the program traces itself: {0}; it is recorded again when its owner \
         asks with `tpuscope recorder on`"
    )]
    ForeignUse(String),
    /// Recording it in this way harmed it.
    #[error("the strategy {0} was given up: {1}; `tpuscope recorder on` tries again")]
    Strategy(Strategy, String),
    /// The host has more processes than are recorded.
    #[error("{0} other processes of this host are recorded, which is the most")]
    TooMany(usize),
}

impl NotRecorded {
    /// Its name in the API.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::SwitchedOff => "switched_off",
            Self::OptedOut => "opted_out",
            Self::NoProfiler(_) => "no_profiler",
            Self::SharedPort(_) => "shared_port",
            Self::OldJaxlib(_) => "old_jaxlib",
            Self::ForeignUse(_) => "foreign_use",
            Self::Strategy(..) => "strategy",
            Self::TooMany(_) => "too_many",
        }
    }

    /// Whether somebody wanted it to be recorded: then the windows that it lacks are gaps.
    pub fn is_unwanted(&self) -> bool {
        matches!(self, Self::Off | Self::SwitchedOff | Self::OptedOut)
    }
}

/// How a process is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingPlan {
    /// In which way.
    pub strategy: Strategy,
    /// Its profiler.
    pub at: SocketAddr,
}

/// Whether the process of `owner` is recorded. `choice` is that of its user for its job; `foreign_use` is what was found
/// of another program at its profiler.
///
/// # Errors
/// Why it is not.
pub(super) fn plan(
    owner: &Owner,
    settings: &RecorderSettings,
    choice: Option<&RecorderChoice>,
    foreign_use: Option<&str>,
) -> Result<RecordingPlan, NotRecorded> {
    if owner.environment.get(RECORD_VARIABLE).is_some_and(|value| value.trim() == "0") {
        return Err(NotRecorded::OptedOut);
    }
    match choice {
        Some(choice) if !choice.is_on => return Err(NotRecorded::SwitchedOff),
        None if settings.mode == RecorderMode::Off => return Err(NotRecorded::Off),
        _ => {}
    }
    let strategy = strategy(settings, choice);
    if let Some(version) = old_jaxlib::that_hangs(&owner.versions) {
        return Err(NotRecorded::OldJaxlib(version.to_owned()));
    }
    if let Some(what) = foreign_use {
        return Err(NotRecorded::ForeignUse(what.to_owned()));
    }
    Ok(RecordingPlan { strategy, at: profiler(owner)? })
}

/// The strategy for the processes of a job: a session that is always open is only for those whose owner asked for it.
fn strategy(settings: &RecorderSettings, choice: Option<&RecorderChoice>) -> Strategy {
    match choice {
        None => Strategy::Periodic,
        Some(choice) => {
            let chosen = choice.strategy.as_deref().and_then(|name| name.parse().ok());
            chosen.unwrap_or(settings.strategy)
        }
    }
}

/// The profiler of `owner`.
pub(super) fn profiler(owner: &Owner) -> Result<SocketAddr, NotRecorded> {
    let mut obstacle = None;
    for endpoint in owner.endpoints.iter().filter(|endpoint| endpoint.kind == EndpointKind::Profiler) {
        match (&endpoint.unreachable, &endpoint.address) {
            (None, Address::Tcp(at)) if endpoint.listeners.iter().any(|key| *key != owner.process) => {
                obstacle = Some(NotRecorded::SharedPort(at.port()));
            }
            (None, Address::Tcp(at)) => return Ok(*at),
            (Some(why), at) => obstacle = Some(NotRecorded::NoProfiler(format!("{at}: {why}"))),
            (None, Address::Unix(_)) => {}
        }
    }
    Err(obstacle.unwrap_or_else(|| NotRecorded::NoProfiler("no profiler of it has been seen".to_owned())))
}

#[cfg(test)]
mod tests {
    use model::workload::{Endpoint, EndpointOrigin, ProcessKey, WorkloadId};

    use super::*;

    const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9012);

    fn owner() -> Owner {
        let process = ProcessKey { pid: 7, start_ticks: 1 };
        let endpoint = Endpoint {
            kind: EndpointKind::Profiler,
            address: Address::Tcp(AT),
            origin: EndpointOrigin::KnownDefault,
            listeners: vec![process],
            unreachable: None,
        };
        Owner { process, uid: 1000, endpoints: vec![endpoint], ..Owner::default() }
    }

    fn choice(is_on: bool, strategy: Option<&str>) -> RecorderChoice {
        let workload = WorkloadId::of(&owner().job, owner().uid);
        RecorderChoice { workload, uid: 1000, is_on, strategy: strategy.map(str::to_owned) }
    }

    fn on() -> RecorderSettings {
        RecorderSettings { mode: RecorderMode::On, ..RecorderSettings::default() }
    }

    #[test]
    fn a_process_is_recorded_when_the_settings_or_its_owner_say_so() {
        let off = RecorderSettings::default();
        let (wanted, refused) = (choice(true, None), choice(false, None));
        assert_eq!(plan(&owner(), &off, None, None), Err(NotRecorded::Off));
        assert_eq!(plan(&owner(), &off, Some(&wanted), None).unwrap().at, AT);
        assert_eq!(plan(&owner(), &on(), None, None).unwrap().strategy, Strategy::Periodic);
        assert_eq!(plan(&owner(), &on(), Some(&refused), None), Err(NotRecorded::SwitchedOff));
        let mut opted_out = owner();
        opted_out.environment.insert("TPUSCOPE_RECORD".into(), "0".into());
        assert_eq!(plan(&opted_out, &on(), Some(&wanted), None), Err(NotRecorded::OptedOut));
        opted_out.environment.insert("TPUSCOPE_RECORD".into(), "1".into());
        assert!(plan(&opted_out, &off, None, None).is_err() && plan(&opted_out, &on(), None, None).is_ok());
    }

    #[test]
    fn a_process_that_a_profile_may_hang_is_never_recorded() {
        let of = |package: &str, version: &str| {
            let versions = [(package.to_owned(), version.to_owned())].into();
            let owner = Owner { versions, ..owner() };
            plan(&owner, &on(), Some(&choice(true, None)), None).map(|plan| plan.strategy)
        };
        for old in ["0.7.2", "0.8.2", "0.4.38"] {
            assert_eq!(of("jaxlib", old), Err(NotRecorded::OldJaxlib(old.into())));
        }
        for fine in ["0.9.0", "0.10.2", "1.0"] {
            assert_eq!(of("jaxlib", fine), Ok(Strategy::Periodic), "{fine}");
        }
        assert_eq!(of("torch_xla", "0.7"), Ok(Strategy::Periodic));
    }

    #[test]
    fn a_process_that_another_program_uses_is_left_alone() {
        let busy = plan(&owner(), &on(), None, Some("active"));
        assert_eq!(busy, Err(NotRecorded::ForeignUse("active".into())));
        assert!(busy.unwrap_err().to_string().contains("when its owner asks"));
    }

    #[test]
    fn a_session_that_is_always_open_is_only_for_an_owner_who_asked() {
        let settings = RecorderSettings { strategy: Strategy::Drain, ..on() };
        assert_eq!(plan(&owner(), &settings, None, None).unwrap().strategy, Strategy::Periodic);
        for (chosen, wanted) in [(None, Strategy::Drain), (Some("ring"), Strategy::Ring)] {
            let planned = plan(&owner(), &settings, Some(&choice(true, chosen)), None).unwrap();
            assert_eq!(planned.strategy, wanted);
        }
        assert!(plan(&owner(), &settings, Some(&choice(true, Some("periodic"))), None).is_ok());
    }

    #[test]
    fn a_profiler_that_is_not_its_own_or_not_there_is_not_used() {
        let mut shared = owner();
        shared.endpoints[0].listeners.push(ProcessKey { pid: 8, start_ticks: 1 });
        assert_eq!(plan(&shared, &on(), None, None), Err(NotRecorded::SharedPort(9012)));
        let mut closed = owner();
        closed.endpoints[0].unreachable = Some("nothing listens there".into());
        let why = plan(&closed, &on(), None, None).unwrap_err().to_string();
        assert_eq!(why, "127.0.0.1:9012: nothing listens there");
        closed.endpoints.clear();
        assert!(matches!(plan(&closed, &on(), None, None), Err(NotRecorded::NoProfiler(_))));
    }
}
