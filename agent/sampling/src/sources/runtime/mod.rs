//! The runtime metric services that libtpu runs inside the workloads: every port of every owner.
//!
//! Must never request a metric that the service does not list, count a device twice, or let one endpoint wait for
//! another.

mod client;
mod first_values;
mod interpreter;
mod join;
mod reply;
#[cfg(test)]
mod tests;

use std::{future::Future, pin::Pin, sync::Arc};

use client::RuntimeClient;
use first_values::ProcessTimes;
use futures_util::{StreamExt, stream};
use host::boot_clock;
use interpreter::Interpreter;
use join::JoinedSamples;
use model::{
    catalog,
    device::{Chip, DutyCyclePer},
    sample::{Origin, Sample},
    time::Timestamp,
    workload::{Address, Endpoint, EndpointKind, Owner, ProcessKey, Workload},
};

use super::{Absence, Reading, Source, Tick};

/// Endpoints that are read at the same time.
const AT_ONCE: usize = 8;
/// More endpoints than any host has.
const MOST_ENDPOINTS: usize = 64;
/// The most reasons, and the most processes of one reason, that an absence names.
const MOST_NAMED: usize = 4;

/// The source.
#[derive(Default)]
pub struct RuntimeSource {
    clients: Vec<RuntimeClient>,
    times: ProcessTimes,
}

/// One endpoint as a tick names it.
struct NamedEndpoint {
    address: Address,
    unreachable: Option<String>,
    workload: Option<Arc<Workload>>,
    /// The processes that share it.
    processes: Vec<ProcessKey>,
    /// The chips of all owners that share it.
    chips: Vec<Chip>,
}

impl RuntimeSource {
    /// Clients exactly for the reachable ones of `named`, in their order; known ones keep their connection.
    fn follow(&mut self, named: Vec<NamedEndpoint>, tick: &Tick) -> Vec<Absence> {
        let mut absent = Vec::new();
        let mut before = std::mem::take(&mut self.clients);
        let owners = tick.host.workloads.owners.iter().map(|owner| owner.process);
        self.times.observe(owners, tick.at, |process| boot_clock::started(process, tick.at));
        for one in named {
            if let Some(why) = one.unreachable {
                absent.push(Absence::of_endpoint(&one.address, why));
                continue;
            }
            if self.clients.len() == MOST_ENDPOINTS {
                let why = format!("endpoints beyond the first {MOST_ENDPOINTS} are ignored");
                absent.push(Absence::of_endpoint(&one.address, why));
                continue;
            }
            let known = before.iter().position(|client| *client.address() == one.address);
            let mut client = known
                .map_or_else(|| RuntimeClient::new(one.address.clone()), |known| before.swap_remove(known));
            client.set_workload(one.workload, core_map(&one.chips), core_map(&tick.host.chips));
            client.set_processes(&one.processes, self.times.youngest(&one.processes));
            self.clients.push(client);
        }
        absent
    }
}

fn add(all: &mut Vec<NamedEndpoint>, owner: Option<&Owner>, endpoint: &Endpoint, tick: &Tick) {
    let holds = |chip: &&Chip| owner.is_some_and(|owner| owner.chips.contains(&chip.index));
    let mine = tick.host.chips.iter().filter(holds);
    if let Some(known) = all.iter_mut().find(|one| one.address == endpoint.address) {
        known.processes.extend(owner.map(|owner| owner.process));
        known.chips.extend(mine.cloned());
        known.chips.sort_by(|a, b| (&a.pci, a.index).cmp(&(&b.pci, b.index)));
        known.chips.dedup_by_key(|chip| chip.index);
        return;
    }
    all.push(NamedEndpoint {
        address: endpoint.address.clone(),
        unreachable: endpoint.unreachable.clone(),
        workload: owner.and_then(|owner| tick.workload(owner)),
        processes: owner.iter().map(|owner| owner.process).collect(),
        chips: mine.cloned().collect(),
    });
}

/// Why no endpoint is known, from what the scan saw.
fn why_no_endpoint(tick: &Tick) -> String {
    let workloads = &tick.host.workloads;
    if !workloads.owners.is_empty() {
        return why_no_port(&workloads.owners);
    }
    let unseen = tick.host.chips.iter().find_map(|chip| workloads.owners_unknown(chip));
    match unseen.or(workloads.hidden.as_deref()) {
        Some(why) => format!("no process was found, but one that cannot be seen may hold a chip: {why}"),
        None => "no process on this host holds a chip".to_owned(),
    }
}

/// Why none of the processes has a metrics port. Processes with one reason are named together.
fn why_no_port(owners: &[Owner]) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for owner in owners {
        let why = owner.no_metrics.as_deref().unwrap_or("nothing names a metrics port");
        let pid = owner.process.pid.to_string();
        let at = reasons.iter().position(|(known, _)| *known == why).unwrap_or(reasons.len());
        if at == reasons.len() && at < MOST_NAMED {
            reasons.push((why, Vec::new()));
        }
        let Some((_, pids)) = reasons.get_mut(at) else { continue };
        match pids.len() {
            named if named < MOST_NAMED => pids.push(pid),
            MOST_NAMED => pids.push("others".to_owned()),
            _ => {}
        }
    }
    let reason = |(why, pids): &(&str, Vec<String>)| {
        let noun = if pids.len() == 1 { "process" } else { "processes" };
        format!("{noun} {}: {why}", pids.join(", "))
    };
    let reasons: Vec<String> = reasons.iter().map(reason).collect();
    format!("no process that was found has a metrics port: {}", reasons.join("; "))
}

/// The endpoints of this tick, each address once.
fn named(tick: &Tick) -> Vec<NamedEndpoint> {
    let mut all: Vec<NamedEndpoint> = Vec::new();
    for (owner, endpoint) in tick.endpoints(EndpointKind::RuntimeMetrics) {
        add(&mut all, owner, endpoint, tick);
    }
    all
}

/// The chip of each core in order, and whether duty cycles are per chip; empty when a chip's cores are unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct CoreMap {
    chips: Vec<u32>,
    of_core: Vec<u32>,
    duty_per_chip: bool,
}

fn core_map(chips: &[Chip]) -> CoreMap {
    let of_core = chips.iter().flat_map(|chip| {
        let cores = usize::try_from(chip.cores.unwrap_or(0)).unwrap_or(0);
        std::iter::repeat_n(chip.index.0, cores)
    });
    let unknown = chips.iter().any(|chip| chip.cores.is_none());
    CoreMap {
        chips: chips.iter().map(|chip| chip.index.0).collect(),
        of_core: if unknown { Vec::new() } else { of_core.collect() },
        duty_per_chip: chips.iter().any(|chip| chip.duty_cycle_per == Some(DutyCyclePer::Chip)),
    }
}

/// The samples of replies to GetRuntimeMetric that came one after the other, for the metric that libtpu calls `name`.
/// Without I/O; `None` where the metric is unknown or a reply cannot be read.
pub fn decode_replies(name: &str, replies: &[&[u8]], chips: &[Chip]) -> Option<Vec<Sample>> {
    let (metric, named) = catalog::by_origin(Origin::Runtime, name)?;
    let mut interpreter = Interpreter::new(None);
    interpreter.set_cores(core_map(chips), core_map(chips));
    let mut samples = Vec::new();
    for bytes in replies {
        let found = reply::series(bytes).ok()?;
        interpreter.learn(metric, &found);
        samples.extend(interpreter.samples(metric, named.scale, found, Timestamp(0)).samples);
    }
    Some(samples)
}

/// The names in a reply to ListSupportedMetrics, without I/O; `None` where it cannot be read.
pub fn decode_names(reply: &[u8]) -> Option<Vec<String>> {
    reply::names(reply).ok()
}

impl Source for RuntimeSource {
    fn origin(&self) -> Origin {
        Origin::Runtime
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async move {
            let named = named(tick);
            if named.is_empty() {
                return Reading::unused(why_no_endpoint(tick));
            }
            let mut absent = self.follow(named, tick);
            let reads: Vec<_> = self.clients.iter_mut().map(|client| client.read(tick.at)).collect();
            let readings: Vec<Reading> = stream::iter(reads).buffered(AT_ONCE).collect().await;
            let mut joined = JoinedSamples::default();
            let mut silent = Vec::new();
            for (client, mut reading) in self.clients.iter_mut().zip(readings) {
                absent.append(&mut reading.absent);
                if client.speaks_for_itself {
                    silent.extend(client.silent(&reading, tick.at));
                }
                if !reading.samples.is_empty() {
                    client.speaks_for_itself = !joined.add(reading.samples);
                }
            }
            if !silent.is_empty() {
                joined.add_silent(silent);
            }
            Reading { samples: joined.into_samples(), absent, unused: None }
        })
    }
}
