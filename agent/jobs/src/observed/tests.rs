//! What discovery sees becomes events of jobs.

use std::sync::Arc;

use model::{job::Job, registry::WorkloadRegistry, workload::Workloads};
use proptest::prelude::*;

use super::*;
use crate::attempt::Ending;

/// A process of a job.
fn owner(pid: u32, uid: u32, job: Job, variables: &[(&str, &str)]) -> Owner {
    let environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Owner { process: ProcessKey { pid, start_ticks: 1 }, uid, job, environment, ..Owner::default() }
}

fn slurm(pid: u32, id: &str, attempt: Option<u32>) -> Owner {
    let job = Job { kind: JobKind::Slurm, id: id.into(), attempt, ..Job::default() };
    owner(pid, 1000, job, &[])
}

/// A host on which discovery looks again and again.
#[derive(Default)]
struct Watched {
    registry: WorkloadRegistry,
    jobs: ObservedJobs,
    records: BTreeMap<JobKey, JobRecord>,
    at: i64,
}

impl Watched {
    fn look(&mut self, owners: Vec<Owner>) -> Vec<String> {
        self.at += 10;
        self.registry.observe(&owners, Timestamp(self.at));
        self.publish(owners)
    }

    /// Publishes what the registry says, with these owners listed.
    fn publish(&mut self, owners: Vec<Owner>) -> Vec<String> {
        let workloads = Workloads { owners, ..Workloads::default() };
        let snapshot = HostSnapshot {
            workloads: Arc::new(workloads),
            running: self.registry.running().cloned().collect(),
            ..HostSnapshot::default()
        };
        let (events, next) = self.jobs.look(&snapshot, &SystemFacts::default(), Timestamp(self.at));
        self.jobs = next;
        for (key, event) in &events {
            self.records.entry(key.clone()).or_insert_with(|| JobRecord::new(key.clone())).apply(event);
        }
        let shown = |(key, event): &(JobKey, AttemptEvent)| {
            let what = if event.what == Happening::Gone { "gone" } else { "seen" };
            format!("{what} {}@{}", key.id, event.at.0)
        };
        events.iter().map(shown).collect()
    }
}

#[test]
fn jobs_are_seen_and_gone_once() {
    let mut host = Watched::default();
    let (a, b, other) = (slurm(1, "a", Some(0)), slurm(2, "a", Some(0)), slurm(3, "b", Some(0)));
    assert_eq!(host.look(vec![a.clone(), b.clone(), other.clone()]), ["seen a@10", "seen b@10"]);
    assert_eq!(host.look(vec![a.clone(), b.clone(), other.clone()]), [""; 0]);
    assert_eq!(host.look(vec![b, other.clone()]), ["seen a@30"], "a process less");
    assert_eq!(host.look(vec![other]), ["gone a@40"]);
}

#[test]
fn what_cannot_be_seen_has_not_ended() {
    let mut host = Watched::default();
    let a = slurm(1, "a", Some(0));
    host.look(vec![a.clone()]);
    assert_eq!(host.publish(vec![]), [""; 0], "processes could not be read");
    assert_eq!(host.look(vec![a]), [""; 0]);
    assert_eq!(host.look(vec![]), ["gone a@30"]);
}

#[test]
fn the_next_attempt_says_how_the_one_before_ended() {
    let mut host = Watched::default();
    host.look(vec![slurm(1, "a", Some(0))]);
    host.look(vec![slurm(2, "a", Some(1))]);
    let record = host.records.values().next().unwrap();
    let ends: Vec<_> = record.attempts.iter().map(|attempt| attempt.end.map(|end| end.how)).collect();
    assert_eq!(ends, [Some(Ending::Requeued), None]);
}

#[test]
fn a_process_that_becomes_a_program_of_another_job_leaves_its_own() {
    let mut host = Watched::default();
    host.look(vec![slurm(1, "a", Some(0))]);
    assert_eq!(host.look(vec![slurm(1, "b", Some(0))]), ["seen b@20", "gone a@20"]);
    assert_eq!(host.look(vec![slurm(1, "b", None)]), ["seen b@30"], "its attempt cannot be told any more");
}

#[test]
fn what_an_earlier_agent_saw_goes_on_or_ended_when_it_was_last_heard_of() {
    let mut before = Watched::default();
    before.look(vec![slurm(1, "a", None), slurm(2, "b", None)]);
    let mut host = Watched { at: 500, records: before.records, ..Watched::default() };
    let open: Vec<_> = host.records.values().cloned().collect();
    host.jobs.resume(&open);
    assert_eq!(host.look(vec![slurm(1, "a", None)]), ["seen a@510", "gone b@10"]);
    let attempts: Vec<_> = host.records.values().map(|record| record.attempts.len()).collect();
    assert_eq!(attempts, [1, 1]);
}

#[test]
fn a_job_whose_cluster_a_hook_told_goes_on_for_the_next_agent() {
    let mut host = Watched::default();
    let key = JobKey { cluster: "a".into(), ..key_of(&slurm(1, "7", Some(0))) };
    let mut record = JobRecord::new(key);
    let hook = Happening::HookStarted(JobDescription::default());
    record.apply(&AttemptEvent { attempt: Some(0), at: Timestamp(1), what: hook });
    let processes = vec![ProcessKey { pid: 1, start_ticks: 1 }];
    let what = Happening::Seen(Sighting { processes, ..Sighting::default() });
    record.apply(&AttemptEvent { attempt: Some(0), at: Timestamp(2), what });
    host.jobs.resume(&[record]);
    assert_eq!(host.look(vec![slurm(1, "7", Some(0))]), ["seen 7@10"]);
    assert_eq!(host.look(vec![]), ["gone 7@20"]);
}

#[test]
fn hosts_are_those_of_the_first_process_that_knows_them() {
    let job = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        owner(1, 7, Job { hosts, ..Job::default() }, &[])
    };
    let (none, two, other) = (job(&[]), job(&["t0", "t1"]), job(&["x"]));
    let seen = sighting(&[&none, &two, &other], &HostSnapshot::default(), &SystemFacts::default());
    assert_eq!(seen.description.hosts, ["t0", "t1"]);
}

#[test]
fn a_key_has_what_the_scheduler_says_of_this_job_alone() {
    let job = Job { kind: JobKind::Slurm, id: "12".into(), ..Job::default() };
    let variables = [
        ("SLURM_JOB_ID", "12"),
        ("SLURM_CLUSTER_NAME", "a"),
        ("SLURM_ARRAY_JOB_ID", "10"),
        ("SLURM_ARRAY_TASK_ID", "3"),
    ];
    let own = owner(1, 7, job.clone(), &variables);
    assert_eq!(key_of(&own), JobKey { kind: JobKind::Slurm, cluster: "a".into(), uid: 7, id: "12".into() });
    assert_eq!(described(&own).other_id.as_deref(), Some("10_3"));
    let stale = owner(1, 7, Job { id: "13".into(), ..job }, &variables);
    assert_eq!((key_of(&stale).cluster.as_str(), described(&stale).other_id), ("", None));
}

#[test]
fn an_end_that_could_not_be_kept_has_the_time_at_which_it_was_seen() {
    let system = SystemFacts::default();
    let with = |owners: Vec<Owner>| HostSnapshot {
        workloads: Workloads { owners, ..Workloads::default() }.into(),
        ..HostSnapshot::default()
    };
    let (_, seen) = ObservedJobs::default().look(&with(vec![slurm(1, "a", None)]), &system, Timestamp(10));
    let (events, after) = seen.look(&with(Vec::new()), &system, Timestamp(20));
    assert_eq!(events.len(), 1);
    let again = seen.again_after(&after, Timestamp(20)).again_after(&after, Timestamp(30));
    let (events, _) = again.look(&with(Vec::new()), &system, Timestamp(90));
    let [(_, AttemptEvent { at, what: Happening::Gone, .. })] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*at, Timestamp(20));
}

proptest! {
    /// Whatever the scans show, what runs is what the last one showed, and one job's processes never touch another's.
    #[test]
    fn what_is_open_is_what_is_seen(
        scans in prop::collection::vec(
            prop::collection::btree_map(0_u32..8, (0_u32..3, prop::option::of(0_u32..3)), 0..6),
            1..20,
        )
    ) {
        let mut host = Watched::default();
        let mut newest = [0; 3];
        for scan in &scans {
            // Processes of one job show one attempt at a time.
            let mut attempts = BTreeMap::new();
            let owners: Vec<Owner> = scan
                .iter()
                .map(|(pid, (job, attempt))| {
                    let attempt = *attempts.entry(*job).or_insert(*attempt);
                    // Attempts go up, if they are known.
                    let newest = &mut newest[*job as usize];
                    *newest = attempt.unwrap_or(0).max(*newest);
                    slurm(*pid, &job.to_string(), attempt.map(|_| *newest))
                })
                .collect();
            let wanted: BTreeSet<String> = owners.iter().map(|owner| owner.job.id.clone()).collect();
            host.look(owners);
            let seen: BTreeSet<String> = host.jobs.seen.keys().map(|(key, _)| key.id.clone()).collect();
            prop_assert_eq!(&seen, &wanted);
            for record in host.records.values() {
                let open = record.attempts.iter().filter(|attempt| attempt.is_open()).count();
                prop_assert!(open <= 1);
                prop_assert!(open == 0 || wanted.contains(&record.key.id), "{record:?}");
            }
        }
    }
}
