//! The host's side: step markers, the launches of programs, waits for input, and operations run on the CPU.
//!
//! A trace with the Python tracer has tens of millions of host events. Only those that can matter to a step
//! are held, and no more than [`MOST_NODES`] of them; annotations are only summed.

use std::{
    collections::HashMap,
    io::{Read, Seek},
    ops::ControlFlow,
};

use super::{
    annotations::{self, Annotated},
    category::stem,
    device_events::{Interval, interval},
    in_order::InOrder,
    nesting::Nesting,
    op_detail::OpDetail,
    ops::{OpKey, OpTable, Totals, shorten},
};
use crate::{
    reader::{ById, LineIndex, PlaneIndex, Reader, SessionTimes, StatNames, TraceEvent},
    wire::Error,
};

/// How many host events that matter to steps are held (64 bytes each).
const MOST_NODES: usize = 1 << 17;
/// The host tells run ids in full, the device only their low bits.
pub(super) const RUN_ID_BITS: u64 = (1 << 27) - 1;

/// One step marker of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostStep {
    /// Its number, if the user gave one.
    pub step_num: Option<i64>,
    /// Its start on the session's time line.
    pub start_ps: i64,
    /// Its end.
    pub end_ps: i64,
}

/// A program's launch, as both sides name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Launch {
    pub(super) ordinal: i64,
    pub(super) queue_id: u64,
    pub(super) run_id: u64,
    pub(super) core_type: u64,
}

/// A host event that can matter to a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) line: u32,
    pub(super) at: Interval,
    /// A step marker: an index into the markers.
    pub(super) marker: Option<u32>,
    pub(super) launch: Option<Launch>,
    /// Whether the launch is the enqueueing itself.
    pub(super) enqueues: bool,
    /// Type and id of the work that it hands over.
    pub(super) produces: Option<(i64, u64)>,
    /// Type and id of the work that it takes over.
    pub(super) consumes: Option<(i64, u64)>,
    /// Whether it waits for input or moves input to the device.
    pub(super) input: bool,
}

/// What is held of a host.
#[derive(Debug, Default)]
pub(super) struct HostEvents {
    pub(super) markers: Vec<HostStep>,
    pub(super) nodes: Vec<Node>,
    pub(super) ops: OpTable,
    pub(super) annotations: annotations::Collector,
    /// Whether events that matter were over the limit.
    pub(super) over: bool,
    /// Whether operations were out of order in a line too long to be sorted.
    pub(super) unsorted: bool,
    /// The end of the last event.
    pub(super) last_end: i64,
}

/// What an event's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Enqueue,
    Launch,
    Input,
}

impl Named {
    fn of(name: &[u8]) -> Option<Self> {
        const LAUNCHES: [&[u8]; 2] = [b"CompleteCallbacks", b"DoEnqueueContinuationProgram"];
        const INPUTS: [&[u8]; 3] = [b"IteratorGetNext", b"InfeedEnqueue", b"MEMCPYHtoD"];
        if name == b"DoEnqueueProgram" {
            Some(Self::Enqueue)
        } else if LAUNCHES.contains(&name) {
            Some(Self::Launch)
        } else if INPUTS.iter().any(|prefix| name.starts_with(prefix)) {
            Some(Self::Input)
        } else {
            None
        }
    }
}

/// The stats that are looked for on host events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Root,
    StepNum,
    ProducerType,
    Producer,
    ConsumerType,
    Consumer,
    Ordinal,
    QueueId,
    RunId,
    CoreType,
    HloOp,
    Stage,
}

fn roles(names: &StatNames) -> ById<Role> {
    let mut roles = ById::default();
    for (id, name) in names.iter() {
        let role = match name {
            "_r" => Role::Root,
            "step_num" => Role::StepNum,
            "_pt" => Role::ProducerType,
            "_p" => Role::Producer,
            "_ct" => Role::ConsumerType,
            "_c" => Role::Consumer,
            "device_ordinal" => Role::Ordinal,
            "queue_id" => Role::QueueId,
            "run_id" => Role::RunId,
            "core_type" => Role::CoreType,
            "hlo_op" => Role::HloOp,
            "_ipl_stage_name" => Role::Stage,
            _ => continue,
        };
        roles.set(id, role);
    }
    roles
}

/// The stats of one host event.
#[derive(Debug, Default)]
struct Seen {
    root: bool,
    step_num: Option<i64>,
    producer: (Option<i64>, Option<u64>),
    consumer: (Option<i64>, Option<u64>),
    ordinal: Option<i64>,
    queue_id: Option<u64>,
    run_id: Option<u64>,
    core_type: u64,
    /// A stat metadata id, or an index of [`Texts`].
    hlo_op: Option<HloOp>,
    stage: bool,
}

/// What an event turned out to be.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The operation that it ran, if it ran one.
    op: Option<HloOp>,
    /// Whether it marks a step.
    marker: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HloOp {
    Ref(i64),
    Text(u32),
}

/// Operation names that are not references.
#[derive(Debug, Default)]
struct Texts {
    ids: HashMap<String, u32>,
}

impl Texts {
    const MOST: usize = 1 << 15;

    fn id(&mut self, text: &str) -> u32 {
        let text = shorten(text);
        match self.ids.get(text) {
            Some(&id) => id,
            None if self.ids.len() >= Self::MOST => u32::MAX,
            None => {
                let id = self.ids.len() as u32;
                self.ids.insert(text.to_owned(), id);
                id
            }
        }
    }
}

/// One host plane being read.
struct Walk<'a> {
    names: &'a StatNames,
    roles: ById<Role>,
    named: ById<Named>,
    /// The rows of annotations.
    annotated: ById<u32>,
    texts: Texts,
    totals: HashMap<HloOp, Totals>,
    with_links: bool,
    found: &'a mut HostEvents,
}

/// Reads the host plane `plane` into `found`. `with_links` asks for launches and links as well: they are of
/// no use where there is no device.
pub(super) fn read<R: Read + Seek>(
    reader: &mut Reader<R>,
    plane: &PlaneIndex,
    session: &SessionTimes,
    with_links: bool,
    first_line: u32,
    found: &mut HostEvents,
) -> Result<(), Error> {
    let (mut named, mut annotated) = (ById::default(), ById::default());
    reader.event_metadata(plane, |entry| {
        let kind = Named::of(entry.name);
        if let Some(kind) = kind.filter(|_| with_links) {
            named.set(entry.id, kind);
        }
        if let Some(row) = found.annotations.row(entry.name) {
            annotated.set(entry.id, row);
            if matches!(kind, Some(Named::Enqueue | Named::Launch)) {
                found.annotations.note_launch(row);
            }
        }
        Ok::<_, Error>(())
    })?;
    let mut walk = Walk {
        names: &plane.stat_names,
        roles: roles(&plane.stat_names),
        named,
        annotated,
        texts: Texts::default(),
        totals: HashMap::new(),
        with_links,
        found,
    };
    for (at, line) in plane.lines.iter().enumerate().filter(|(_, line)| line.events > 0) {
        walk.line(reader, line, session.line_start_ps(line), first_line + at as u32)?;
    }
    walk.fold();
    Ok(())
}

impl Walk<'_> {
    fn line<R: Read + Seek>(
        &mut self,
        reader: &mut Reader<R>,
        line: &LineIndex,
        start: i64,
        number: u32,
    ) -> Result<(), Error> {
        self.found.last_end = self.found.last_end.max(start.saturating_add(line.last_end_ps));
        let (mut order, mut nesting) = (InOrder::new(line.sorted), Nesting::new());
        let mut thread = annotations::Thread::new(line.sorted);
        reader.events(line.span, |event| {
            let row = self.annotated.get(event.metadata_id).copied();
            if event.has_stats() || row.is_some() {
                let at = interval(start, event);
                let known = self.event(event, at, number)?;
                if let Some(op) = known.op {
                    order.push(at.start, at.end, op, |start, end, op| {
                        nesting.push(start, end, op, |op, t, s| count(&mut self.totals, op, t, s));
                    });
                } else if let Some(row) = row {
                    let what = Annotated { row, marker: known.marker };
                    thread.push(at.start, at.end, what, &mut self.found.annotations);
                }
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
        order.finish(|start, end, op| {
            nesting.push(start, end, op, |op, t, s| count(&mut self.totals, op, t, s));
        });
        nesting.finish(|op, t, s| count(&mut self.totals, op, t, s));
        self.found.unsorted |= order.is_approximate() || thread.is_approximate();
        thread.finish(&mut self.found.annotations);
        Ok(())
    }

    /// Keeps what matters of an event to a step.
    fn event(&mut self, event: &TraceEvent<'_>, at: Interval, line: u32) -> Result<Known, Error> {
        let seen = self.stats(event)?;
        let named = self.named.get(event.metadata_id).copied();
        let marker = (seen.root && self.found.markers.len() < MOST_NODES).then(|| {
            let step = HostStep { step_num: seen.step_num, start_ps: at.start, end_ps: at.end };
            self.found.markers.push(step);
            self.found.markers.len() as u32 - 1
        });
        if self.with_links || marker.is_some() {
            let node = Node {
                line,
                at,
                marker,
                launch: matches!(named, Some(Named::Enqueue | Named::Launch))
                    .then(|| seen.launch())
                    .flatten(),
                enqueues: named == Some(Named::Enqueue),
                produces: seen.producer.0.zip(seen.producer.1),
                consumes: seen.consumer.0.zip(seen.consumer.1),
                input: named == Some(Named::Input) || seen.stage,
            };
            self.keep(node);
        }
        Ok(Known { op: seen.hlo_op, marker: seen.root })
    }

    fn keep(&mut self, node: Node) {
        let matters = node.marker.is_some()
            || node.launch.is_some()
            || node.produces.is_some()
            || node.consumes.is_some()
            || node.input;
        if !matters {
            return;
        }
        if self.found.nodes.len() < MOST_NODES {
            self.found.nodes.push(node);
        } else {
            self.found.over = true;
        }
    }

    fn stats(&mut self, event: &TraceEvent<'_>) -> Result<Seen, Error> {
        let mut seen = Seen::default();
        let mut stats = event.stats();
        while let Some(stat) = stats.next_stat()? {
            let Some(role) = self.roles.get(stat.metadata_id) else { continue };
            let value = stat.value;
            match role {
                Role::Root => seen.root = value.int().is_some_and(|root| root != 0),
                Role::StepNum => seen.step_num = value.int(),
                Role::ProducerType => seen.producer.0 = value.int(),
                Role::Producer => seen.producer.1 = value.uint(),
                Role::ConsumerType => seen.consumer.0 = value.int(),
                Role::Consumer => seen.consumer.1 = value.uint(),
                Role::Ordinal => seen.ordinal = value.int(),
                Role::QueueId => seen.queue_id = value.uint(),
                Role::RunId => seen.run_id = value.uint(),
                Role::CoreType => seen.core_type = value.uint().unwrap_or(0),
                Role::Stage => seen.stage = true,
                Role::HloOp => {
                    seen.hlo_op = match value {
                        crate::reader::StatValue::Ref(id) => Some(HloOp::Ref(id as i64)),
                        other => other.text(self.names).map(|text| HloOp::Text(self.texts.id(&text))),
                    };
                }
            }
        }
        Ok(seen)
    }

    /// Turns the totals into rows with names.
    fn fold(self) {
        let texts: HashMap<u32, String> = self.texts.ids.into_iter().map(|(text, id)| (id, text)).collect();
        for (op, totals) in self.totals {
            let name = match op {
                HloOp::Ref(id) => self.names.get(id),
                HloOp::Text(id) => texts.get(&id).map(String::as_str),
            };
            let name = shorten(name.unwrap_or("(unknown)")).to_owned();
            let stem = stem(&name);
            let category = if stem.contains("fusion") { "fusion" } else { stem }.to_owned();
            self.found.ops.add(
                OpKey { name, category, program: None, symbol: None },
                totals,
                OpDetail::default(),
            );
        }
    }
}

impl Seen {
    fn launch(&self) -> Option<Launch> {
        Some(Launch {
            ordinal: self.ordinal?,
            queue_id: self.queue_id?,
            run_id: self.run_id? & RUN_ID_BITS,
            core_type: self.core_type,
        })
    }
}

#[inline]
fn count(totals: &mut HashMap<HloOp, Totals>, op: HloOp, time_ps: i64, self_time_ps: i64) {
    // Children that overlap each other can be longer than what they lie in.
    let self_time_ps = self_time_ps.max(0);
    totals.entry(op).or_default().add(Totals { occurrences: 1, time_ps, self_time_ps });
}
