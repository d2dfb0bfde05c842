//! The host's own annotations (TraceMe, TraceAnnotation, step markers): how long each took, by name, in all and
//! within the steps.
//!
//! Python frames and the operations that a host runs are no annotations. A step's part is what lies within its
//! marker, or between it and the next one, on the marker's own thread: what other threads do meanwhile need not hold
//! the step up. Where there is a device, what any thread does while no program runs there is counted too.
//! Must never hold more than [`MOST_NAMES`] names, whatever the trace has.

use std::collections::HashMap;

use serde::Serialize;

use super::{device_idle::DeviceIdle, in_order::InOrder, nesting::Nesting, ops::shorten};

/// The maximum number of names with their own row; the others share one row.
const MOST_NAMES: usize = 1 << 14;
/// The name of that row.
const OTHERS: &str = "(all other names)";

/// The annotations of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// Whether it marks steps.
    pub step_marker: bool,
    /// Whether it hands a program to the device: it may wait for the device, or for the program's input.
    pub launch: bool,
    /// How often it was there.
    pub occurrences: u64,
    /// How long, annotations inside it included.
    pub time_ps: i64,
    /// How long without those.
    pub self_time_ps: i64,
    /// The part of the time that lies within steps, on the thread of their markers.
    pub in_steps_time_ps: i64,
    /// The part of the self time that does.
    pub in_steps_self_time_ps: i64,
    /// The part of the time that lies between a step and the next one, on that thread.
    pub between_steps_time_ps: i64,
    /// The part of the self time that does.
    pub between_steps_self_time_ps: i64,
    /// The part of the time, on any thread, in which no program ran on the device, between its first and its last one.
    pub device_idle_time_ps: i64,
    /// The part of the self time that does.
    pub device_idle_self_time_ps: i64,
}

/// All annotations of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HostAnnotations {
    /// How many steps have markers; a marker inside another one's step is none.
    pub steps: u64,
    /// The time of those steps.
    pub steps_time_ps: i64,
    /// How many of them have a next one on their thread.
    pub steps_with_next: u64,
    /// The time from the end of each of those to the start of the next one.
    pub between_steps_ps: i64,
    /// From the start of the first program on the device to the end of the last; 0 without a device.
    pub device_span_ps: i64,
    /// How long in that time no core ran a program.
    pub device_idle_ps: i64,
    /// By name, the most self time first.
    pub rows: Vec<Annotation>,
    /// How many names are left out of the rows.
    pub names_left_out: u64,
    /// The self time of those.
    pub self_time_left_out_ps: i64,
}

impl HostAnnotations {
    /// The mean time from the start of one step to the start of the next.
    pub fn period_ps(&self) -> i64 {
        self.per_step(self.steps_time_ps, self.between_steps_ps)
    }

    /// The total and the self time of an annotation of these in one period, on the thread of the step markers.
    pub fn in_period_ps(&self, row: &Annotation) -> (i64, i64) {
        (
            self.per_step(row.in_steps_time_ps, row.between_steps_time_ps),
            self.per_step(row.in_steps_self_time_ps, row.between_steps_self_time_ps),
        )
    }

    fn per_step(&self, in_steps_ps: i64, between_steps_ps: i64) -> i64 {
        let mean = |ps: i64, of: u64| ps / i64::try_from(of).unwrap_or(i64::MAX).max(1);
        mean(in_steps_ps, self.steps).saturating_add(mean(between_steps_ps, self.steps_with_next))
    }

    /// Keeps the first `top` rows.
    pub fn cut(&mut self, top: usize) {
        let cut = self.rows.split_off(top.min(self.rows.len()));
        self.names_left_out += cut.len() as u64;
        self.self_time_left_out_ps =
            cut.iter().fold(self.self_time_left_out_ps, |sum, row| sum.saturating_add(row.self_time_ps));
    }
}

/// The annotations of a host while it is read.
#[derive(Debug, Default)]
pub(super) struct Collector {
    by_name: HashMap<String, u32>,
    rows: Vec<Annotation>,
    steps: u64,
    steps_time_ps: i64,
    steps_with_next: u64,
    between_steps_ps: i64,
    idle: DeviceIdle,
}

impl Collector {
    /// For a host whose device was idle in `idle`.
    pub(super) fn new(idle: DeviceIdle) -> Self {
        Self { idle, ..Self::default() }
    }

    /// The row of an event's name; `None` where it is no annotation's.
    pub(super) fn row(&mut self, name: &[u8]) -> Option<u32> {
        // Python frames, and the ends of operations.
        if name.is_empty() || name.starts_with(b"$") || name.starts_with(b"end: ") {
            return None;
        }
        let name = String::from_utf8_lossy(name);
        let mut name = shorten(&name);
        if self.rows.len() >= MOST_NAMES && !self.by_name.contains_key(name) {
            name = OTHERS;
        }
        Some(match self.by_name.get(name) {
            Some(&row) => row,
            None => {
                let row = self.rows.len() as u32;
                self.rows.push(Annotation { name: name.to_owned(), ..Annotation::default() });
                self.by_name.insert(name.to_owned(), row);
                row
            }
        })
    }

    /// Notes that the annotations of a row launch programs.
    pub(super) fn note_launch(&mut self, row: u32) {
        self.rows[row as usize].launch = true;
    }

    /// What was collected.
    pub(super) fn finish(mut self) -> HostAnnotations {
        self.rows.retain(|row| row.occurrences > 0);
        self.rows.sort_by(|a, b| {
            let rank = |row: &Annotation| (row.self_time_ps, row.time_ps);
            rank(b).cmp(&rank(a)).then_with(|| a.name.cmp(&b.name))
        });
        HostAnnotations {
            steps: self.steps,
            steps_time_ps: self.steps_time_ps,
            steps_with_next: self.steps_with_next,
            between_steps_ps: self.between_steps_ps,
            device_span_ps: self.idle.span_ps(),
            device_idle_ps: self.idle.total_ps(),
            rows: self.rows,
            names_left_out: 0,
            self_time_left_out_ps: 0,
        }
    }
}

/// An annotation on its line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Annotated {
    pub(super) row: u32,
    pub(super) marker: bool,
}

/// The annotations of one thread.
#[derive(Debug)]
pub(super) struct Thread {
    order: InOrder<Annotated>,
    nested: NestedThread,
}

#[derive(Debug)]
struct NestedThread {
    nesting: Nesting<Placed>,
    /// The same annotations on a time line on which only the device's idle time passes.
    in_idle: Nesting<u32>,
    /// The number of steps that started, and the end of the last.
    steps: u64,
    step_end: Option<i64>,
    /// What lies behind the last step, by row: total and self time. It counts once the next step starts.
    behind: HashMap<u32, (i64, i64)>,
}

/// An annotation, and where it lies.
#[derive(Debug, Clone, Copy)]
struct Placed {
    row: u32,
    in_step: bool,
    /// How many steps had started before it.
    steps: u64,
}

impl Thread {
    pub(super) fn new(sorted: bool) -> Self {
        let nested = NestedThread {
            nesting: Nesting::new(),
            in_idle: Nesting::new(),
            steps: 0,
            step_end: None,
            behind: HashMap::new(),
        };
        Self { order: InOrder::new(sorted), nested }
    }

    #[inline]
    pub(super) fn push(&mut self, start: i64, end: i64, what: Annotated, into: &mut Collector) {
        let Self { order, nested } = self;
        order.push(start, end, what, |start, end, what| nested.push(start, end, what, into));
    }

    /// Whether self times are approximate.
    pub(super) fn is_approximate(&self) -> bool {
        self.order.is_approximate()
    }

    pub(super) fn finish(mut self, into: &mut Collector) {
        let Self { order, nested } = &mut self;
        order.finish(|start, end, what| nested.push(start, end, what, into));
        nested.nesting.finish(|what, time, own| into.count(what, time, own));
        nested.in_idle.finish(|row, time, own| into.count_idle(row, time, own));
    }
}

impl NestedThread {
    #[inline]
    fn push(&mut self, start: i64, end: i64, what: Annotated, into: &mut Collector) {
        let inside = self.step_end.is_some_and(|step_end| end <= step_end);
        let starts_step = what.marker && !inside;
        into.rows[what.row as usize].step_marker |= what.marker;
        let (steps, behind) = (self.steps, &mut self.behind);
        let placed = Placed { row: what.row, in_step: inside || starts_step, steps };
        self.nesting.push(start, end, placed, |what, time, own| {
            into.count(what, time, own);
            // What a later step lies in is not between two steps.
            if !what.in_step && what.steps == steps && steps > 0 {
                let sums = behind.entry(what.row).or_default();
                *sums = (sums.0.saturating_add(time), sums.1.saturating_add(own.max(0)));
            }
        });
        if into.idle.total_ps() > 0 {
            let [start, end] = [start, end].map(|at| into.idle.before(at));
            self.in_idle.push(start, end, what.row, |row, time, own| into.count_idle(row, time, own));
        }
        if starts_step {
            self.start_step(start, end, into);
        }
    }

    fn start_step(&mut self, start: i64, end: i64, into: &mut Collector) {
        if let Some(last_end) = self.step_end {
            into.steps_with_next += 1;
            into.between_steps_ps =
                into.between_steps_ps.saturating_add(start.saturating_sub(last_end).max(0));
        }
        for (row, (time, own)) in self.behind.drain() {
            let row = &mut into.rows[row as usize];
            row.between_steps_time_ps = row.between_steps_time_ps.saturating_add(time);
            row.between_steps_self_time_ps = row.between_steps_self_time_ps.saturating_add(own);
        }
        self.steps += 1;
        self.step_end = Some(end);
        into.steps += 1;
        into.steps_time_ps = into.steps_time_ps.saturating_add(end.saturating_sub(start));
    }
}

impl Collector {
    #[inline]
    fn count(&mut self, what: Placed, time_ps: i64, self_time_ps: i64) {
        let row = &mut self.rows[what.row as usize];
        // Children that overlap each other can be longer than what they lie in.
        let self_time_ps = self_time_ps.max(0);
        row.occurrences += 1;
        row.time_ps = row.time_ps.saturating_add(time_ps);
        row.self_time_ps = row.self_time_ps.saturating_add(self_time_ps);
        if what.in_step {
            row.in_steps_time_ps = row.in_steps_time_ps.saturating_add(time_ps);
            row.in_steps_self_time_ps = row.in_steps_self_time_ps.saturating_add(self_time_ps);
        }
    }

    #[inline]
    fn count_idle(&mut self, row: u32, time_ps: i64, self_time_ps: i64) {
        let row = &mut self.rows[row as usize];
        row.device_idle_time_ps = row.device_idle_time_ps.saturating_add(time_ps);
        row.device_idle_self_time_ps = row.device_idle_self_time_ps.saturating_add(self_time_ps.max(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_what_lies_in_their_marker_on_its_thread() {
        let mut all = Collector::default();
        let [train, load, copy] = [b"train".as_slice(), b"load", b"copy"].map(|name| all.row(name).unwrap());
        assert_eq!(all.row(b"load"), Some(load));
        assert_eq!((all.row(b"$train.py:3 step"), all.row(b"end: add.1")), (None, None));
        let mut main = Thread::new(false);
        let mut push = |start, end, row, marker| main.push(start, end, Annotated { row, marker }, &mut all);
        // Recorded at their ends, as annotations are.
        push(12, 15, copy, false);
        push(10, 20, load, false);
        push(10, 23, train, true);
        push(30, 40, load, false);
        main.finish(&mut all);
        let mut other = Thread::new(true);
        other.push(10, 20, Annotated { row: copy, marker: false }, &mut all);
        other.finish(&mut all);
        let mut found = all.finish();
        assert_eq!((found.steps, found.steps_time_ps), (1, 13));
        let figures: Vec<_> = found
            .rows
            .iter()
            .map(|row| {
                let steps = (row.in_steps_time_ps, row.in_steps_self_time_ps);
                (row.name.as_str(), row.step_marker, row.occurrences, row.time_ps, row.self_time_ps, steps)
            })
            .collect();
        assert_eq!(
            figures,
            [
                ("load", false, 2, 20, 17, (10, 7)),
                ("copy", false, 2, 13, 13, (3, 3)),
                ("train", true, 1, 13, 3, (13, 3)),
            ]
        );
        found.cut(1);
        assert_eq!((found.rows.len(), found.names_left_out, found.self_time_left_out_ps), (1, 2, 16));
    }

    #[test]
    fn what_lies_between_steps_counts_for_their_period() {
        let mut all = Collector::default();
        let [train, load, decode, epoch] =
            [b"train".as_slice(), b"load", b"decode", b"epoch"].map(|name| all.row(name).unwrap());
        let mut main = Thread::new(false);
        let mut push = |start, end, row| {
            main.push(start, end, Annotated { row, marker: row == train }, &mut all);
        };
        // What lies before the first step and behind the last one is between none.
        for (start, marker) in [(0, 10), (20, 30), (40, 50)] {
            push(start, marker, load);
            push(start + 1, start + 3, decode);
            push(marker, marker + 4, train);
        }
        push(60, 90, load);
        // It holds steps.
        push(15, 99, epoch);
        main.finish(&mut all);
        let found = all.finish();
        assert_eq!((found.steps, found.steps_with_next, found.between_steps_ps), (3, 2, 32));
        assert_eq!(found.period_ps(), 20);
        let row = |name| found.rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(found.in_period_ps(row("load")), (10, 8));
        assert_eq!(found.in_period_ps(row("decode")), (2, 2));
        assert_eq!(found.in_period_ps(row("train")), (4, 4));
        assert_eq!(found.in_period_ps(row("epoch")), (0, 0));
        assert_eq!(found.rows[0].name, "load");
    }

    #[test]
    fn what_runs_while_the_device_has_no_program_is_told_on_any_thread() {
        let at = |start, end| super::super::device_events::Interval { start, end };
        let mut all = Collector::new(DeviceIdle::between([at(0, 10), at(40, 50), at(80, 90)].into_iter()));
        let [enqueue, load, decode] =
            [b"enqueue".as_slice(), b"load", b"decode"].map(|name| all.row(name).unwrap());
        let mut thread = Thread::new(true);
        for (start, end, row) in [(0, 38, enqueue), (42, 78, load), (60, 70, decode)] {
            thread.push(start, end, Annotated { row, marker: false }, &mut all);
        }
        thread.finish(&mut all);
        let found = all.finish();
        assert_eq!((found.device_span_ps, found.device_idle_ps), (90, 60));
        let figures: Vec<_> = found
            .rows
            .iter()
            .map(|row| (row.name.as_str(), row.device_idle_time_ps, row.device_idle_self_time_ps))
            .collect();
        assert_eq!(figures, [("enqueue", 28, 28), ("load", 28, 18), ("decode", 10, 10)]);
    }

    #[test]
    fn the_most_self_time_comes_first_wherever_it_lies() {
        let mut all = Collector::default();
        let [train, load, wait] = [b"train".as_slice(), b"load", b"wait"].map(|name| all.row(name).unwrap());
        let mut main = Thread::new(true);
        main.push(0, 100, Annotated { row: train, marker: true }, &mut all);
        main.push(10, 90, Annotated { row: load, marker: false }, &mut all);
        main.finish(&mut all);
        let mut other = Thread::new(true);
        other.push(0, 1000, Annotated { row: wait, marker: false }, &mut all);
        other.finish(&mut all);
        let found = all.finish();
        let names: Vec<_> = found.rows.iter().map(|row| (row.name.as_str(), row.self_time_ps)).collect();
        assert_eq!(names, [("wait", 1000), ("load", 80), ("train", 20)]);
    }

    #[test]
    fn names_are_bounded() {
        let mut all = Collector::default();
        let rows: std::collections::BTreeSet<_> =
            (0..3 * MOST_NAMES).filter_map(|at| all.row(format!("request {at}").as_bytes())).collect();
        assert_eq!(rows.len(), MOST_NAMES + 1);
        assert_eq!(all.rows.last().unwrap().name, OTHERS);
    }
}
