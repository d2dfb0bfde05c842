//! The host's own annotations (TraceMe, TraceAnnotation, step markers): how long each took, by name, in all and
//! within the steps.
//!
//! Python frames and the operations that a host runs are no annotations. A step's part is what lies within its
//! marker on the marker's own thread: what other threads do meanwhile need not hold the step up.
//! Must never hold more than [`MOST_NAMES`] names, whatever the trace has.

use std::collections::HashMap;

use serde::Serialize;

use super::{in_order::InOrder, nesting::Nesting, ops::shorten};

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
}

/// All annotations of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HostAnnotations {
    /// How many steps have markers; a marker inside another one's step is none.
    pub steps: u64,
    /// The time of those steps.
    pub steps_time_ps: i64,
    /// By name: first what took most self time in steps, then most self time.
    pub rows: Vec<Annotation>,
    /// How many names are left out of the rows.
    pub names_left_out: u64,
    /// The self time of those.
    pub self_time_left_out_ps: i64,
}

impl HostAnnotations {
    /// Keeps the first `top` rows.
    pub(super) fn cut(&mut self, top: usize) {
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
}

impl Collector {
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

    /// What was collected.
    pub(super) fn finish(mut self) -> HostAnnotations {
        self.rows.retain(|row| row.occurrences > 0);
        self.rows.sort_by(|a, b| {
            let rank = |row: &Annotation| (row.in_steps_self_time_ps, row.self_time_ps, row.time_ps);
            rank(b).cmp(&rank(a)).then_with(|| a.name.cmp(&b.name))
        });
        HostAnnotations {
            steps: self.steps,
            steps_time_ps: self.steps_time_ps,
            rows: self.rows,
            ..HostAnnotations::default()
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
    nesting: Nesting<(u32, bool)>,
    /// The end of the step that started last.
    step_end: Option<i64>,
}

impl Thread {
    pub(super) fn new(sorted: bool) -> Self {
        let nested = NestedThread { nesting: Nesting::new(), step_end: None };
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
        self.nested.nesting.finish(|(row, in_step), time, own| into.count(row, in_step, time, own));
    }
}

impl NestedThread {
    #[inline]
    fn push(&mut self, start: i64, end: i64, what: Annotated, into: &mut Collector) {
        let mut in_step = self.step_end.is_some_and(|step_end| end <= step_end);
        if what.marker && !in_step {
            in_step = true;
            self.step_end = Some(end);
            into.steps += 1;
            into.steps_time_ps = into.steps_time_ps.saturating_add(end.saturating_sub(start));
        }
        into.rows[what.row as usize].step_marker |= what.marker;
        self.nesting.push(start, end, (what.row, in_step), |(row, in_step), time, own| {
            into.count(row, in_step, time, own);
        });
    }
}

impl Collector {
    #[inline]
    fn count(&mut self, row: u32, in_step: bool, time_ps: i64, self_time_ps: i64) {
        let row = &mut self.rows[row as usize];
        // Children that overlap each other can be longer than what they lie in.
        let self_time_ps = self_time_ps.max(0);
        row.occurrences += 1;
        row.time_ps = row.time_ps.saturating_add(time_ps);
        row.self_time_ps = row.self_time_ps.saturating_add(self_time_ps);
        if in_step {
            row.in_steps_time_ps = row.in_steps_time_ps.saturating_add(time_ps);
            row.in_steps_self_time_ps = row.in_steps_self_time_ps.saturating_add(self_time_ps);
        }
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
    fn names_are_bounded() {
        let mut all = Collector::default();
        let rows: std::collections::BTreeSet<_> =
            (0..3 * MOST_NAMES).filter_map(|at| all.row(format!("request {at}").as_bytes())).collect();
        assert_eq!(rows.len(), MOST_NAMES + 1);
        assert_eq!(all.rows.last().unwrap().name, OTHERS);
    }
}
