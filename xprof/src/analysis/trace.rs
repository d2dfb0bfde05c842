//! One part of a session: the trace of one process, from its file to figures.

use std::{
    collections::HashMap,
    io::{Read, Seek},
};

use super::{
    Rules,
    category::{COLLECTIVE_KINDS, Collective},
    core::{self, ClassTimes, CollectiveRun, CoreLines, LineNames, Module, SPARSE_CORE, TENSOR_CORE, Walk},
    device_events::Interval,
    groups::{self, Groups},
    host::{self, HostEvents, HostStep, RUN_ID_BITS},
    losses,
    ops::{OpKey, OpTable, PlaneOps, Totals},
    planes::{self, PlaneKind},
    steps::{self, HostSide, Origin, Step},
    union::{self, Union},
    warnings::{self, CoreFacts, HostFacts},
    xprof_steps::{self, GroupedCore},
};
use crate::{
    loss::Loss,
    reader::{AnyReader, Index, PlaneIndex, Reader},
    wire::Error,
};

/// How many collectives the cores of one part hold together.
const MOST_COLLECTIVES: usize = 1 << 18;
/// How many pieces of busy time a core keeps where its chip has others.
const MOST_PIECES: usize = 1 << 18;
/// XProf trims a host-only trace of more steps than this.
const UNTRIMMED: usize = 5;

/// What one part of a session tells.
#[derive(Debug)]
pub struct HostTrace {
    /// The host.
    pub host: String,
    /// The part's file name.
    pub file: String,
    /// When the session began, by the host's clock.
    pub profile_start_ns: Option<i64>,
    /// How long the session was; where the file does not say, how far its events reach.
    pub window_ps: i64,
    /// The host's step markers, by start.
    pub host_steps: Vec<HostStep>,
    /// The cores, in the file's order.
    pub cores: Vec<Core>,
    /// The operations of all cores; of the host where there is no core.
    pub ops: OpTable,
    /// Collectives by kind, over all cores.
    pub collectives: Vec<(Collective, Totals)>,
    /// Per step number of the host's markers, how long its events waited for input.
    pub input_ps: HashMap<i64, i64>,
    /// What the trace lost.
    pub losses: Vec<Loss>,
    /// What to know before trusting the figures; what was lost comes first.
    pub warnings: Vec<String>,
}

/// What one core did.
#[derive(Debug)]
pub struct Core {
    /// The plane's name.
    pub plane: String,
    /// The plane's id.
    pub id: i64,
    /// Whether it is a SparseCore.
    pub sparse: bool,
    /// Its steps, by start.
    pub steps: Vec<Step>,
    /// Per step, where its time went.
    pub step_times: Vec<ClassTimes>,
    /// From the first start to the last end of its programs and operations.
    pub span_ps: i64,
    /// How long it was busy.
    pub busy_ps: i64,
    /// How long it was not.
    pub idle_ps: i64,
    /// Its programs' executions.
    pub modules: Vec<Module>,
    /// The collectives that other cores know by the same id.
    pub collectives: Vec<CollectiveRun>,
}

impl Core {
    /// Busy time in parts of busy and idle time.
    pub fn duty_cycle(&self) -> f64 {
        match self.busy_ps.saturating_add(self.idle_ps) {
            0 => 0.0,
            all => self.busy_ps as f64 / all as f64,
        }
    }
}

/// A core's plane while the part is read.
struct CorePlane<'a> {
    plane: &'a PlaneIndex,
    ordinal: i64,
    sparse: bool,
    /// Cores of one chip share it.
    chip: Option<i64>,
    names: LineNames,
    lines: CoreLines,
}

/// [`read`], compiled here: a caller may be built to be small, while this has to be fast.
///
/// # Errors
/// As it has.
pub fn read_any(
    reader: &mut AnyReader,
    host: &str,
    host_is_certain: bool,
    file: &str,
    rules: Rules,
) -> Result<HostTrace, Error> {
    read(reader, host, host_is_certain, file, rules)
}

/// Reads a part. `host` is its host as far as the folder tells; the file's own word comes first where
/// `host_is_certain` is not set.
pub fn read<R: Read + Seek>(
    reader: &mut Reader<R>,
    host: &str,
    host_is_certain: bool,
    file: &str,
    rules: Rules,
) -> Result<HostTrace, Error> {
    let index = reader.take_index();
    let named = index.hostnames.first().filter(|name| !host_is_certain && !name.is_empty());
    let part = Part { index: &index, rules };
    let events = part.host_events(reader)?;
    let groups = groups::follow(&events);
    let mut planes = part.core_planes(reader)?;
    let mut trace = HostTrace {
        host: named.map_or(host, String::as_str).to_owned(),
        file: file.to_owned(),
        profile_start_ns: index.session.start_ns,
        window_ps: index.session.window_ps().unwrap_or_else(|| part.last_end(&events)),
        host_steps: Vec::new(),
        cores: Vec::new(),
        ops: OpTable::default(),
        collectives: Vec::new(),
        input_ps: input_by_step(&events, &groups),
        losses: losses::of(reader, &index)?,
        warnings: Vec::new(),
    };
    let host_side = HostSide { markers: &events.markers, groups: &groups };
    let steps = part.steps(&planes, &host_side);
    let mut facts = HostFacts::of(&index, &events, &groups, &trace, planes.is_empty());
    part.walk(reader, &mut planes, steps, &mut trace, &mut facts)?;
    if planes.is_empty() {
        part.host_only(&mut trace, &events, &groups);
    }
    trace.host_steps = events.markers;
    trace.host_steps.sort_by_key(|step| (step.start_ps, step.end_ps));
    warnings::add_early_ends(&facts, &mut trace);
    trace.warnings = warnings::of(&facts, &trace);
    Ok(trace)
}

/// The steps of all cores: what to show, and where each core's own lie by its line's clock.
struct Steps {
    shown: Vec<Vec<Step>>,
    own: Vec<Vec<Interval>>,
    grouped: Vec<GroupedCore>,
    origins: Vec<(Origin, usize)>,
}

struct Part<'a> {
    index: &'a Index,
    rules: Rules,
}

impl<'a> Part<'a> {
    fn kind(&self, plane: &PlaneIndex) -> PlaneKind {
        planes::kind(&plane.name, self.rules == Rules::True)
    }

    fn has_cores(&self) -> bool {
        let is_core = |kind| matches!(kind, PlaneKind::TensorCore { .. } | PlaneKind::SparseCore { .. });
        self.index.planes.iter().any(|plane| is_core(self.kind(plane)))
    }

    fn host_events<R: Read + Seek>(&self, reader: &mut Reader<R>) -> Result<HostEvents, Error> {
        let mut events = HostEvents::default();
        let mut first_line = 0;
        for plane in self.index.planes.iter().filter(|plane| self.kind(plane) == PlaneKind::Host) {
            host::read(reader, plane, &self.index.session, self.has_cores(), first_line, &mut events)?;
            first_line += plane.lines.len() as u32;
        }
        Ok(events)
    }

    fn core_planes<R: Read + Seek>(&self, reader: &mut Reader<R>) -> Result<Vec<CorePlane<'a>>, Error> {
        let mut cores = Vec::new();
        for plane in &self.index.planes {
            let (ordinal, sparse, names) = match self.kind(plane) {
                PlaneKind::TensorCore { ordinal } => (ordinal, false, TENSOR_CORE),
                PlaneKind::SparseCore { ordinal } => (ordinal, true, SPARSE_CORE),
                PlaneKind::Host | PlaneKind::Other => continue,
            };
            let lines = core::lines(reader, plane, &self.index.session, names)?;
            let chip = planes::local_chip(plane);
            cores.push(CorePlane { plane, ordinal, sparse, chip, names, lines });
        }
        Ok(cores)
    }

    /// How far the file's events reach.
    fn last_end(&self, events: &HostEvents) -> i64 {
        let session = &self.index.session;
        let lines = self.index.planes.iter().flat_map(|plane| &plane.lines).filter(|line| line.events > 0);
        lines
            .map(|line| session.line_start_ps(line).saturating_add(line.last_end_ps))
            .fold(events.last_end, i64::max)
    }

    fn steps(&self, planes: &[CorePlane<'_>], host: &HostSide<'_>) -> Steps {
        match self.rules {
            Rules::True => true_steps(planes, host),
            Rules::Xprof => xprof_like_steps(planes, host, self.is_grouped()),
        }
    }

    /// Whether XProf takes the file as one that it has grouped before.
    fn is_grouped(&self) -> bool {
        let relevant = |plane: &&PlaneIndex| self.kind(plane) != PlaneKind::Other;
        let mut planes = self.index.planes.iter().filter(relevant).peekable();
        planes.peek().is_some() && planes.all(|plane| plane.stat_names.id("group_id").is_some())
    }

    fn walk<R: Read + Seek>(
        &self,
        reader: &mut Reader<R>,
        planes: &mut [CorePlane<'_>],
        steps: Steps,
        trace: &mut HostTrace,
        facts: &mut HostFacts,
    ) -> Result<(), Error> {
        let mut parts = Vec::new();
        let mut collectives = [Totals::default(); COLLECTIVE_KINDS];
        let share = MOST_COLLECTIVES / planes.len().max(1);
        for (at, core) in planes.iter().enumerate() {
            let chip_is_shared = self.rules == Rules::Xprof
                && core.chip.is_some()
                && planes.iter().filter(|other| other.chip == core.chip).count() > 1;
            let union = if chip_is_shared { Union::keeping(MOST_PIECES) } else { Union::default() };
            let mut ops = PlaneOps::read(reader, core.plane)?;
            let last_module_end = core.lines.modules.iter().map(|module| module.line.end).max();
            let mut walk = Walk::new(self.rules, &steps.own[at], last_module_end, union);
            walk.most_runs = share;
            walk.ops(reader, core.plane, &self.index.session, core.names.ops, &mut ops)?;
            let mut out = walk.out;
            let hull = hull(core, &out, self.rules);
            let modules: Vec<Module> =
                core.lines.modules.iter().map(|module| Module::of(module, &ops)).collect();
            if !core.sparse {
                for (sum, more) in collectives.iter_mut().zip(&out.collectives) {
                    sum.add(*more);
                }
            }
            let busy_ps = out.busy.total();
            facts.cores.push(CoreFacts::of(
                core.plane,
                &core.lines,
                &out,
                hull,
                steps.origins[at],
                core.sparse,
            ));
            let grouped = steps.grouped.get(at).cloned().unwrap_or_default();
            let (shown, step_times) = shown_steps(&steps.shown[at], &steps.own[at], &out.steps, &grouped);
            trace.cores.push(Core {
                plane: core.plane.name.clone(),
                id: core.plane.id,
                sparse: core.sparse,
                steps: shown,
                step_times,
                span_ps: match self.rules {
                    Rules::True => hull.map_or(0, Interval::len),
                    Rules::Xprof => xprof_span(core.sparse, &out, &grouped),
                },
                busy_ps,
                idle_ps: hull.map_or(0, Interval::len).saturating_sub(busy_ps),
                modules,
                collectives: std::mem::take(&mut out.runs),
            });
            let (pieces, whole) = out.busy.pieces();
            parts.push(ChipPart { chip: core.chip.filter(|_| chip_is_shared), hull, pieces, whole });
            if !core.sparse {
                fold(ops, self.rules, &mut trace.ops);
            }
        }
        trace.collectives = Collective::ALL.into_iter().zip(collectives).collect();
        trace.collectives.retain(|(_, totals)| totals.occurrences > 0);
        if self.rules == Rules::Xprof {
            per_chip(&mut trace.cores, parts, facts);
        }
        Ok(())
    }

    /// A host without cores: its markers are its steps, what its threads ran are its operations. Beside a device
    /// that is not read they only launched them, so there is no operation to show.
    fn host_only(&self, trace: &mut HostTrace, events: &HostEvents, groups: &Groups) {
        match self.rules {
            Rules::True if self.index.planes.iter().any(planes::is_unread_device) => {}
            Rules::True => trace.ops = events.ops.clone(),
            Rules::Xprof => trace.cores.extend(xprof_host_core(events, groups)),
        }
    }
}

/// From the first start to the last end of a core's programs and operations, by the line's clock. XProf
/// counts only the operations of a SparseCore.
fn hull(core: &CorePlane<'_>, out: &core::OpsWalk, rules: Rules) -> Option<Interval> {
    let modules = if core.sparse && rules == Rules::Xprof { &[][..] } else { &core.lines.modules };
    modules.iter().map(|module| module.line).chain(out.line).reduce(Interval::hull)
}

/// The span of a core's profile with XProf's mix of clocks: the first start by the line's, the last end by
/// the device's.
fn xprof_span(sparse: bool, out: &core::OpsWalk, grouped: &GroupedCore) -> i64 {
    if sparse {
        return 0;
    }
    let starts = out.line.map(|line| line.start).into_iter().chain(grouped.line_start);
    let ends = out.device.map(|device| device.end).into_iter().chain(grouped.device_end);
    starts.min().zip(ends.max()).map_or(0, |(start, end)| end.saturating_sub(start))
}

fn true_steps(planes: &[CorePlane<'_>], host: &HostSide<'_>) -> Steps {
    let mut found: Vec<Option<steps::CoreSteps>> = Vec::new();
    let mut numbers = HashMap::new();
    for core in planes {
        let steps = (!core.sparse).then(|| steps::tensor_core(&core.lines, core.ordinal, host));
        if let Some(steps) = &steps {
            numbers.extend(steps::numbers_by_run(&steps.steps, &core.lines.modules));
        }
        found.push(steps);
    }
    let mut all = Steps { shown: Vec::new(), own: Vec::new(), grouped: Vec::new(), origins: Vec::new() };
    for (at, core) in planes.iter().enumerate() {
        let own = found[at].take().unwrap_or_else(|| {
            let parent = planes.iter().position(|other| !other.sparse && other.ordinal == core.ordinal);
            let parent = parent.and_then(|parent| {
                all.shown.get(parent).or_else(|| found[parent].as_ref().map(|steps| &steps.steps))
            });
            steps::sparse_core(&core.lines, &numbers, parent.map(Vec::as_slice))
        });
        all.own.push(own.steps.iter().map(Step::interval).collect());
        all.origins.push((own.origin, own.outside));
        all.shown.push(own.steps);
    }
    all
}

fn xprof_like_steps(planes: &[CorePlane<'_>], host: &HostSide<'_>, is_grouped: bool) -> Steps {
    let tensor: Vec<(&CoreLines, i64)> =
        planes.iter().filter(|core| !core.sparse).map(|core| (&core.lines, core.ordinal)).collect();
    let mut found = xprof_steps::group(&tensor, host, is_grouped).into_iter();
    let grouped: Vec<GroupedCore> = planes
        .iter()
        .map(|core| if core.sparse { GroupedCore::default() } else { found.next().unwrap_or_default() })
        .collect();
    let host_wide: Vec<Step> = xprof_steps::host_wide(&grouped)
        .into_iter()
        .map(|(group, at)| Step {
            step_num: Some(group),
            inferred: false,
            run_id: None,
            start_ps: at.start,
            duration_ps: at.len(),
            waited_ps: 0,
        })
        .collect();
    let own = |core: &GroupedCore| core.steps.iter().map(|step| step.line).collect();
    Steps {
        shown: vec![host_wide; planes.len()],
        own: grouped.iter().map(own).collect(),
        origins: vec![(Origin::StepLine, 0); planes.len()],
        grouped,
    }
}

/// The steps to show, with the times of those of the core's own steps that they stand for.
fn shown_steps(
    shown: &[Step],
    own: &[Interval],
    times: &[ClassTimes],
    grouped: &GroupedCore,
) -> (Vec<Step>, Vec<ClassTimes>) {
    if grouped.steps.is_empty() && shown.len() == own.len() {
        return (shown.to_vec(), times.to_vec());
    }
    let by_group: HashMap<i64, &ClassTimes> =
        grouped.steps.iter().map(|step| step.group).zip(times).collect();
    let times = shown.iter().map(|step| {
        step.step_num.and_then(|group| by_group.get(&group)).map_or_else(ClassTimes::default, |times| **times)
    });
    (shown.to_vec(), times.collect())
}

/// A core's part in its chip's busy time.
struct ChipPart {
    /// The chip, if several cores share it.
    chip: Option<i64>,
    hull: Option<Interval>,
    pieces: Vec<(i64, i64)>,
    /// Whether the pieces are all.
    whole: bool,
}

/// XProf's busy and idle times are per chip: the first core of a chip with several is given them.
fn per_chip(cores: &mut [Core], parts: Vec<ChipPart>, facts: &mut HostFacts) {
    let mut chips: HashMap<i64, (usize, ChipPart)> = HashMap::new();
    for (at, mut part) in parts.into_iter().enumerate() {
        let Some(chip) = part.chip else { continue };
        facts.busy_cut |= !part.whole;
        (cores[at].busy_ps, cores[at].idle_ps) = (0, 0);
        match chips.get_mut(&chip) {
            Some((_, known)) => {
                known.pieces.append(&mut part.pieces);
                known.hull = known.hull.into_iter().chain(part.hull).reduce(Interval::hull);
            }
            None => {
                chips.insert(chip, (at, part));
            }
        }
    }
    for (first, part) in chips.into_values() {
        let core = &mut cores[first];
        core.busy_ps = union::length(part.pieces);
        core.idle_ps = part.hull.map_or(0, Interval::len).saturating_sub(core.busy_ps);
    }
}

/// Adds a plane's operations to the host's table.
fn fold(ops: PlaneOps, rules: Rules, table: &mut OpTable) {
    for op in ops.ops.into_iter().filter(|op| op.totals.occurrences > 0) {
        let symbol = op.symbol.filter(|_| rules == Rules::Xprof);
        table.add(OpKey { name: op.name, category: op.category, symbol }, op.totals);
    }
}

/// The core that XProf makes up for a host without any.
fn xprof_host_core(events: &HostEvents, groups: &Groups) -> Option<Core> {
    let mut steps: Vec<Step> = groups
        .markers
        .iter()
        .enumerate()
        .filter_map(|(group, &marker)| {
            let marker = events.markers.get(marker as usize)?;
            Some(Step {
                step_num: Some(group as i64),
                inferred: false,
                run_id: None,
                start_ps: marker.start_ps,
                duration_ps: marker.end_ps.saturating_sub(marker.start_ps),
                waited_ps: 0,
            })
        })
        .collect();
    if steps.len() > UNTRIMMED {
        steps.pop();
        steps.remove(0);
    }
    let core = Core {
        plane: "/host:CPU".to_owned(),
        id: 1,
        sparse: false,
        step_times: vec![ClassTimes::default(); steps.len()],
        steps,
        span_ps: 0,
        busy_ps: 0,
        idle_ps: 0,
        modules: Vec::new(),
        collectives: Vec::new(),
    };
    (!core.steps.is_empty()).then_some(core)
}

fn input_by_step(events: &HostEvents, groups: &Groups) -> HashMap<i64, i64> {
    let nums = groups.markers.iter().map(|&marker| events.markers.get(marker as usize)?.step_num);
    nums.zip(&groups.input_ps).filter_map(|(num, &input)| Some((num?, input))).collect()
}

/// Whether a module was launched by anything that the host's trace shows.
pub(super) fn unmatched_launches(groups: &Groups, cores: &[CoreFacts]) -> usize {
    let seen: std::collections::HashSet<u64> =
        cores.iter().flat_map(|core| &core.run_ids).map(|run| run & RUN_ID_BITS).collect();
    groups.launches.keys().filter(|launch| !seen.contains(&launch.run_id)).count()
}
