//! The sources against the fake metric services: what is right when everything answers, and when something does not.

mod host_service;
mod orbax_grain;
mod runtime;
mod tpu_info;

use std::sync::Arc;

use fakes::fake_host::FakeHost;
use host::chips;
use model::{
    device::{Chip, Generation},
    label::{CHIP, CORE},
    sample::{Sample, SampleValue},
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Address, Endpoint, EndpointKind, EndpointOrigin, Workloads},
};
use sampling::sources::{Reading, Source, Tick};

/// The chips of a host.
fn chips(generation: Generation, count: u32) -> Arc<[Chip]> {
    let host = FakeHost::with(generation, count);
    host::chips::scan(&host.paths(), &Default::default()).chips.into()
}

/// A tick of a host without owners on which these endpoints are known.
fn tick(kind: EndpointKind, addresses: &[Address], chips: &Arc<[Chip]>) -> Tick {
    let endpoint = |address: &Address| Endpoint {
        kind,
        address: address.clone(),
        origin: EndpointOrigin::Config,
        listeners: Vec::new(),
        unreachable: None,
    };
    let workloads = Workloads { endpoints: addresses.iter().map(endpoint).collect(), ..Workloads::default() };
    let host =
        HostSnapshot { chips: chips.clone(), workloads: Arc::new(workloads), ..HostSnapshot::default() };
    Tick { at: Timestamp(1_795_000_000_000_000_000), host }
}

/// A read a second after the last one.
async fn read(source: &mut dyn Source, tick: &mut Tick) -> Reading {
    tick.at = tick.at.plus(std::time::Duration::from_secs(1));
    source.read(tick).await
}

/// All gauges of a metric as (chip, core, value).
fn gauges(reading: &Reading, metric: &str) -> Vec<(Option<u32>, Option<u32>, f64)> {
    let of = |sample: &&Sample| sample.metric.name == metric;
    let gauge = |sample: &Sample| match sample.value {
        SampleValue::Gauge(value) => (sample.labels.number(CHIP), sample.labels.number(CORE), value),
        _ => panic!("{sample:?} is no gauge"),
    };
    reading.samples.iter().filter(of).map(gauge).collect()
}

/// Why something is missing.
fn why(reading: &Reading, what: &str) -> String {
    let absence = reading.absent.iter().find(|absence| absence.what.contains(what));
    absence.unwrap_or_else(|| panic!("{what} is not missing in {:?}", reading.absent)).why.clone()
}
