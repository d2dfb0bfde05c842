//! How long programs ran by the device's clock, where only their operations carry it: from the start of the first
//! operation to the end of the last one.

use super::device_events::{DeviceEvent, Interval};

/// How many operations that start where one program ends and the next one starts are held.
const MAX_TIED: usize = 256;

/// The extents of the executions on one core, while its operations come in the order of the line.
#[derive(Debug)]
pub(super) struct ModuleExtents<'a> {
    modules: &'a [DeviceEvent],
    found: Vec<Option<Interval>>,
    cursor: usize,
    /// Operations that may belong to the execution at `cursor` or to the one before it.
    tied: Vec<Interval>,
}

impl<'a> ModuleExtents<'a> {
    /// For `modules`, which are sorted by start.
    pub(super) fn of(modules: &'a [DeviceEvent]) -> Self {
        Self { modules, found: vec![None; modules.len()], cursor: 0, tied: Vec::new() }
    }

    /// Takes an operation by both clocks.
    pub(super) fn push(&mut self, line: Interval, device: Interval) {
        let starts = |at: usize| self.modules.get(at).is_some_and(|module| module.at.start <= line.start);
        let at = if starts(self.cursor) && !starts(self.cursor + 1) {
            self.cursor
        } else {
            let after = self.modules.partition_point(|module| module.at.start <= line.start);
            let Some(at) = after.checked_sub(1) else { return };
            at
        };
        if at != self.cursor {
            self.untie(None);
            self.cursor = at;
        }
        let module = self.modules[at].at;
        if line.start > module.end {
            return;
        }
        let before = at.checked_sub(1).map(|before| self.modules[before].at.end);
        if line.start == module.start && before.is_some_and(|end| end >= module.start) {
            // The line's clock stood still here: what ran before and what ran after look the same on it.
            if self.tied.len() < MAX_TIED {
                self.tied.push(device);
            }
            return;
        }
        self.untie(Some(device.start));
        self.add(at, device);
    }

    /// Per execution its extent; none without operations.
    pub(super) fn finish(mut self) -> Vec<Option<Interval>> {
        self.untie(None);
        self.found
    }

    fn add(&mut self, at: usize, device: Interval) {
        let found = &mut self.found[at];
        *found = Some(found.map_or(device, |known| known.hull(device)));
    }

    /// Divides the tied operations at the longest pause. `next` is when the operation after them starts.
    fn untie(&mut self, next: Option<i64>) {
        if self.tied.is_empty() {
            return;
        }
        let mut tied = std::mem::take(&mut self.tied);
        tied.sort_unstable();
        let before = self.cursor.checked_sub(1).and_then(|before| self.found[before]);
        let mut end = before.map(|before| before.end);
        let (mut split, mut longest) = (0, i64::MIN);
        for (at, start) in tied.iter().map(|op| op.start).chain(next).enumerate() {
            let pause = end.map_or(i64::MAX, |end| start.saturating_sub(end));
            if pause > longest {
                (split, longest) = (at, pause);
            }
            end = tied.get(at).map(|op| end.map_or(op.end, |end| end.max(op.end)));
        }
        for (at, op) in tied.into_iter().enumerate() {
            let module = if at < split { self.cursor.saturating_sub(1) } else { self.cursor };
            self.add(module, op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(start: i64, end: i64) -> DeviceEvent {
        DeviceEvent { at: Interval { start, end }, ..DeviceEvent::default() }
    }

    fn interval(start: i64, end: i64) -> Interval {
        Interval { start, end }
    }

    #[test]
    fn operations_count_to_the_execution_that_they_start_in() {
        let modules = [module(0, 100), module(200, 300), module(400, 400)];
        let mut extents = ModuleExtents::of(&modules);
        extents.push(interval(10, 20), interval(1010, 1025));
        extents.push(interval(20, 100), interval(1025, 1099));
        extents.push(interval(150, 160), interval(1150, 1160));
        extents.push(interval(210, 290), interval(1215, 1290));
        assert_eq!(extents.finish(), [Some(interval(1010, 1099)), Some(interval(1215, 1290)), None]);
    }

    #[test]
    fn where_the_line_stands_still_the_longest_pause_divides() {
        let modules = [module(0, 100), module(100, 200)];
        let mut extents = ModuleExtents::of(&modules);
        extents.push(interval(0, 100), interval(0, 50));
        // The last operation of the first run, and the first of the second; longer ones come first on a line.
        extents.push(interval(100, 150), interval(230, 280));
        extents.push(interval(100, 100), interval(50, 180));
        extents.push(interval(150, 200), interval(280, 330));
        assert_eq!(extents.finish(), [Some(interval(0, 180)), Some(interval(230, 330))]);
    }
}
