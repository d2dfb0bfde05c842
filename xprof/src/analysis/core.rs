//! One core's plane: its programs, steps, operations, and how long it was busy.

use std::{
    cmp::Reverse,
    io::{Read, Seek},
    ops::{ControlFlow, Range},
};

use super::{
    Rules,
    busy::Busy,
    category::{CLASSES, COLLECTIVE_KINDS, Class},
    device_events::{self, DeviceEvent, DeviceStats, Interval},
    nesting::Nesting,
    ops::{Op, PlaneOps, Totals},
    union::Union,
};
use crate::{
    reader::{Event, LineIndex, PlaneIndex, Reader, Session},
    wire::Error,
};

/// How many operations of an unsorted line are held to be sorted.
const MOST_UNSORTED: usize = 1 << 18;

/// The names of the lines of one kind of core.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineNames {
    pub(super) steps: &'static str,
    pub(super) modules: &'static str,
    pub(super) ops: &'static str,
}

/// The lines of a TensorCore.
pub(super) const TENSOR_CORE: LineNames =
    LineNames { steps: "Steps", modules: "XLA Modules", ops: "XLA Ops" };
/// The lines of a SparseCore.
pub(super) const SPARSE_CORE: LineNames =
    LineNames { steps: "Sparse Core Steps", modules: "Sparse Core Modules", ops: "Sparse Core Ops" };

/// One execution of a program on a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The program's name.
    pub name: String,
    /// Its id, where the name holds it.
    pub program_id: Option<u64>,
    /// The execution's id.
    pub run_id: Option<u64>,
    /// Its start on the session's time line.
    pub start_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
}

impl Module {
    pub(super) fn of(event: &DeviceEvent, ops: &PlaneOps) -> Self {
        let (name, program_id) = program(ops.name(event.metadata_id));
        Self {
            name: name.to_owned(),
            program_id,
            run_id: event.run_id,
            start_ps: event.line.start,
            duration_ps: event.line.len(),
        }
    }
}

/// Splits `jit_step(42)`.
fn program(name: &str) -> (&str, Option<u64>) {
    let split = name.strip_suffix(')').and_then(|name| name.rsplit_once('('));
    match split.and_then(|(name, id)| Some((name, id.parse().ok()?))) {
        Some((name, id)) => (name, Some(id)),
        None => (name, None),
    }
}

/// The short lines of a core.
#[derive(Debug, Default)]
pub(super) struct CoreLines {
    pub(super) steps: Vec<DeviceEvent>,
    pub(super) modules: Vec<DeviceEvent>,
    pub(super) over: bool,
}

/// Reads the short lines.
pub(super) fn lines<R: Read + Seek>(
    reader: &mut Reader<R>,
    plane: &PlaneIndex,
    session: &Session,
    names: LineNames,
) -> Result<CoreLines, Error> {
    let stats = DeviceStats::of(&plane.stat_names);
    let (steps, over_steps) = device_events::read(reader, plane, session, &stats, names.steps)?;
    let (modules, over_modules) = device_events::read(reader, plane, session, &stats, names.modules)?;
    Ok(CoreLines { steps, modules, over: over_steps || over_modules })
}

/// The time of one step on one core, by [`Class`].
pub(super) type ClassTimes = [i64; CLASSES];

/// One execution of a collective that several cores know by the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveRun {
    /// The id.
    pub unique_id: u64,
    /// The step it lies in, an index of the core's steps.
    pub step: Option<u32>,
    /// Its start on the session's time line.
    pub start_ps: i64,
    /// Its end.
    pub end_ps: i64,
}

/// What one walk over a core's operations gives.
#[derive(Debug, Default)]
pub(super) struct OpsWalk {
    /// Per step, how its time was spent.
    pub(super) steps: Vec<ClassTimes>,
    /// Per kind of collective, its totals.
    pub(super) collectives: [Totals; COLLECTIVE_KINDS],
    /// The collectives that have an id.
    pub(super) runs: Vec<CollectiveRun>,
    /// When the innermost operation was one that counts as busy.
    pub(super) busy: Union,
    /// From the first start to the last end, by the line's clock.
    pub(super) line: Option<Interval>,
    /// The same by the device's clock where events have one.
    pub(super) device: Option<Interval>,
    /// Executions of operations without program or symbol id, and their time.
    pub(super) nameless: Totals,
    /// Executions that lie in no program's execution, after the last one.
    pub(super) after_last_module: u64,
    /// Whether some were out of order in a line too long to be sorted.
    pub(super) unsorted: bool,
    /// Whether collectives were over the limit.
    pub(super) over: bool,
}

/// One operation's execution.
#[derive(Debug, Clone, Copy)]
struct Run {
    op: u32,
    line: Interval,
    device: Option<Interval>,
    unique_id: Option<u64>,
}

/// How the operations of a core are walked.
pub(super) struct Walk<'a> {
    pub(super) rules: Rules,
    /// The steps by the line's clock, by start.
    pub(super) steps: &'a [Interval],
    /// Where the last program ended.
    pub(super) last_module_end: Option<i64>,
    /// How many collectives are held.
    pub(super) most_runs: usize,
    pub(super) out: OpsWalk,
    busy: Busy,
    cursor: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        rules: Rules,
        steps: &'a [Interval],
        last_module_end: Option<i64>,
        busy: Union,
    ) -> Self {
        let out = OpsWalk { steps: vec![[0; CLASSES]; steps.len()], busy, ..OpsWalk::default() };
        Self { rules, steps, last_module_end, most_runs: 0, out, busy: Busy::default(), cursor: 0 }
    }

    /// Walks the lines called `name`.
    pub(super) fn ops<R: Read + Seek>(
        &mut self,
        reader: &mut Reader<R>,
        plane: &PlaneIndex,
        session: &Session,
        name: &str,
        ops: &mut PlaneOps,
    ) -> Result<(), Error> {
        let stats = DeviceStats::of(&plane.stat_names);
        for (line, start) in device_events::lines(plane, session, name) {
            self.cursor = 0;
            self.line(reader, line, start, &stats, ops)?;
        }
        Ok(())
    }

    fn line<R: Read + Seek>(
        &mut self,
        reader: &mut Reader<R>,
        line: &LineIndex,
        start: i64,
        stats: &DeviceStats,
        ops: &mut PlaneOps,
    ) -> Result<(), Error> {
        // Stats cost more than all else: they are read only where they count.
        let every_clock = self.rules == Rules::Xprof && stats.has_device_clock();
        let mut nesting = Nesting::new();
        let mut held: Vec<Run> = Vec::new();
        reader.events(line.span, |event| {
            let run = self.run(event, start, stats, every_clock, ops)?;
            if line.sorted {
                self.count(run, &mut nesting, ops);
            } else {
                held.push(run);
                if held.len() == MOST_UNSORTED {
                    self.out.unsorted = true;
                    self.drain(&mut held, &mut nesting, ops);
                }
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
        self.drain(&mut held, &mut nesting, ops);
        self.busy.finish(&mut self.out.busy);
        nesting.finish(|what, time, self_time| self.done(what, time, self_time, ops));
        Ok(())
    }

    #[inline]
    fn run(
        &self,
        event: &Event<'_>,
        start: i64,
        stats: &DeviceStats,
        every_clock: bool,
        ops: &mut PlaneOps,
    ) -> Result<Run, Error> {
        let op = ops.index(event.metadata_id);
        let line = device_events::interval(start, event);
        let wanted = every_clock || ops.ops[op as usize].collective.is_some();
        let (device, unique_id) = if wanted { stats.of_op(event)? } else { (None, None) };
        Ok(Run { op, line, device, unique_id })
    }

    fn drain(&mut self, held: &mut Vec<Run>, nesting: &mut Nesting<(u32, u32)>, ops: &mut PlaneOps) {
        held.sort_by_key(|run| (run.line.start, Reverse(run.line.end)));
        for run in held.drain(..) {
            self.count(run, nesting, ops);
        }
    }

    /// Counts one execution; executions come by start.
    #[inline]
    fn count(&mut self, run: Run, nesting: &mut Nesting<(u32, u32)>, ops: &mut PlaneOps) {
        let Run { op, line, device, unique_id } = run;
        let device = device.unwrap_or(line);
        let out = &mut self.out;
        out.line = Some(out.line.map_or(line, |all| all.hull(line)));
        out.device = Some(out.device.map_or(device, |all| all.hull(device)));
        let Op { off_duty, flopless_call, .. } = ops.ops[op as usize];
        let off_duty = off_duty || self.rules == Rules::Xprof && flopless_call;
        self.busy.push(line.start, line.end, !off_duty, &mut out.busy);
        out.after_last_module += u64::from(self.last_module_end.is_some_and(|end| line.start >= end));
        let step = self.step_at(line.start);
        if let Some(unique_id) = unique_id {
            self.keep(unique_id, step, self.time(line, device));
        }
        let at = self.time(line, device);
        nesting.push(at.start, at.end, (op, step), |what, time, self_time| {
            self.done(what, time, self_time, ops);
        });
    }

    fn time(&self, line: Interval, device: Interval) -> Interval {
        match self.rules {
            Rules::True => line,
            Rules::Xprof => device,
        }
    }

    fn keep(&mut self, unique_id: u64, step: u32, at: Interval) {
        if self.out.runs.len() >= self.most_runs {
            self.out.over = true;
            return;
        }
        let step = (step != u32::MAX).then_some(step);
        self.out.runs.push(CollectiveRun { unique_id, step, start_ps: at.start, end_ps: at.end });
    }

    /// The step that `start` lies in; `u32::MAX` for none.
    #[inline]
    fn step_at(&mut self, start: i64) -> u32 {
        while let Some(step) = self.steps.get(self.cursor) {
            if start < step.start {
                return u32::MAX;
            }
            if start < step.end {
                return self.cursor as u32;
            }
            self.cursor += 1;
        }
        u32::MAX
    }

    #[inline]
    fn done(&mut self, (op, step): (u32, u32), time_ps: i64, self_time_ps: i64, ops: &mut PlaneOps) {
        // Children that overlap each other can be longer than what they lie in; XProf goes below zero there.
        let self_time_ps = match self.rules {
            Rules::True => self_time_ps.max(0),
            Rules::Xprof => self_time_ps,
        };
        let op = &mut ops.ops[op as usize];
        let totals = Totals { occurrences: 1, time_ps, self_time_ps };
        if op.symbol.is_none() {
            self.out.nameless.add(totals);
            if self.rules == Rules::Xprof {
                return;
            }
        }
        op.totals.add(totals);
        if let Some(kind) = op.collective {
            self.out.collectives[kind as usize].add(totals);
        }
        if let Some(times) = self.out.steps.get_mut(step as usize) {
            let time = &mut times[op.class as usize];
            *time = time.saturating_add(self_time_ps);
        }
    }
}

/// The sum of a step's time on the device, idle excluded.
pub(super) fn worked(times: &ClassTimes) -> i64 {
    times.iter().fold(0, |sum: i64, &time| sum.saturating_add(time))
}

/// One part of [`ClassTimes`].
pub(super) fn of_class(times: &ClassTimes, class: Class) -> i64 {
    times[class as usize]
}

/// Where the programs that start in `at` lie among all.
pub(super) fn places_in(modules: &[DeviceEvent], at: Interval) -> Range<usize> {
    let from = modules.partition_point(|module| module.line.start < at.start);
    let to = modules.partition_point(|module| module.line.start < at.end);
    from..to.max(from)
}
