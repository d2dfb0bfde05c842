//! Starts the sources that the settings enable, one task each.

use std::{sync::Arc, time::Duration};

use host::discovery::Discovery;
use model::step_times::StepTimes;
use sampling::{
    sampler::Sampler,
    settings::libtpu::Enabled,
    sources::{
        Source,
        host::HostSource,
        host_service::HostServiceSource,
        libtpu::{LibtpuSource, child_process::ChildCommand, locate::LibrarySearch},
        orbax_grain::OrbaxGrainSource,
        runtime::RuntimeSource,
        sim::SimSource,
        trace_steps::TraceStepsSource,
    },
};

use crate::{
    lifecycle::task_supervisor::{OnEnd, Stage, TaskResult, TaskSupervisor},
    settings::Config,
};

/// Traces do not come more often.
const TRACES_EVERY: Duration = Duration::from_secs(5);

/// Starts a task for each source. `steps` are those that traces show.
pub(super) fn start(
    supervisor: &mut TaskSupervisor,
    config: &Config,
    sampler: &Sampler,
    discovery: &Discovery,
    steps: &Arc<StepTimes>,
) {
    let settings = config.sampler.clone();
    let (interval, orbax_grain_interval) = (settings.interval.get(), settings.orbax_grain_interval.get());
    let mut tasks = SourceTasks { supervisor, sampler, discovery };
    if settings.runtime {
        tasks.source("source runtime", interval, || Box::new(RuntimeSource::default()));
    }
    if settings.host_service {
        tasks.source("source host_service", interval, || Box::new(HostServiceSource::default()));
    }
    if settings.orbax_grain {
        tasks.source("source orbax_grain", orbax_grain_interval, || Box::new(OrbaxGrainSource::default()));
    }
    if config.libtpu.enabled != Enabled::Off {
        let libtpu = config.libtpu.clone();
        tasks.source("source libtpu", settings.libtpu_interval.get(), move || {
            Box::new(LibtpuSource::new(
                libtpu.clone(),
                LibrarySearch::of_this_process(),
                ChildCommand::default(),
            ))
        });
    }
    if settings.host {
        let paths = config.paths.clone();
        tasks.source("source host", interval, move || Box::new(HostSource::new(&paths)));
    }
    let steps = Arc::clone(steps);
    tasks.source("source trace", interval.max(TRACES_EVERY), move || {
        Box::new(TraceStepsSource::new(Arc::clone(&steps)))
    });
    if settings.sim_chips > 0 {
        tasks.source("source sim", interval, move || Box::new(SimSource::new(settings.sim_chips)));
    }
}

struct SourceTasks<'a> {
    supervisor: &'a mut TaskSupervisor,
    sampler: &'a Sampler,
    discovery: &'a Discovery,
}

impl SourceTasks<'_> {
    /// Reads the source that `make` returns. After a panic a new one is made: the state of the old one is unknown.
    fn source<Make>(&mut self, name: &'static str, interval: Duration, make: Make)
    where
        Make: Fn() -> Box<dyn Source> + Send + 'static,
    {
        let (sampler, discovery) = (self.sampler.clone(), self.discovery.clone());
        self.supervisor.task(Stage::Sampling, name, OnEnd::Restart, move |stop| {
            let (source, sampler, discovery) = (make(), sampler.clone(), discovery.clone());
            async move {
                // Before the first scan, a source would see neither chips nor workloads.
                if stop.run_until_cancelled(discovery.first_scan()).await.is_some() {
                    sampler.drive(source, interval, discovery.snapshot(), stop).await;
                }
                TaskResult::Ok(())
            }
        });
    }
}
