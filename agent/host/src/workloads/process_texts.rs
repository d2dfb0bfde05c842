//! What the procfs texts of one process mean, without I/O: the decoders of this module in one call. Any bytes are
//! decoded or ignored.

use std::collections::BTreeSet;

use model::{
    job::Job,
    workload::{Endpoint, ProcessKey},
};

use super::{
    endpoints::{self, EndpointInputs, ListenerProcess, OwnerInputs, PortListener},
    environment,
    job_identity::{self, JobInputs},
    libraries, process_status,
};
use crate::tcp_table;

/// The one network namespace of these texts.
const NAMESPACE: u64 = 1;

/// Files of `/proc/<pid>`, as bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessTexts<'a> {
    /// `stat`.
    pub stat: &'a [u8],
    /// `status`.
    pub status: &'a [u8],
    /// `cgroup`.
    pub cgroup: &'a [u8],
    /// `maps`.
    pub maps: &'a [u8],
    /// `environ`.
    pub environ: &'a [u8],
    /// `net/tcp` or `net/tcp6`; every listener in it is this process's.
    pub net_tcp: &'a [u8],
}

/// The job and the endpoints of the process.
pub fn decode(texts: &ProcessTexts<'_>) -> (Job, Vec<Endpoint>) {
    let start_ticks = process_status::stat(texts.stat).map_or(0, |stat| stat.start_ticks);
    let process = ProcessKey { pid: 1, start_ticks };
    let ids = process_status::ids(&String::from_utf8_lossy(texts.status)).unwrap_or_default();
    let environment = environment::parse(texts.environ);
    let job = job_identity::job(JobInputs {
        process,
        environment: &environment,
        cgroup: &String::from_utf8_lossy(texts.cgroup),
        user: "",
    });
    let sockets = tcp_table::listening([texts.net_tcp]).unwrap_or_default();
    let listeners: Vec<PortListener> = sockets
        .into_iter()
        .map(|socket| PortListener {
            namespace: NAMESPACE,
            address: socket.address,
            inode: socket.inode,
            uid: socket.uid,
            processes: vec![ListenerProcess { process, owner: Some(process) }],
        })
        .collect();
    let owner = OwnerInputs {
        process,
        uid: ids.uid,
        holds_chips: libraries::mapped(texts.maps).is_ok_and(|mapped| mapped.any()),
        environment: &environment,
        namespace: Some(NAMESPACE),
        metrics_socket: None,
    };
    let plan = endpoints::plan(&EndpointInputs {
        owners: &[owner],
        listeners: &listeners,
        our_namespace: Some(NAMESPACE),
        local_addresses: &[],
        configured: &[],
        probe: true,
        profilers: &BTreeSet::new(),
        chips: true,
    });
    let of_owner = plan.owners.into_iter().flat_map(|owner| owner.endpoints);
    (job, of_owner.chain(plan.shared).collect())
}

#[cfg(test)]
mod tests {
    use model::{job::JobKind, workload::EndpointKind};

    use super::*;

    #[test]
    fn a_job_and_its_named_port() {
        let texts = ProcessTexts {
            environ: b"SLURM_JOB_ID=12\0JAX_PROFILER_PORT=9012\0SECRET=x\0",
            net_tcp: b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                0: 0100007F:2334 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 7 1 0000000000000000 100 0 0 10 0\n",
            ..ProcessTexts::default()
        };
        let (job, endpoints) = decode(&texts);
        assert_eq!((job.kind, job.id.as_str()), (JobKind::Slurm, "12"));
        let profiler = endpoints.iter().find(|endpoint| endpoint.kind == EndpointKind::Profiler).unwrap();
        assert_eq!(profiler.address.to_string(), "127.0.0.1:9012");
        assert_eq!(profiler.unreachable, None);
    }
}
