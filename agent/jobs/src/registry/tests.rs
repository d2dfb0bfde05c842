//! The registry keeps what it is told, over agents, reboots, clocks and many jobs.

use model::{
    job::JobKind,
    time::{ManualClock, Timestamp},
    workload::ProcessKey,
};

use super::*;
use crate::{
    attempt::{Ending, JobDescription},
    record::Sighting,
};

const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

struct Host {
    state: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Host {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap(), clock: Arc::new(ManualClock::at(NOW)) }
    }

    /// An agent of this host in this boot.
    fn agent(&self, boot: &str, max_attempts: u32) -> Registry {
        let db = Arc::new(StateDb::new(self.state.path(), self.clock.clone()));
        let settings = JobSettings { max_attempts, ..JobSettings::default() };
        let registry = Registry::new(db, &settings, boot.to_owned(), self.clock.clone());
        registry.begin().unwrap();
        registry
    }

    fn tell(
        &self,
        registry: &Registry,
        key: &JobKey,
        attempt: Option<u32>,
        what: Happening,
    ) -> Option<ToldAttempt> {
        registry.tell(key, &AttemptEvent { attempt, at: self.clock.now(), what }).unwrap()
    }
}

fn slurm(id: &str, cluster: &str) -> JobKey {
    JobKey { kind: JobKind::Slurm, cluster: cluster.into(), uid: 1000, id: id.into() }
}

fn named(name: &str) -> Happening {
    Happening::HookStarted(JobDescription { name: Some(name.to_owned()), ..JobDescription::default() })
}

fn seen(pid: u32) -> Happening {
    let processes = vec![ProcessKey { pid, start_ticks: 1 }];
    Happening::Seen(Sighting { processes, ..Sighting::default() })
}

/// Ids, attempts and whether they run, of a list.
fn shown(records: &[JobRecord]) -> Vec<String> {
    let attempts =
        records.iter().flat_map(|record| record.attempts.iter().map(move |attempt| (record, attempt)));
    attempts
        .map(|(record, attempt)| {
            let state = if attempt.is_open() { "runs" } else { "ended" };
            format!("{}/{}#{} {state}", record.key.cluster, record.key.id, attempt.number)
        })
        .collect()
}

#[test]
fn what_is_told_outlives_the_agent_and_a_reboot_ends_it() {
    let host = Host::new();
    let first = host.agent("boot 1", 100);
    assert!(first.open_jobs().unwrap().is_empty());
    host.tell(&first, &slurm("7", "a"), Some(0), named("train"));
    drop(first);
    let second = host.agent("boot 1", 100);
    assert_eq!(shown(&second.open_jobs().unwrap()), ["a/7#0 runs"]);
    drop(second);
    host.clock.advance(HOUR);
    let third = host.agent("boot 2", 100);
    assert!(third.open_jobs().unwrap().is_empty());
    let list = third.list(false, 10).unwrap().jobs;
    let end = list[0].attempts[0].end.unwrap();
    assert_eq!((end.at, end.how), (NOW, Ending::NodeLost));
}

#[test]
fn processes_and_hooks_of_one_job_are_one_record_whoever_knows_the_cluster() {
    let host = Host::new();
    let registry = host.agent("boot", 100);
    host.tell(&registry, &slurm("7", ""), Some(0), seen(40));
    let told = host.tell(&registry, &slurm("7", "a"), Some(0), named("train")).unwrap();
    assert_eq!(told.key.cluster, "a");
    let told = host.tell(&registry, &slurm("7", ""), Some(0), seen(41)).unwrap();
    assert_eq!(told.key.cluster, "a");
    host.tell(&registry, &slurm("7", "b"), Some(0), named("train"));
    host.tell(&registry, &JobKey { uid: 1001, ..slurm("7", "a") }, Some(0), seen(42));
    let mut all = shown(&registry.list(false, 10).unwrap().jobs);
    all.sort();
    assert_eq!(all, ["a/7#0 runs", "a/7#0 runs", "b/7#0 runs"], "two clusters, and two users");
}

#[test]
fn a_job_is_found_by_what_the_caller_may_know() {
    let host = Host::new();
    let registry = host.agent("boot", 100);
    host.tell(&registry, &slurm("7", "a"), Some(0), named("train"));
    host.tell(&registry, &slurm("8", "a"), Some(0), named("train"));
    host.tell(&registry, &JobKey { uid: 5, ..slurm("9", "a") }, Some(0), named("train"));
    let find = |text: &str, may_know: fn(u32) -> bool| {
        let found = registry.find(&text.parse().unwrap(), may_know).unwrap();
        let mut ids: Vec<String> = found.into_iter().map(|named| named.record.key.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(find("train", |uid| uid == 1000), ["7", "8"]);
    assert_eq!(find("slurm:9", |uid| uid == 1000), ["9"]);
    assert_eq!(find("run:9", |_| true), [""; 0]);
}

#[test]
fn a_thousand_jobs_in_an_hour_are_bounded_and_what_runs_stays() {
    let host = Host::new();
    let registry = host.agent("boot", 50);
    host.tell(&registry, &slurm("long", "a"), Some(0), seen(1));
    for number in 0..1000_u32 {
        host.clock.advance(HOUR / 1000);
        let key = slurm(&number.to_string(), "a");
        host.tell(&registry, &key, Some(0), named("array"));
        host.tell(&registry, &key, Some(0), Happening::HookEnded(Ending::Exit(0), Vec::new()));
    }
    registry.prune(Instant::now()).unwrap();
    let kept = shown(&registry.list(false, usize::MAX).unwrap().jobs);
    assert_eq!((kept.len(), kept[0].as_str()), (50, "a/999#0 ended"));
    assert_eq!(kept[49], "a/long#0 runs");
}

#[test]
fn a_job_of_400_days_and_a_clock_that_steps_back_an_hour() {
    let host = Host::new();
    let registry = host.agent("boot", 100);
    let key = slurm("7", "a");
    host.tell(&registry, &key, Some(0), named("train"));
    host.tell(&registry, &key, Some(0), seen(40));
    let start = Instant::now();
    for day in 1..=400_u32 {
        host.clock.advance(24 * HOUR);
        registry.note_alive().unwrap();
        registry.prune(start + 24 * HOUR * day).unwrap();
    }
    assert_eq!(shown(&registry.list(true, 10).unwrap().jobs), ["a/7#0 runs"]);
    host.clock.step(-3_600_000_000_000);
    host.tell(&registry, &key, Some(0), Happening::HookEnded(Ending::Exit(0), Vec::new()));
    let ended = registry.list(false, 10).unwrap().jobs[0].attempts[0].clone();
    assert_eq!(ended.start, Some(NOW));
    assert_eq!(ended.end.unwrap().at, NOW.plus(400 * 24 * HOUR - HOUR));
}

#[test]
fn a_job_whose_hook_was_missed_ends_when_it_was_last_heard_of() {
    let host = Host::new();
    let registry = host.agent("boot", 100);
    host.tell(&registry, &slurm("7", "a"), Some(0), named("train"));
    host.clock.advance(47 * HOUR);
    registry.prune(Instant::now()).unwrap();
    assert_eq!(registry.open_jobs().unwrap().len(), 1);
    host.clock.advance(2 * HOUR);
    registry.prune(Instant::now()).unwrap();
    assert!(registry.open_jobs().unwrap().is_empty());
}
