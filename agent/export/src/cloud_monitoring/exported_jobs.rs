//! Which marked jobs of this host are exported now. Pure: the time and the host are arguments.
//!
//! A job on several hosts has one writer, the host of rank 0; jobs of one name have one writer too, because the name is
//! what tells their series apart. Must never let two write one series.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{job::Job, snapshot::HostSnapshot, time::Timestamp, workload::Workload};
use store::marks::MarkedJob;

/// A job without chips is exported for so long after its last mark.
const QUIET: Duration = Duration::from_secs(600);
/// The most jobs at once.
const MOST_JOBS: usize = 64;

/// What earlier choices have to be remembered for.
#[derive(Debug, Default)]
pub(super) struct ExportedJobs {
    /// Whether this host writes a job, as its workload said when it ran.
    writers: BTreeMap<i64, bool>,
    /// Jobs whose end was sent, with the time of their last mark.
    ended: BTreeMap<i64, Timestamp>,
}

/// The jobs of one round.
#[derive(Debug, Default, PartialEq)]
pub(super) struct JobChoice {
    /// Those that are exported.
    pub(super) exported: Vec<MarkedJob>,
    /// Whether a job is left out because another one has its name.
    pub(super) same_name: bool,
    /// Whether jobs are left out because there are too many.
    pub(super) too_many: bool,
}

impl ExportedJobs {
    /// The jobs to export now, of all marked ones.
    pub(super) fn choose(
        &mut self,
        marked: Vec<MarkedJob>,
        host: &HostSnapshot,
        now: Timestamp,
    ) -> JobChoice {
        let known: BTreeSet<i64> = marked.iter().map(|job| job.number).collect();
        self.writers.retain(|number, _| known.contains(number));
        self.ended.retain(|number, _| known.contains(number));
        let mut live: Vec<(bool, MarkedJob)> =
            marked.into_iter().filter_map(|job| self.live(job, host, now)).collect();
        // Of one name that which has chips, then that which marked first: the choice stays the same while both live.
        live.sort_by_key(|(runs, job)| (!runs, job.number));
        let (mut choice, mut names) = (JobChoice::default(), BTreeSet::new());
        for (_, job) in live {
            if !names.insert(job.name.clone()) {
                choice.same_name = true;
            } else if choice.exported.len() == MOST_JOBS {
                choice.too_many = true;
            } else {
                choice.exported.push(job);
            }
        }
        choice
    }

    /// Notes that the end of a job was sent: it is not sent again unless the job goes on.
    pub(super) fn end_sent(&mut self, number: i64, last: Timestamp) {
        self.ended.insert(number, last);
    }

    /// The job with whether it has chips, if it is to be exported.
    fn live(&mut self, job: MarkedJob, host: &HostSnapshot, now: Timestamp) -> Option<(bool, MarkedJob)> {
        if self.ended.get(&job.number) == Some(&job.last) {
            return None;
        }
        let workload = workload_of(&job, host);
        if let Some(workload) = workload {
            self.writers.insert(job.number, is_writer(&workload.job));
        }
        // A program without a workload has this host alone. A workload that ended before it was seen may have others.
        let writes = self.writers.get(&job.number).copied().unwrap_or(job.workload.is_none());
        let is_live = workload.is_some() || job.last.age(now) < QUIET;
        (writes && is_live).then_some((workload.is_some(), job))
    }
}

fn workload_of<'a>(job: &MarkedJob, host: &'a HostSnapshot) -> Option<&'a Workload> {
    let id = job.workload.as_ref()?;
    host.running.iter().map(AsRef::as_ref).find(|workload| workload.id == *id)
}

/// Whether this host writes the series of a job. A job of several hosts that does not say which this is has no writer.
fn is_writer(job: &Job) -> bool {
    job.rank.map_or(job.hosts.len() <= 1, |rank| rank == 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        job::JobKind,
        workload::{Owner, ProcessKey, WorkloadId, Workloads},
    };

    use super::*;

    const MINUTE: i64 = 60_000_000_000;

    fn marked(number: i64, name: &str, workload: Option<&str>) -> MarkedJob {
        MarkedJob {
            number,
            uid: 7,
            name: name.to_owned(),
            workload: workload.map(|id| WorkloadId { kind: JobKind::Slurm, job: id.to_owned(), uid: 7 }),
            marks: 1,
            lost: 0,
            refused: 0,
            removed: 0,
            last: Timestamp(100 * MINUTE),
        }
    }

    /// A host on which these jobs of user 7 have chips, each with its rank and its hosts.
    fn host(jobs: &[(&str, Option<u32>, usize)]) -> HostSnapshot {
        let mut owners = Vec::new();
        let mut running = Vec::new();
        for (pid, (id, rank, hosts)) in (1..).zip(jobs) {
            let process = ProcessKey { pid, start_ticks: 1 };
            let hosts = vec!["h".to_owned(); *hosts];
            let job = Job { kind: JobKind::Slurm, id: (*id).into(), rank: *rank, hosts, ..Job::default() };
            owners.push(Owner { process, uid: 7, job: job.clone(), ..Owner::default() });
            running.push(Arc::new(Workload {
                id: WorkloadId::of(&job, 7),
                label: (*id).into(),
                job,
                owners: vec![process],
            }));
        }
        HostSnapshot {
            workloads: Arc::new(Workloads { owners, ..Workloads::default() }),
            running: running.into(),
            ..HostSnapshot::default()
        }
    }

    fn numbers(choice: &JobChoice) -> Vec<i64> {
        choice.exported.iter().map(|job| job.number).collect()
    }

    #[test]
    fn rank_0_writes_and_goes_on_when_its_workload_is_gone() {
        let jobs = [("0", Some(0), 4), ("1", Some(1), 4), ("2", None, 1), ("3", None, 4)];
        let all: Vec<_> = (0..4).map(|n| marked(n, &format!("j{n}"), Some(&n.to_string()))).collect();
        let at = |minutes: i64| Timestamp(minutes * MINUTE);
        let mut chosen = ExportedJobs::default();
        assert_eq!(numbers(&chosen.choose(all.clone(), &host(&jobs), at(100))), [0, 2]);
        // A job that hangs has no new mark for long, and still has its chips.
        assert_eq!(numbers(&chosen.choose(all.clone(), &host(&jobs), at(300))), [0, 2]);
        let nobody = HostSnapshot::default();
        assert_eq!(numbers(&chosen.choose(all.clone(), &nobody, at(109))), [0, 2]);
        assert_eq!(numbers(&chosen.choose(all.clone(), &nobody, at(110))), [0; 0]);
        // After a restart of the agent the rank of a workload that is gone is not known.
        assert_eq!(numbers(&ExportedJobs::default().choose(all, &nobody, at(101))), [0; 0]);
        let without = vec![marked(9, "shell", None)];
        assert_eq!(numbers(&ExportedJobs::default().choose(without, &nobody, at(101))), [9]);
    }

    #[test]
    fn a_workload_of_another_user_says_nothing_of_the_job() {
        let mut job = marked(1, "j", Some("0"));
        job.uid = 8;
        job.workload.as_mut().unwrap().uid = 8;
        let choice = ExportedJobs::default().choose(vec![job], &host(&[("0", Some(0), 1)]), Timestamp(0));
        assert_eq!(numbers(&choice), [0; 0]);
    }

    #[test]
    fn a_name_has_one_writer_and_the_number_of_jobs_a_bound() {
        let now = Timestamp(100 * MINUTE);
        let same = vec![marked(1, "j", None), marked(2, "j", Some("0")), marked(3, "j", None)];
        let choice = ExportedJobs::default().choose(same, &host(&[("0", None, 1)]), now);
        assert_eq!((numbers(&choice), choice.same_name, choice.too_many), (vec![2], true, false));
        let many = (0..100).map(|n| marked(n, &n.to_string(), None)).collect();
        let choice = ExportedJobs::default().choose(many, &HostSnapshot::default(), now);
        assert_eq!((choice.exported.len(), choice.same_name, choice.too_many), (MOST_JOBS, false, true));
    }

    #[test]
    fn the_end_of_a_job_is_sent_once() {
        let (now, nobody) = (Timestamp(100 * MINUTE), HostSnapshot::default());
        let (mut chosen, mut job) = (ExportedJobs::default(), marked(1, "j", None));
        chosen.end_sent(1, job.last);
        assert_eq!(numbers(&chosen.choose(vec![job.clone()], &nobody, now)), [0; 0]);
        // It goes on.
        job.last = Timestamp(101 * MINUTE);
        assert_eq!(numbers(&chosen.choose(vec![job], &nobody, now)), [1]);
    }
}
