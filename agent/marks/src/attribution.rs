//! Which job a mark is of: the one that it names, else the workload of the process that sent it.

use model::{snapshot::HostSnapshot, untrusted, workload::WorkloadId};
use store::marks::NewMark;

use crate::mark_line::{self, MarkFault, MarkLine};

/// The longest name that is made for a job.
const NAME: usize = 120;

/// The workload of a process that sends marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkingWorkload {
    id: WorkloadId,
    name: String,
}

impl MarkingWorkload {
    /// The workload of the process with this pid and user, if it holds a chip.
    pub fn of(snapshot: &HostSnapshot, uid: u32, pid: Option<u32>) -> Option<Self> {
        let of_process = |owner: &&model::workload::Owner| Some(owner.process.pid) == pid && owner.uid == uid;
        let owner = snapshot.workloads.owners.iter().find(of_process)?;
        let workload = snapshot.workload_of(owner.process)?;
        // As the registry calls it: two programs with one command are two jobs.
        let WorkloadId { kind, job, .. } = &workload.id;
        let name = format!("{}:{job}", kind.as_str());
        Some(Self { id: workload.id.clone(), name: untrusted::clean(&name, NAME) })
    }
}

/// The mark as it is stored.
///
/// # Errors
/// If it names no job and its process has no workload.
pub fn attributed(line: MarkLine, workload: Option<&MarkingWorkload>) -> Result<NewMark, MarkFault> {
    let MarkLine { job, at, payload } = line;
    let job = job.or_else(|| workload.map(|workload| workload.name.clone())).ok_or(MarkFault::NoJob)?;
    Ok(NewMark { job, workload: workload.map(|workload| workload.id.clone()), at, payload })
}

/// The job of a mark that was refused, where that can be read.
pub fn job_of_refused(payload: &str, workload: Option<&MarkingWorkload>) -> Option<String> {
    match mark_line::job_of(payload) {
        Ok(None) => workload.map(|workload| workload.name.clone()),
        named => named.ok().flatten(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        job::{Job, JobKind},
        workload::{Owner, ProcessKey, Workload, Workloads},
    };

    use super::*;

    fn snapshot(kind: JobKind) -> HostSnapshot {
        let process = ProcessKey { pid: 41, start_ticks: 5 };
        let job = Job { kind, id: "12".into(), ..Job::default() };
        let owner = Owner { process, uid: 7, job: job.clone(), ..Owner::default() };
        let label = "python3:8476".to_owned();
        let workload = Workload { id: WorkloadId::of(&job, 7), label, job, owners: vec![process] };
        HostSnapshot {
            workloads: Arc::new(Workloads { owners: vec![owner], ..Workloads::default() }),
            running: Arc::from([Arc::new(workload)]),
            ..HostSnapshot::default()
        }
    }

    fn job(text: &str, workload: Option<&MarkingWorkload>) -> Result<String, MarkFault> {
        attributed(MarkLine::new(5, text).unwrap(), workload).map(|mark| mark.job)
    }

    #[test]
    fn a_mark_is_of_the_job_that_it_names_else_of_its_process() {
        let slurm = MarkingWorkload::of(&snapshot(JobKind::Slurm), 7, Some(41)).unwrap();
        assert_eq!(job("{}", Some(&slurm)), Ok("slurm:12".to_owned()));
        assert_eq!(job(r#"{"job_name":"j"}"#, Some(&slurm)), Ok("j".to_owned()));
        assert_eq!(job(r#"{"job_name":"j"}"#, None), Ok("j".to_owned()));
        assert_eq!(job("{}", None), Err(MarkFault::NoJob));
        let process = MarkingWorkload::of(&snapshot(JobKind::Process), 7, Some(41)).unwrap();
        assert_eq!(job("{}", Some(&process)), Ok("process:12".to_owned()));
    }

    #[test]
    fn a_refused_mark_has_the_job_that_can_be_read() {
        let slurm = MarkingWorkload::of(&snapshot(JobKind::Slurm), 7, Some(41)).unwrap();
        let bad_step = r#"{"job_name":"j","step_count":-1,"step_start_time":5}"#;
        assert_eq!(job_of_refused(bad_step, Some(&slurm)).as_deref(), Some("j"));
        assert_eq!(job_of_refused(r#"{"job_start_time":-1}"#, Some(&slurm)).as_deref(), Some("slurm:12"));
        for unknown in ["[]", r#"{"job_name":"a\u0000"}"#, r#"{"job_name":5}"#] {
            assert_eq!(job_of_refused(unknown, Some(&slurm)), None, "{unknown}");
        }
        assert_eq!(job_of_refused("{}", None), None);
    }

    #[test]
    fn nobody_marks_for_the_process_of_another_user() {
        let snapshot = snapshot(JobKind::Slurm);
        for (uid, pid) in [(8, Some(41)), (7, Some(42)), (7, None)] {
            assert_eq!(MarkingWorkload::of(&snapshot, uid, pid), None);
        }
    }
}
