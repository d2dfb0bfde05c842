//! The label of a workload in series: the id of its job, or what a bare process is called.
//!
//! A label must stay the same when the process is started again: it must never hold a pid or a time. It must be unique
//! on its host among the workloads that run.

use std::collections::BTreeSet;

use crate::{
    job::{Job, JobKind},
    untrusted::clean_label,
    workload::{Address, EndpointOrigin, Owner},
};

/// The port by which the processes of a host find each other; unique on the host.
const PROCESS_PORT: &str = "TPU_PROCESS_PORT";

/// What labels tell about a workload: series of two workloads with equal labels are one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadLabel<'a> {
    /// What names the job: the label `workload_kind`.
    pub kind: JobKind,
    /// The label `workload`.
    pub workload: &'a str,
}

/// The label of a workload whose first process is `owner`; `taken` are the labels of the workloads that run. Two users may
/// have jobs with one id.
pub(crate) fn choose(job: &Job, owner: &Owner, taken: &BTreeSet<(JobKind, String)>) -> String {
    let name = if job.kind == JobKind::Process { name(owner) } else { job.id.clone() };
    let is_free = |label: &String| !taken.contains(&(job.kind, label.clone()));
    if is_free(&name) {
        return name;
    }
    let mut numbered = (2_u32..).map(|number| format!("{name}#{number}"));
    numbered.find(is_free).unwrap_or(name)
}

/// Its command, with the port that its variables give it, else with its rank. A port on which it only happens to listen
/// is not used: it may not listen yet.
fn name(owner: &Owner) -> String {
    let command = clean_label(&owner.command);
    match (own_port(owner), owner.job.rank) {
        (Some(port), _) => format!("{command}:{port}"),
        (None, Some(rank)) => format!("{command}-{rank}"),
        (None, None) => command.to_string(),
    }
}

fn own_port(owner: &Owner) -> Option<u16> {
    let own = owner.environment.get(PROCESS_PORT).and_then(|port| port.trim().parse().ok());
    own.or_else(|| {
        owner.endpoints.iter().find_map(|endpoint| match (&endpoint.origin, &endpoint.address) {
            (EndpointOrigin::Variable(_), Address::Tcp(address)) => Some(address.port()),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::workload::{Endpoint, EndpointKind};

    fn endpoint(origin: EndpointOrigin, port: u16) -> Endpoint {
        let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
        let (listeners, unreachable) = (Vec::new(), None);
        Endpoint { kind: EndpointKind::RuntimeMetrics, address, origin, listeners, unreachable }
    }

    fn label(owner: &Owner, taken: &[&str]) -> String {
        let taken = taken.iter().map(|label| (owner.job.kind, (*label).to_owned()));
        choose(&owner.job, owner, &taken.collect())
    }

    #[test]
    fn a_bare_process_is_its_command_and_port_or_rank() {
        let bare = Owner { command: "python3".into(), ..Owner::default() };
        assert_eq!(label(&bare, &[]), "python3");
        let ranked = Owner { job: Job { rank: Some(3), ..Job::default() }, ..bare.clone() };
        assert_eq!(label(&ranked, &[]), "python3-3");
        let named = endpoint(EndpointOrigin::Variable("TPU_RUNTIME_METRICS_PORTS".into()), 8432);
        let listening = endpoint(EndpointOrigin::KnownDefault, 8431);
        let ported = Owner { endpoints: vec![listening.clone(), named], ..ranked };
        assert_eq!(label(&ported, &[]), "python3:8432");
        let environment = [(PROCESS_PORT.to_owned(), "8476".to_owned())].into();
        assert_eq!(label(&Owner { environment, ..ported }, &[]), "python3:8476");
        assert_eq!(label(&Owner { endpoints: vec![listening], ..bare }, &[]), "python3");
    }

    #[test]
    fn a_label_is_unique_and_a_job_has_its_id() {
        let bare = Owner { command: "python3".into(), ..Owner::default() };
        assert_eq!(label(&bare, &["python3"]), "python3#2");
        assert_eq!(label(&bare, &["python3", "python3#3"]), "python3#2");
        let job = Job { kind: JobKind::Slurm, id: "42".into(), ..Job::default() };
        assert_eq!(label(&Owner { job: job.clone(), ..bare.clone() }, &["41"]), "42");
        assert_eq!(label(&Owner { job: job.clone(), ..bare.clone() }, &["42"]), "42#2");
        let taken_by_another_kind = [(JobKind::Run, "42".to_owned())].into();
        assert_eq!(choose(&job, &bare, &taken_by_another_kind), "42");
    }
}
