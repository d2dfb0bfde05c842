//! One part of a session: the trace of one process, from its file to figures.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::{Read, Seek},
};

use super::{
    Rules,
    annotations::{Collector, HostAnnotations},
    category::{COLLECTIVE_KINDS, Collective},
    clock::{self, Surveyed},
    core::{self, ClassTimes, CoreLines, LineNames, Module, SPARSE_CORE, TENSOR_CORE, Walk},
    device_events::{DeviceEvent, Interval},
    device_idle::DeviceIdle,
    groups::{self, Groups},
    host::{self, HostEvents},
    host_trace::{Core, HostTrace},
    launched::Launched,
    losses,
    op_detail::Peaks,
    ops::{OpKey, OpTable, PlaneOps, Totals},
    planes::{self, PlaneKind},
    runs,
    steps::{self, HostSide, Step, StepOrigin},
    warnings::{self, CoreFacts, HostFacts},
    xprof_host::{self, ChipPart},
    xprof_steps::{self, GroupedCore},
};
use crate::{
    reader::{AnyReader, Index, PlaneIndex, Reader},
    versions,
    wire::Error,
};

/// How many collectives the cores of one part hold together.
const MOST_COLLECTIVES: usize = 1 << 18;

/// No TensorCore has a clock cycle as short as this.
const CYCLE_PS: i64 = 100;

/// A core's plane while the part is read.
struct CorePlane<'a> {
    plane: &'a PlaneIndex,
    ordinal: i64,
    sparse: bool,
    /// Cores of one chip share it.
    chip: Option<i64>,
    names: LineNames,
    lines: CoreLines,
    clocks: Surveyed,
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
    let mut index = reader.take_index();
    // XProf takes all times as they are.
    let far = if rules == Rules::True { index.take_far_lines() } else { Vec::new() };
    let named = index.hostnames.first().filter(|name| !host_is_certain && !name.is_empty());
    let part = Part { index: &index, rules };
    let mut planes = part.core_planes(reader)?;
    let timeless = part.take_timeless(&mut planes);
    let events = part.host_events(reader, device_idle(&planes))?;
    let groups = groups::follow(&events);
    let mut trace = HostTrace {
        host: named.map_or(host, String::as_str).to_owned(),
        file: file.to_owned(),
        process_id: index.process_id(),
        clock: None,
        chip: chip(&planes),
        versions: versions::of(&index),
        profile_start_ns: index.session.start_ns,
        window_ps: index.session.window_ps().unwrap_or_else(|| part.last_end(&events)),
        host_steps: Vec::new(),
        cores: Vec::new(),
        ops: OpTable::default(),
        programs: BTreeMap::new(),
        peaks: peaks(&planes),
        collectives: Vec::new(),
        input_ps: input_by_step(&events, &groups),
        annotations: HostAnnotations::default(),
        losses: losses::of(reader, &index)?,
        left_out: Vec::new(),
        warnings: Vec::new(),
    };
    let host_side = HostSide { markers: &events.markers, groups: &groups };
    let steps = part.steps(&planes, &host_side);
    let mut facts = HostFacts::of(&index, &events, &trace, planes.is_empty(), rules);
    (facts.far, facts.timeless) = (far, timeless);
    part.walk(reader, &planes, &host_side, steps, &mut trace, &mut facts)?;
    if planes.is_empty() {
        part.host_only(&mut trace, &events, &groups);
    }
    trace.annotations = events.annotations.finish();
    trace.host_steps = events.markers;
    trace.host_steps.sort_by_key(|step| (step.start_ps, step.end_ps));
    runs::pair_cores(&mut trace.cores);
    warnings::add_losses(&facts, &mut trace);
    trace.left_out = warnings::left_out(&facts);
    trace.warnings = warnings::of(&facts, &trace);
    Ok(trace)
}

/// What all TensorCores can do at most.
fn peaks(planes: &[CorePlane<'_>]) -> Peaks {
    let tensor_cores = planes.iter().filter(|core| !core.sparse);
    tensor_cores.map(|core| Peaks::of(core.plane)).reduce(Peaks::common).unwrap_or_default()
}

/// The kind of the chips: that of the first core.
fn chip(planes: &[CorePlane<'_>]) -> Option<String> {
    let stat = planes.iter().find_map(|core| core.plane.stat("device_type_string"))?;
    stat.text().map(str::to_owned)
}

/// When no TensorCore had a program.
fn device_idle(planes: &[CorePlane<'_>]) -> DeviceIdle {
    let tensor_cores = planes.iter().filter(|core| !core.sparse);
    DeviceIdle::between(
        tensor_cores.flat_map(|core| core.lines.modules.iter().map(|module| core.placed(module.at))),
    )
}

/// The steps of all cores: what to show, and where each core's own lie by its clock.
struct Steps {
    shown: Vec<Vec<Step>>,
    own: Vec<Vec<Interval>>,
    grouped: Vec<GroupedCore>,
    origins: Vec<(StepOrigin, usize)>,
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

    fn host_events<R: Read + Seek>(
        &self,
        reader: &mut Reader<R>,
        idle: DeviceIdle,
    ) -> Result<HostEvents, Error> {
        let mut events = HostEvents { annotations: Collector::new(idle), ..HostEvents::default() };
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
            let session = &self.index.session;
            let mut lines = core::lines(reader, plane, session, names)?;
            let clocks = clock::survey(reader, plane, session, names.ops, &lines.modules)?;
            let clocks = match self.rules {
                Rules::True => clocks,
                // XProf takes both clocks as they are.
                Rules::Xprof => Surveyed { facts: clocks.facts, ..Surveyed::by_line() },
            };
            lines.set_clock(&clocks);
            let chip = planes::local_chip(plane);
            cores.push(CorePlane { plane, ordinal, sparse, chip, names, lines, clocks });
        }
        Ok(cores)
    }

    /// Takes out the cores whose program runs all last less than a clock cycle, and gives their planes: such times are
    /// damaged, and every figure would be a fraction of nothing.
    fn take_timeless(&self, planes: &mut Vec<CorePlane<'_>>) -> Vec<String> {
        let is_timeless = |core: &CorePlane<'_>| {
            let modules = &core.lines.modules;
            self.rules == Rules::True
                && !core.sparse
                && modules.len() > 1
                && modules.iter().all(|module| module.at.len() < CYCLE_PS)
        };
        let named = planes.iter().filter(|core| is_timeless(core)).map(|core| core.plane.name.clone());
        let named = named.collect();
        planes.retain(|core| !is_timeless(core));
        named
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
        planes: &[CorePlane<'_>],
        host: &HostSide<'_>,
        steps: Steps,
        trace: &mut HostTrace,
        facts: &mut HostFacts,
    ) -> Result<(), Error> {
        let mut parts = Vec::new();
        let mut collectives = [Totals::default(); COLLECTIVE_KINDS];
        for (at, core) in planes.iter().enumerate() {
            let chip_is_shared = self.rules == Rules::Xprof
                && core.chip.is_some()
                && planes.iter().filter(|other| other.chip == core.chip).count() > 1;
            let mut ops = PlaneOps::read(reader, core.plane, &mut trace.ops.texts)?;
            let walk = Walk {
                rules: self.rules,
                clock: &core.clocks.clock,
                steps: &steps.own[at],
                modules: &core.lines.modules,
                last_module_end: core.lines.modules.iter().map(|module| module.at.end).max(),
                most_runs: MOST_COLLECTIVES / planes.len().max(1),
                keep_pieces: chip_is_shared,
            };
            let mut out = walk.ops(reader, core.plane, &self.index.session, core.names.ops, &mut ops)?;
            let hull = hull(core, &out, self.rules);
            facts.cores.push(CoreFacts::of(
                core.plane,
                &core.lines,
                core.clocks.facts,
                &out,
                hull.map(|hull| core.placed(hull)),
                steps.origins[at],
                core.sparse,
            ));
            if !core.sparse {
                for (sum, more) in collectives.iter_mut().zip(&out.collectives) {
                    sum.add(*more);
                }
            }
            let (busy_ps, pieces, whole) = std::mem::take(&mut out.busy).finish();
            let (headline_busy_ps, headline_pieces, headline_whole) = match out.headline.take() {
                Some(duty) => duty.finish(),
                None => (busy_ps, Vec::new(), true),
            };
            facts.busy_cut |= !(whole && headline_whole);
            parts.push(ChipPart {
                chip: core.chip.filter(|_| chip_is_shared),
                hull,
                pieces,
                headline_pieces,
            });
            let grouped = steps.grouped.get(at).cloned().unwrap_or_default();
            let (shown, step_times) = shown_steps(&steps.shown[at], &steps.own[at], &out.steps, &grouped);
            let modules = core.modules(&ops, host, &out.ran);
            trace
                .programs
                .extend(modules.iter().filter_map(|module| Some((module.program_id?, module.name.clone()))));
            trace.cores.push(Core {
                plane: core.plane.name.clone(),
                id: core.plane.id,
                sparse: core.sparse,
                steps: shown,
                step_times,
                span_ps: match self.rules {
                    Rules::True => hull.map_or(0, Interval::len),
                    Rules::Xprof => xprof_host::span(core.sparse, &out, &grouped),
                },
                busy_ps,
                idle_ps: hull.map_or(0, Interval::len).saturating_sub(busy_ps),
                headline_busy_ps,
                by_device_clock: core.clocks.clock.is_device(),
                modules,
                collectives: out.runs,
                launched: core.launched(host),
            });
            if !core.sparse {
                fold(ops, self.rules, &mut trace.ops);
            }
        }
        trace.collectives = Collective::ALL.into_iter().zip(collectives).collect();
        trace.collectives.retain(|(_, totals)| totals.occurrences > 0);
        if self.rules == Rules::Xprof {
            xprof_host::per_chip(&mut trace.cores, parts);
        }
        Ok(())
    }

    /// A host without cores: its markers are its steps, what its threads ran are its operations. Beside a device
    /// that is not read they only launched them, so there is no operation to show.
    fn host_only(&self, trace: &mut HostTrace, events: &HostEvents, groups: &Groups) {
        match self.rules {
            Rules::True if self.index.planes.iter().any(planes::is_unread_device) => {}
            Rules::True => trace.ops = events.ops.clone(),
            Rules::Xprof => trace.cores.extend(xprof_host::host_core(events, groups)),
        }
    }
}

impl CorePlane<'_> {
    /// Where an interval of the core lies on the session's time line.
    fn placed(&self, at: Interval) -> Interval {
        Interval { start: self.clocks.clock.place(at.start), end: self.clocks.clock.place(at.end) }
    }

    /// Its steps as they are shown: placed on the session's time line, their durations left alone.
    fn placed_steps(&self, mut steps: Vec<Step>) -> Vec<Step> {
        for step in &mut steps {
            step.start_ps = self.clocks.clock.place(step.start_ps);
        }
        steps
    }

    /// Steps of another core by this one's clock.
    fn unplaced_steps(&self, steps: &[Step]) -> Vec<Step> {
        let clock = &self.clocks.clock;
        steps.iter().map(|step| Step { start_ps: clock.unplace(step.start_ps), ..*step }).collect()
    }

    /// Its programs' executions; `ran` tells which of them have operations.
    fn modules(&self, ops: &PlaneOps, host: &HostSide<'_>, ran: &[bool]) -> Vec<Module> {
        let clock = &self.clocks.clock;
        let events = || self.lines.modules.iter().zip(ran);
        let have_ops: HashSet<i64> =
            events().filter(|(_, ran)| **ran).map(|(event, _)| event.metadata_id).collect();
        let module = |(event, ran): (&DeviceEvent, &bool)| Module {
            lacks_ops: !ran && have_ops.contains(&event.metadata_id),
            ..Module::of(event, ops, clock, host.enqueued(self.ordinal, event))
        };
        events().map(module).collect()
    }

    fn launched(&self, host: &HostSide<'_>) -> Launched {
        match self.sparse {
            true => Launched::default(),
            false => Launched::of(self.ordinal, &self.lines.modules, host),
        }
    }
}

/// From the first start to the last end of a core's programs and operations, by the core's clock. XProf counts only
/// the operations of a SparseCore.
fn hull(core: &CorePlane<'_>, out: &core::OpsWalk, rules: Rules) -> Option<Interval> {
    let modules = if core.sparse && rules == Rules::Xprof { &[][..] } else { &core.lines.modules };
    modules.iter().map(|module| module.at).chain(out.extent).reduce(Interval::hull)
}

fn true_steps(planes: &[CorePlane<'_>], host: &HostSide<'_>) -> Steps {
    // Each core counts its own run ids, and its SparseCores go by them.
    let mut numbers: HashMap<i64, HashMap<u64, i64>> = HashMap::new();
    let mut parents: HashMap<i64, Vec<Step>> = HashMap::new();
    let mut found: Vec<Option<steps::CoreSteps>> = Vec::new();
    for core in planes {
        let steps = (!core.sparse).then(|| steps::tensor_core(&core.lines, core.ordinal, host));
        if let Some(steps) = &steps {
            let of_core = steps::numbers_by_run(&steps.steps, &core.lines.modules);
            numbers.entry(core.ordinal).or_insert(of_core);
            parents.entry(core.ordinal).or_insert_with(|| core.placed_steps(steps.steps.clone()));
        }
        found.push(steps);
    }
    let none = HashMap::new();
    let mut all = Steps { shown: Vec::new(), own: Vec::new(), grouped: Vec::new(), origins: Vec::new() };
    for (core, found) in planes.iter().zip(found) {
        let own = found.unwrap_or_else(|| {
            let numbers = numbers.get(&core.ordinal).unwrap_or(&none);
            let parent = parents.get(&core.ordinal).map(|steps| core.unplaced_steps(steps));
            steps::sparse_core(&core.lines, numbers, parent.as_deref())
        });
        all.own.push(own.steps.iter().map(Step::interval).collect());
        all.origins.push((own.origin, own.outside));
        all.shown.push(core.placed_steps(own.steps));
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
            module: None,
            start_ps: at.start,
            duration_ps: at.len(),
            waited_ps: 0,
        })
        .collect();
    let own = |core: &GroupedCore| core.steps.iter().map(|step| step.line).collect();
    Steps {
        shown: vec![host_wide; planes.len()],
        own: grouped.iter().map(own).collect(),
        origins: vec![(StepOrigin::StepLine, 0); planes.len()],
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

/// Adds a plane's operations to the host's table.
fn fold(ops: PlaneOps, rules: Rules, table: &mut OpTable) {
    for op in ops.ops.into_iter().filter(|op| op.totals.occurrences > 0) {
        let symbol = op.symbol.filter(|_| rules == Rules::Xprof);
        let key = OpKey { name: op.name, category: op.category, program: op.program, symbol };
        table.add(key, op.totals, op.detail);
    }
}

fn input_by_step(events: &HostEvents, groups: &Groups) -> HashMap<i64, i64> {
    let nums = groups.markers.iter().map(|&marker| events.markers.get(marker as usize)?.step_num);
    nums.zip(&groups.input_ps).filter_map(|(num, &input)| Some((num?, input))).collect()
}
