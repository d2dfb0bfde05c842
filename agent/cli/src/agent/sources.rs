//! The sources that the settings ask for, each driven by a task of its own.

use std::time::Duration;

use host::discovery::Discovery;
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
    },
};

use crate::{
    lifecycle::supervise::{Ended, OnEnd, Stage, Supervisor},
    settings::Config,
};

/// Starts a task for every source.
pub(super) fn drive(supervisor: &mut Supervisor, config: &Config, sampler: &Sampler, discovery: &Discovery) {
    let settings = config.sampler.clone();
    let (often, seldom) = (settings.interval.get(), settings.orbax_grain_interval.get());
    let mut start = Start { supervisor, sampler, discovery };
    if settings.runtime {
        start.source("source runtime", often, || Box::new(RuntimeSource::default()));
    }
    if settings.host_service {
        start.source("source host_service", often, || Box::new(HostServiceSource::default()));
    }
    if settings.orbax_grain {
        start.source("source orbax_grain", seldom, || Box::new(OrbaxGrainSource::default()));
    }
    if config.libtpu.enabled != Enabled::Off {
        let libtpu = config.libtpu.clone();
        start.source("source libtpu", settings.libtpu_interval.get(), move || {
            Box::new(LibtpuSource::new(
                libtpu.clone(),
                LibrarySearch::of_this_process(),
                ChildCommand::default(),
            ))
        });
    }
    if settings.host {
        let paths = config.paths.clone();
        start.source("source host", often, move || Box::new(HostSource::new(&paths)));
    }
    if settings.sim_chips > 0 {
        start.source("source sim", often, move || Box::new(SimSource::new(settings.sim_chips)));
    }
}

struct Start<'a> {
    supervisor: &'a mut Supervisor,
    sampler: &'a Sampler,
    discovery: &'a Discovery,
}

impl Start<'_> {
    /// Drives what `make` makes; after a panic a new one, because the old one's state is not known.
    fn source<Make>(&mut self, name: &'static str, interval: Duration, make: Make)
    where
        Make: Fn() -> Box<dyn Source> + Send + 'static,
    {
        let (sampler, discovery) = (self.sampler.clone(), self.discovery.clone());
        self.supervisor.task(Stage::Sampling, name, OnEnd::Restart, move |stop| {
            let (source, sampler, discovery) = (make(), sampler.clone(), discovery.clone());
            async move {
                // Without the first look a source would tell of a host that has neither chips nor workloads.
                if stop.run_until_cancelled(discovery.first_scan()).await.is_some() {
                    sampler.drive(source, interval, discovery.snapshot(), stop).await;
                }
                Ended::Ok(())
            }
        });
    }
}
