//! The runtime metric services that libtpu runs inside the workloads: every port of every owner.
//!
//! Must never ask for a metric that the service does not list, count a device twice, or let one endpoint wait for
//! another.

mod decode;
mod peer;
mod series;

use std::{borrow::Cow, collections::HashMap, future::Future, pin::Pin, sync::Arc};

use futures_util::{StreamExt, stream};
use model::{
    catalog,
    device::{Chip, DutyCyclePer},
    job::Job,
    sample::{Distribution, Labels, Origin, Sample, Value},
    time::Timestamp,
    workload::{Address, Endpoint, EndpointKind, Owner},
};
use peer::Peer;
use series::Interpreter;

use super::{Absence, Reading, Source, Tick, endpoints};

/// Endpoints that are read at the same time.
const AT_ONCE: usize = 8;
/// More endpoints than any host has.
const MOST_ENDPOINTS: usize = 64;

/// The source.
#[derive(Default)]
pub struct Runtime {
    peers: Vec<Peer>,
}

/// One endpoint as a tick names it.
struct Named {
    address: Address,
    unreachable: Option<String>,
    job: Option<Arc<Job>>,
    /// The chips of all owners that share it.
    chips: Vec<Chip>,
}

impl Runtime {
    /// Peers exactly for the reachable ones of `named`, in their order; known peers keep their connection.
    fn follow(&mut self, named: Vec<Named>, tick: &Tick) -> Vec<Absence> {
        let mut absent = Vec::new();
        let mut before = std::mem::take(&mut self.peers);
        for one in named {
            if let Some(why) = one.unreachable {
                absent.push(Absence { what: one.address.to_string(), why });
                continue;
            }
            if self.peers.len() == MOST_ENDPOINTS {
                let why = format!("more than {MOST_ENDPOINTS} endpoints are not asked");
                absent.push(Absence { what: one.address.to_string(), why });
                continue;
            }
            let known = before.iter().position(|peer| *peer.address() == one.address);
            let mut peer =
                known.map_or_else(|| Peer::new(one.address.clone()), |known| before.swap_remove(known));
            peer.belongs_to(one.job, cores(&one.chips), cores(&tick.chips));
            self.peers.push(peer);
        }
        absent
    }
}

fn add(all: &mut Vec<Named>, owner: Option<&Owner>, endpoint: &Endpoint, chips: &[Chip]) {
    let holds = |chip: &&Chip| owner.is_some_and(|owner| owner.chips.contains(&chip.index));
    let mine = chips.iter().filter(holds);
    if let Some(known) = all.iter_mut().find(|one| one.address == endpoint.address) {
        known.chips.extend(mine.cloned());
        known.chips.sort_by_key(|chip| chip.index);
        known.chips.dedup_by_key(|chip| chip.index);
        return;
    }
    all.push(Named {
        address: endpoint.address.clone(),
        unreachable: endpoint.unreachable.clone(),
        job: owner.map(|owner| Arc::new(owner.job.clone())),
        chips: mine.cloned().collect(),
    });
}

/// The endpoints of this tick, each address once.
fn named(tick: &Tick) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for (owner, endpoint) in endpoints(&tick.workloads, EndpointKind::RuntimeMetrics) {
        add(&mut all, owner, endpoint, &tick.chips);
    }
    all
}

/// The chip of each core in order, and whether duty cycles are per chip; empty when a chip's cores are unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Cores {
    chips: Vec<u32>,
    of_core: Vec<u32>,
    duty_per_chip: bool,
}

fn cores(chips: &[Chip]) -> Cores {
    let of_core = chips.iter().flat_map(|chip| {
        let cores = usize::try_from(chip.cores.unwrap_or(0)).unwrap_or(0);
        std::iter::repeat_n(chip.index.0, cores)
    });
    let unknown = chips.iter().any(|chip| chip.cores.is_none());
    Cores {
        chips: chips.iter().map(|chip| chip.index.0).collect(),
        of_core: if unknown { Vec::new() } else { of_core.collect() },
        duty_per_chip: chips.iter().any(|chip| chip.duty_cycle_per == Some(DutyCyclePer::Chip)),
    }
}

/// The samples of replies to GetRuntimeMetric that came one after the other, for the metric that libtpu calls `name`.
/// Without I/O; `None` where the metric is unknown or a reply cannot be read.
pub fn decode_replies(name: &str, replies: &[&[u8]], chips: &[Chip]) -> Option<Vec<Sample>> {
    let (metric, wire) = catalog::by_wire(Origin::Runtime, name)?;
    let mut interpreter = Interpreter::new(None);
    interpreter.set_cores(cores(chips), cores(chips));
    let mut samples = Vec::new();
    for reply in replies {
        let found = decode::series(reply).ok()?;
        interpreter.learn(metric, &found);
        samples.extend(interpreter.samples(metric, wire.scale, found, Timestamp(0)).samples);
    }
    Some(samples)
}

/// The names in a reply to ListSupportedMetrics, without I/O; `None` where it cannot be read.
pub fn decode_names(reply: &[u8]) -> Option<Vec<String>> {
    decode::names(reply).ok()
}

impl Source for Runtime {
    fn origin(&self) -> Origin {
        Origin::Runtime
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async move {
            let named = named(tick);
            if named.is_empty() {
                let why = "no process on this host holds a chip and names a metric port".to_owned();
                return Reading {
                    absent: vec![Absence { what: "runtime metrics".to_owned(), why }],
                    ..Reading::default()
                };
            }
            let mut absent = self.follow(named, tick);
            let reads: Vec<_> = self.peers.iter_mut().map(|peer| peer.read(tick.at)).collect();
            let readings: Vec<Reading> = stream::iter(reads).buffered(AT_ONCE).collect().await;
            let mut joined = Joined::default();
            for reading in readings {
                absent.extend(reading.absent);
                joined.add(reading.samples);
            }
            Reading { samples: joined.samples, absent }
        })
    }
}

/// What all endpoints say together.
#[derive(Default)]
struct Joined {
    samples: Vec<Sample>,
    /// Where each series is; made only when there is a second endpoint.
    places: HashMap<(Cow<'static, str>, Labels), usize>,
    /// How many samples are in it.
    placed: usize,
}

impl Joined {
    /// Adds what another endpoint says. A device that is already there was answered for by a port that speaks for
    /// several processes; then this endpoint's totals without a device are in that port's as well. Otherwise windows
    /// of one job are added up.
    fn add(&mut self, more: Vec<Sample>) {
        if self.samples.is_empty() {
            self.samples = more;
            return;
        }
        for (place, sample) in self.samples.iter().enumerate().skip(self.placed) {
            self.places.entry(key(sample)).or_insert(place);
        }
        self.placed = self.samples.len();
        let of_device = |sample: &Sample| sample.labels.core.is_some() || sample.labels.chip.is_some();
        let known =
            |sample: &Sample| self.places.get(&(sample.metric.clone(), sample.labels.clone())).copied();
        let places: Vec<_> = more.iter().map(known).collect();
        let counted = more.iter().zip(&places).any(|(sample, place)| of_device(sample) && place.is_some());
        for (sample, place) in more.into_iter().zip(places) {
            match place {
                None => self.samples.push(sample),
                Some(_) if counted => {}
                Some(place) if self.samples[place].job == sample.job => {
                    add_up(&mut self.samples[place].value, &sample.value);
                }
                Some(_) => self.samples.push(sample),
            }
        }
    }
}

/// What makes two samples the same: of a core its id alone, because not every port lets its chip be told.
fn key(sample: &Sample) -> (Cow<'static, str>, Labels) {
    let chip = if sample.labels.core.is_some() { None } else { sample.labels.chip };
    (sample.metric.clone(), Labels { chip, ..sample.labels.clone() })
}

fn add_up(mine: &mut Value, theirs: &Value) {
    let (Value::Window(mine), Value::Window(theirs)) = (mine, theirs) else { return };
    if mine.bounds != theirs.bounds || mine.counts.len() != theirs.counts.len() {
        return;
    }
    let (a, b) = (mine.samples() as f64, theirs.samples() as f64);
    let mean = if a + b > 0.0 { (mine.mean * a + theirs.mean * b) / (a + b) } else { 0.0 };
    let counts = mine.counts.iter().zip(&theirs.counts).map(|(a, b)| a.saturating_add(*b)).collect();
    *mine = Distribution { bounds: std::mem::take(&mut mine.bounds), counts, mean };
}
