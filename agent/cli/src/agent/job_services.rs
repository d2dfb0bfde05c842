//! The jobs of this host: their registry, the task that follows them, and their gRPC service, which only the Unix socket
//! and other hosts' operators reach.

use std::{path::Path, sync::Arc};

use ::jobs::{Jobs, configuration::SystemFacts, registry::Registry};
use host::discovery::Discovery;
use model::time::Clock;
use proto::tpuscope::v1::jobs_server::JobsServer;
use server::{ended_jobs::EndedJobs, grpc_jobs::GrpcJobs, grpc_server::REQUEST_BYTES};
use store::state::StateDb;
use tracing::warn;

use crate::{
    failure::Failure,
    lifecycle::task_supervisor::{OnEnd, Stage, TaskSupervisor},
    settings::Config,
};

/// The jobs, and the service that serves them.
pub(super) struct JobServices {
    pub(super) jobs: Jobs,
    pub(super) service: JobsServer<GrpcJobs>,
}

impl JobServices {
    /// The jobs in this database, which a task follows from now on.
    pub(super) async fn start(
        supervisor: &mut TaskSupervisor,
        config: &Config,
        db: Arc<StateDb>,
        discovery: Discovery,
        ended: EndedJobs,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let (procfs, settings, time) = (config.paths.procfs.clone(), config.jobs.clone(), Arc::clone(&clock));
        let open = move || {
            let registry = Registry::new(db, &settings, boot_id(&procfs), time);
            if let Err(error) = registry.begin() {
                warn!(%error, "the jobs of an earlier agent cannot be looked through");
            }
            registry
        };
        let registry = tokio::task::spawn_blocking(open).await;
        let registry =
            registry.map_err(|error| Failure::internal(format_args!("cannot open the jobs: {error}")))?;
        let jobs = Jobs::new(Arc::new(registry), system_facts());
        let followed = jobs.clone();
        supervisor.task(Stage::Sampling, "jobs", OnEnd::Restart, move |stop| {
            let (jobs, discovery) = (followed.clone(), discovery.clone());
            async move { jobs.run(discovery, stop).await }
        });
        let service = GrpcJobs::new(jobs.clone(), ended, clock);
        Ok(Self { jobs, service: JobsServer::new(service).max_decoding_message_size(REQUEST_BYTES) })
    }
}

/// The present boot of the host; empty if the kernel does not say. Blocks.
fn boot_id(procfs: &Path) -> String {
    let text = std::fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

fn system_facts() -> SystemFacts {
    let kernel = nix::sys::utsname::uname().ok();
    let kernel = kernel.and_then(|name| name.release().to_str().map(str::to_owned));
    SystemFacts { kernel: kernel.unwrap_or_default(), agent: env!("CARGO_PKG_VERSION").to_owned() }
}
