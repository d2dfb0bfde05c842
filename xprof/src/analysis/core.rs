//! One core's plane: its programs, steps, operations, and how long it was busy.

use std::{
    cmp::Reverse,
    hash::{DefaultHasher, Hash, Hasher},
    io::{Read, Seek},
    ops::{ControlFlow, Range},
};

use super::{
    Rules,
    category::{CLASSES, COLLECTIVE_KINDS, Class},
    clock::{CoreClock, Surveyed},
    device_events::{self, DeviceEvent, DeviceStats, Interval},
    duty::Duty,
    nesting::Nesting,
    ops::{Op, PlaneOps, Totals},
};
use crate::{
    reader::{LineIndex, PlaneIndex, Reader, SessionTimes, TraceEvent},
    wire::Error,
};

/// How far an operation of an unsorted line may lie from its place; twice as many are held to be sorted.
const MOST_UNSORTED: usize = 1 << 17;
/// The same for a sorted line that is read by the device's clock: a jump of the line's clock moves only neighbours.
const MOST_JUMPED: usize = 1 << 12;

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
    /// The execution's id; each core counts its own.
    pub run_id: Option<u64>,
    /// The run that it is part of: executions of one run on several cores have the same number.
    pub run: Option<u64>,
    /// Its start on the session's time line.
    pub start_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
    /// When the host enqueued it.
    pub enqueued_ps: Option<i64>,
    /// Whether none of its operations is in the trace, although the program has some in other runs.
    pub(super) lacks_ops: bool,
}

impl Module {
    pub(super) fn of(
        event: &DeviceEvent,
        ops: &PlaneOps,
        clock: &CoreClock,
        enqueued_ps: Option<i64>,
    ) -> Self {
        let (name, program_id) = program(ops.name(event.metadata_id));
        Self {
            name: name.to_owned(),
            program_id,
            run_id: event.run_id,
            run: None,
            start_ps: clock.place(event.at.start),
            duration_ps: event.at.len(),
            enqueued_ps,
            lacks_ops: false,
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
    session: &SessionTimes,
    names: LineNames,
) -> Result<CoreLines, Error> {
    let stats = DeviceStats::of(&plane.stat_names);
    let (steps, over_steps) = device_events::read(reader, plane, session, &stats, names.steps)?;
    let (modules, over_modules) = device_events::read(reader, plane, session, &stats, names.modules)?;
    Ok(CoreLines { steps, modules, over: over_steps || over_modules })
}

impl CoreLines {
    /// Where the programs and the steps lie by the core's clock, in their order here. Those without a device time of
    /// their own have the extent of what ran in them.
    pub(super) fn by_clock(&self, surveyed: &Surveyed) -> (Vec<Interval>, Vec<Interval>) {
        let clock = &surveyed.clock;
        let extents = surveyed.extents.iter().copied().chain(std::iter::repeat(None));
        let module = |(module, extent): (&DeviceEvent, Option<Interval>)| {
            clock.time(module.at, module.device.or(extent))
        };
        let modules: Vec<Interval> = self.modules.iter().zip(extents).map(module).collect();
        let step = |step: &DeviceEvent| {
            let ran = modules[places_in(&self.modules, step.at)].iter().copied().reduce(Interval::hull);
            match (step.device, ran) {
                (None, Some(ran)) => ran,
                (device, _) => clock.time(step.at, device),
            }
        };
        let steps = self.steps.iter().map(step).collect();
        (modules, steps)
    }

    /// Moves all events to the core's clock.
    pub(super) fn set_clock(&mut self, surveyed: &Surveyed) {
        if !surveyed.clock.is_device() {
            return;
        }
        let (modules, steps) = self.by_clock(surveyed);
        for (events, times) in [(&mut self.modules, modules), (&mut self.steps, steps)] {
            events.iter_mut().zip(times).for_each(|(event, at)| event.at = at);
            device_events::sort(events);
        }
    }
}

/// The time of one step on one core, by [`Class`].
pub(super) type ClassTimes = [i64; CLASSES];

/// One execution of a collective that several cores take part in.
///
/// Its id is not kept: each core counts its own. The same collective on another core is the one of the same
/// operation with the same number in the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveRun {
    /// A number for the operation's name.
    pub op: u64,
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
    pub(super) busy: Duty,
    /// The same by XProf's headline: kernels of unknown work count as busy.
    pub(super) headline: Option<Duty>,
    /// From the first start to the last end, by the core's clock.
    pub(super) extent: Option<Interval>,
    /// By XProf's rules: the same by the device's clock where events have one.
    pub(super) device: Option<Interval>,
    /// Executions of operations without program or symbol id, and their time.
    pub(super) nameless: Totals,
    /// Executions that lie in no program's execution, after the last one.
    pub(super) after_last_module: u64,
    /// Per program execution whether an operation lies in it.
    pub(super) ran: Vec<bool>,
    /// Whether some were out of order in a line too long to be sorted.
    pub(super) unsorted: bool,
    /// Whether collectives were over the limit.
    pub(super) over: bool,
}

/// One operation's execution.
#[derive(Debug, Clone, Copy)]
struct Run {
    op: u32,
    /// By the core's clock; by XProf's rules the line's.
    at: Interval,
    device: Option<Interval>,
    is_shared: bool,
}

/// How the operations of a core are walked.
pub(super) struct Walk<'a> {
    pub(super) rules: Rules,
    pub(super) clock: &'a CoreClock,
    /// The steps by the core's clock, by start.
    pub(super) steps: &'a [Interval],
    /// The executions of programs by the core's clock, by start.
    pub(super) modules: &'a [DeviceEvent],
    /// Where the last program ended.
    pub(super) last_module_end: Option<i64>,
    /// How many collectives are held.
    pub(super) most_runs: usize,
    /// Whether the pieces of busy time are wanted.
    pub(super) keep_pieces: bool,
}

/// A walk under way.
struct Walking<'a> {
    how: &'a Walk<'a>,
    out: OpsWalk,
    cursor: usize,
    /// How many programs have started.
    started: usize,
    /// Executions that wait for earlier ones.
    held: Vec<Run>,
    latest: i64,
}

impl Walk<'_> {
    /// Walks the lines called `name`.
    pub(super) fn ops<R: Read + Seek>(
        &self,
        reader: &mut Reader<R>,
        plane: &PlaneIndex,
        session: &SessionTimes,
        name: &str,
        ops: &mut PlaneOps,
    ) -> Result<OpsWalk, Error> {
        let stats = DeviceStats::of(&plane.stat_names);
        let lines = device_events::lines(plane, session, name);
        let keep = self.keep_pieces || lines.len() > 1;
        let mut walking = Walking {
            how: self,
            out: OpsWalk {
                steps: vec![[0; CLASSES]; self.steps.len()],
                busy: Duty::new(keep),
                ran: vec![false; self.modules.len()],
                headline: (self.rules == Rules::Xprof).then(|| Duty::new(keep)),
                ..OpsWalk::default()
            },
            cursor: 0,
            started: 0,
            held: Vec::new(),
            latest: i64::MIN,
        };
        for (line, start) in lines {
            (walking.cursor, walking.started, walking.latest) = (0, 0, i64::MIN);
            walking.line(reader, line, start, &stats, ops)?;
            walking.out.busy.end_line(keep);
            if let Some(headline) = &mut walking.out.headline {
                headline.end_line(keep);
            }
        }
        Ok(walking.out)
    }
}

impl Walking<'_> {
    fn line<R: Read + Seek>(
        &mut self,
        reader: &mut Reader<R>,
        line: &LineIndex,
        start: i64,
        stats: &DeviceStats,
        ops: &mut PlaneOps,
    ) -> Result<(), Error> {
        // Stats cost more than all else: they are read only where they count.
        let by_device = self.how.clock.is_device();
        let every_clock = by_device || self.how.rules == Rules::Xprof && stats.has_device_clock();
        let most_held = match (line.sorted, by_device) {
            (true, false) => 0,
            (true, true) => MOST_JUMPED,
            (false, _) => MOST_UNSORTED,
        };
        let mut nesting = Nesting::new();
        reader.events(line.span, |event| {
            let run = self.run(event, start, stats, every_clock, ops)?;
            if most_held == 0 {
                self.count(run, &mut nesting, ops);
            } else {
                self.held.push(run);
                if self.held.len() == 2 * most_held {
                    self.drain(most_held, &mut nesting, ops);
                }
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
        self.drain(usize::MAX, &mut nesting, ops);
        nesting.finish(|what, time, self_time| self.done(what, time, self_time, ops));
        Ok(())
    }

    #[inline]
    fn run(
        &self,
        event: &TraceEvent<'_>,
        start: i64,
        stats: &DeviceStats,
        every_clock: bool,
        ops: &mut PlaneOps,
    ) -> Result<Run, Error> {
        let op = ops.index(event.metadata_id);
        let line = device_events::interval(start, event);
        let wanted = every_clock || ops.ops[op as usize].collective.is_some();
        let (device, unique_id) = if wanted { stats.of_op(event)? } else { (None, None) };
        let at = self.how.clock.time(line, device);
        Ok(Run { op, at, device, is_shared: unique_id.is_some() })
    }

    /// Counts the first `count` of what is held, by start.
    fn drain(&mut self, count: usize, nesting: &mut Nesting<(u32, u32)>, ops: &mut PlaneOps) {
        let mut held = std::mem::take(&mut self.held);
        // Mostly in order already, which this sort makes use of.
        held.sort_by_key(|run| (run.at.start, Reverse(run.at.end)));
        for run in held.drain(..count.min(held.len())) {
            self.out.unsorted |= run.at.start < self.latest;
            self.latest = self.latest.max(run.at.start);
            self.count(run, nesting, ops);
        }
        self.held = held;
    }

    /// Counts one execution; executions come by start.
    #[inline]
    fn count(&mut self, run: Run, nesting: &mut Nesting<(u32, u32)>, ops: &mut PlaneOps) {
        let Run { op, at, device, is_shared } = run;
        let out = &mut self.out;
        out.extent = Some(out.extent.map_or(at, |all| all.hull(at)));
        let Op { off_duty, flopless_call, .. } = ops.ops[op as usize];
        let mut timed = at;
        if let Some(headline) = &mut out.headline {
            timed = device.unwrap_or(at);
            out.device = Some(out.device.map_or(timed, |all| all.hull(timed)));
            headline.push(at, !off_duty);
            out.busy.push(at, !off_duty && !flopless_call);
        } else {
            out.busy.push(at, !off_duty);
        }
        out.after_last_module += u64::from(self.how.last_module_end.is_some_and(|end| at.start >= end));
        self.note_module(at.start);
        let step = self.step_at(at.start);
        if is_shared {
            self.keep(&ops.ops[op as usize].name, step, timed);
        }
        nesting.push(timed.start, timed.end, (op, step), |what, time, self_time| {
            self.done(what, time, self_time, ops);
        });
    }

    fn keep(&mut self, name: &str, step: u32, at: Interval) {
        if self.out.runs.len() >= self.how.most_runs {
            self.out.over = true;
            return;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.out.runs.push(CollectiveRun {
            op: hasher.finish(),
            step: (step != u32::MAX).then_some(step),
            start_ps: self.how.clock.place(at.start),
            end_ps: self.how.clock.place(at.end),
        });
    }

    /// Notes that the program that runs at `start` has an operation.
    #[inline]
    fn note_module(&mut self, start: i64) {
        while self.how.modules.get(self.started).is_some_and(|module| module.at.start <= start) {
            self.started += 1;
        }
        if let Some(at) = self.started.checked_sub(1)
            && start <= self.how.modules[at].at.end
        {
            self.out.ran[at] = true;
        }
    }

    /// The step that `start` lies in; `u32::MAX` for none.
    #[inline]
    fn step_at(&mut self, start: i64) -> u32 {
        while let Some(step) = self.how.steps.get(self.cursor) {
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
        let self_time_ps = match self.how.rules {
            Rules::True => self_time_ps.max(0),
            Rules::Xprof => self_time_ps,
        };
        let op = &mut ops.ops[op as usize];
        let totals = Totals { occurrences: 1, time_ps, self_time_ps };
        if op.program.is_none() || op.symbol.is_none() {
            self.out.nameless.add(totals);
            if self.how.rules == Rules::Xprof {
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
    let from = modules.partition_point(|module| module.at.start < at.start);
    let to = modules.partition_point(|module| module.at.start < at.end);
    from..to.max(from)
}
