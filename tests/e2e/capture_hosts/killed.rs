//! kill -9 of the coordinator, of an agent and of a workload in each phase of a capture over two hosts with real jobs: the
//! profilers are free, and the session of the other host is whole.

use std::{
    thread,
    time::{Duration, Instant},
};

use fakes::{
    command::RunningCommand,
    held_call::HeldCall,
    jax_job::{JaxJob, RunningJaxJob},
    profiler_probe::becomes_free,
    wait::until,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{Cluster, hosts, why};
use crate::profiler_agent::Agent;

/// How far the capture is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillPhase {
    Dialling,
    Clock,
    Reserved,
    WaitingForStart,
    Window,
    Fetching,
    Manifest,
}

use KillPhase::{Clock, Dialling, Fetching, Manifest, Reserved, WaitingForStart, Window};

/// The time after which an agent frees a host by itself.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// The host that stays.
const OTHER: &str = "a";

impl KillPhase {
    /// The call that is held in this phase, which one of them, and whether it is that of the other host.
    fn held_call(self) -> Option<(&'static str, usize, bool)> {
        match self {
            Dialling => Some(("Host/Status", 1, false)),
            Clock => Some(("Host/Clock", 4, false)),
            // This one is reserved, and the other one is not yet.
            Reserved => Some(("Captures/CaptureOnHost", 1, true)),
            WaitingForStart | Window => None,
            Fetching => Some(("Sessions/Fetch", 1, false)),
            Manifest => Some(("Uploads/PutManifest", 1, false)),
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            WaitingForStart => &["--duration", "100ms", "--start-in", "3s"],
            // Long enough for a kill in it.
            Window => &["--duration", "3s"],
            Manifest => &["--duration", "100ms", "--to", "shared"],
            _ => &["--duration", "100ms"],
        }
    }
}

/// A capture that is in a phase.
struct StoppedCapture {
    capture: RunningCommand,
    held: Option<HeldCall>,
    session: String,
    /// The host of the victim, as it was given.
    given: String,
}

/// Agents with jobs: `a` stays, the agent of `b` is killed, and the job of `w0`, `w1`, ….
struct HostsWithJobs {
    cluster: Cluster,
    bucket: TempDir,
    jobs: Vec<(String, RunningJaxJob)>,
}

impl HostsWithJobs {
    fn start(workloads: usize) -> Self {
        let names = [OTHER.to_owned(), "b".to_owned()];
        let names: Vec<String> =
            names.into_iter().chain((0..workloads).map(|number| format!("w{number}"))).collect();
        let start = || JaxJob::new().step_ms(20).tell_traces().start();
        let jobs: Vec<_> = thread::scope(|scope| {
            let starting: Vec<_> = names.iter().map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|job| job.join().unwrap()).collect()
        });
        let bucket = tempfile::tempdir().unwrap();
        let settings =
            format!("[[destination]]\nname = 'shared'\nurl = 'file://{}'\n", bucket.path().display());
        let mut cluster = Cluster::new();
        for (name, job) in names.iter().zip(&jobs) {
            cluster.add(name, Agent::start_as(&format!("vm-{name}"), &[job.target()], &settings));
        }
        Self { cluster, bucket, jobs: names.into_iter().zip(jobs).collect() }
    }

    fn job(&mut self, host: &str) -> &mut RunningJaxJob {
        let found = self.jobs.iter_mut().find(|(name, _)| name == host);
        &mut found.unwrap_or_else(|| panic!("no job on {host}")).1
    }

    /// Captures `a` and a host until the capture is in the phase.
    fn stop_in(&mut self, phase: KillPhase, host: &str, victim: &str) -> StoppedCapture {
        let session = format!("{victim}-{phase:?}").to_lowercase();
        let (mut given, mut other) = (host.to_owned(), OTHER.to_owned());
        let held = phase.held_call().map(|(method, number, of_other)| {
            let name = if of_other { &mut other } else { &mut given };
            let agent = self.cluster.agent(name).home.path().join("agent.sock");
            *name = format!("{session}-{name}");
            HeldCall::start(&self.cluster.folder.path().join("sockets").join(&name), &agent, method, number)
        });
        while self.job(host).said_now().is_some() {}
        // The first host puts the manifest.
        let list = format!("{given},{other}");
        let arguments = [&["--session", &session], phase.arguments()].concat();
        let mut capture = self.cluster.start(&list, &arguments);
        if let Some(held) = &held {
            held.wait();
        }
        let reserved = |host| {
            let line = format!("reserved for a capture over several hosts session={session} ");
            self.cluster.agent(host).log().contains(&line)
        };
        match phase {
            Reserved => until("the reservation", || reserved(host)),
            WaitingForStart => until("the reservations", || reserved(host) && reserved(OTHER)),
            Window => self.job(host).says("traced"),
            Dialling | Clock | Fetching | Manifest => {}
        }
        assert!(capture.alive(), "{session}");
        StoppedCapture { capture, held, session, given }
    }

    /// The agent of a host can capture, long before the lease of a dead caller ends.
    fn is_free_at_once(&self, host: &str, killed: Instant, what: &str) {
        until("the agent to be free", || {
            self.cluster.agent(host).ask(&["capture", "--duration", "10ms"]).code == Some(0)
        });
        let after = killed.elapsed();
        assert!(after < LEASE, "{what}: {host} was free after {after:?}");
    }
}

#[test]
fn whatever_is_killed_in_whatever_phase_profilers_are_free_and_the_other_host_is_whole() {
    let phases = [Dialling, Clock, Reserved, WaitingForStart, Window, Fetching, Manifest];
    let mut with_jobs = HostsWithJobs::start(phases.len());
    for phase in phases {
        a_killed_coordinator_holds_no_host(&mut with_jobs, phase);
        a_killed_agent_is_missing(&mut with_jobs, phase);
    }
    for (number, phase) in phases.into_iter().enumerate() {
        a_killed_workload_is_missing(&mut with_jobs, phase, &format!("w{number}"));
    }
}

fn a_killed_coordinator_holds_no_host(with_jobs: &mut HostsWithJobs, phase: KillPhase) {
    let StoppedCapture { capture, held, session, .. } = with_jobs.stop_in(phase, "b", "coordinator");
    let killed = Instant::now();
    capture.signal_and_end(Signal::SIGKILL);
    drop(held);
    for host in [OTHER, "b"] {
        with_jobs.is_free_at_once(host, killed, &session);
        let agent = with_jobs.cluster.agent(host);
        until("the capture to be over", || agent.staged().is_empty());
        // What was recorded before is kept by its agent, and here nobody knows whether it recorded.
        let kept = agent.sessions().contains(&session);
        assert_eq!(kept, matches!(phase, Fetching | Manifest), "{session} on {host}");
    }
    assert!(!with_jobs.cluster.session(&session).exists(), "{session}");
}

fn a_killed_agent_is_missing(with_jobs: &mut HostsWithJobs, phase: KillPhase) {
    let StoppedCapture { capture, held, session, given } = with_jobs.stop_in(phase, "b", "agent");
    with_jobs.cluster.agent_mut("b").signal(Signal::SIGKILL);
    with_jobs.cluster.agent_mut("b").end();
    release(held.as_ref());
    let ended = capture.end();
    if phase == Manifest {
        // The next agent puts it.
        assert_eq!(ended.code, Some(0), "{session}: {ended:?}");
        assert!(
            with_jobs.bucket.path().join("plugins/profile").join(&session).join("manifest.json").exists()
        );
    } else {
        ended.failed(18, "the session lacks 1 host");
        let manifest = with_jobs.cluster.manifest(&session);
        assert_eq!(hosts(&manifest), (vec![format!("vm-{OTHER}")], vec![given.clone()]), "{session}");
        let why = why(&manifest, &given);
        assert!(why.contains("the agent closed the connection"), "{session}: {why}");
        // What was recorded before is kept by its agent.
        let may_have_recorded = matches!(phase, WaitingForStart | Window | Fetching);
        let remedy = format!("`tpuscope sessions fetch {session} --output DIR`");
        assert_eq!(ended.stdout.contains(&remedy), may_have_recorded, "{session}: {}", ended.stdout);
    }
    with_jobs.cluster.agent_mut("b").restart();
    becomes_free(&with_jobs.job("b").target());
    becomes_free(&with_jobs.job(OTHER).target());
}

fn a_killed_workload_is_missing(with_jobs: &mut HostsWithJobs, phase: KillPhase, host: &str) {
    let StoppedCapture { capture, held, session, given } = with_jobs.stop_in(phase, host, "workload");
    with_jobs.job(host).kill();
    release(held.as_ref());
    let ended = capture.end();
    match phase {
        // Its trace was there before.
        Manifest => {
            assert_eq!(ended.code, Some(0), "{session}: {ended:?}");
            assert!(
                with_jobs.bucket.path().join("plugins/profile").join(&session).join("manifest.json").exists()
            );
        }
        Fetching => {
            assert_eq!(ended.code, Some(0), "{session}: {ended:?}");
            assert_eq!(hosts(&with_jobs.cluster.manifest(&session)).1, Vec::<String>::new());
        }
        _ => {
            ended.failed(18, "the session lacks 1 host");
            let manifest = with_jobs.cluster.manifest(&session);
            assert_eq!(hosts(&manifest), (vec![format!("vm-{OTHER}")], vec![given.clone()]), "{session}");
            let why = why(&manifest, &given);
            assert!(
                why.starts_with(&with_jobs.job(host).target()) && why.contains("closed"),
                "{session}: {why}"
            );
        }
    }
    becomes_free(&with_jobs.job(OTHER).target());
}

fn release(held: Option<&HeldCall>) {
    if let Some(held) = held {
        held.release();
    }
}
