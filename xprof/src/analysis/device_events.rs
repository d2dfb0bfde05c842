//! The events of a core's short lines, `Steps` and `XLA Modules`: few, so they are held.

use std::{
    io::{Read, Seek},
    ops::ControlFlow,
};

use crate::{
    reader::{LineIndex, PlaneIndex, Reader, SessionTimes, StatNames, StatValue, TraceEvent},
    wire::Error,
};

/// How many events of one line are held.
const MOST: usize = 1 << 17;

/// An interval in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Interval {
    pub(super) start: i64,
    pub(super) end: i64,
}

impl Interval {
    /// An interval that never ends before it starts.
    pub(super) fn new(start: i64, duration: i64) -> Self {
        Self { start, end: start.saturating_add(duration.max(0)) }
    }

    pub(super) fn len(self) -> i64 {
        self.end.saturating_sub(self.start)
    }

    pub(super) fn hull(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// One event of a short line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceEvent {
    pub(super) metadata_id: i64,
    /// By the line's clock, on the session's time line, until the core's clock is known.
    pub(super) at: Interval,
    /// By the device's own clock, where the event has it.
    pub(super) device: Option<Interval>,
    pub(super) run_id: Option<u64>,
    pub(super) queue_id: Option<u64>,
    pub(super) core_type: u64,
    pub(super) group_id: Option<i64>,
}

/// The ids of the stats that are looked for on device events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceStats {
    device_offset: Option<i64>,
    device_duration: Option<i64>,
    run_id: Option<i64>,
    queue_id: Option<i64>,
    core_type: Option<i64>,
    group_id: Option<i64>,
    unique_id: Option<i64>,
}

impl DeviceStats {
    pub(super) fn of(names: &StatNames) -> Self {
        Self {
            device_offset: names.id("device_offset_ps"),
            device_duration: names.id("device_duration_ps"),
            run_id: names.id("run_id"),
            queue_id: names.id("queue_id"),
            core_type: names.id("core_type"),
            group_id: names.id("group_id"),
            unique_id: names.id("all_reduce_unique_id"),
        }
    }

    /// Whether events can have a clock of their own.
    pub(super) fn has_device_clock(&self) -> bool {
        self.device_offset.is_some() && self.device_duration.is_some()
    }

    /// An op's device interval and the id of the collective that it takes part in.
    pub(super) fn of_op(&self, event: &TraceEvent<'_>) -> Result<(Option<Interval>, Option<u64>), Error> {
        let (mut offset, mut duration, mut unique) = (None, None, None);
        let mut stats = event.stats();
        while let Some(stat) = stats.next_stat()? {
            let id = Some(stat.metadata_id);
            if id == self.device_offset {
                offset = stat.value.int();
            } else if id == self.device_duration {
                duration = stat.value.int();
            } else if id == self.unique_id {
                unique = stat.value.uint();
            }
        }
        Ok((device_interval(offset, duration), unique))
    }

    fn of_event(&self, event: &TraceEvent<'_>, line: Interval) -> Result<DeviceEvent, Error> {
        let mut read = DeviceEvent { metadata_id: event.metadata_id, at: line, ..DeviceEvent::default() };
        let (mut offset, mut duration) = (None, None);
        let mut stats = event.stats();
        while let Some(stat) = stats.next_stat()? {
            let (id, value): (_, StatValue<'_>) = (Some(stat.metadata_id), stat.value);
            if id == self.device_offset {
                offset = value.int();
            } else if id == self.device_duration {
                duration = value.int();
            } else if id == self.run_id {
                read.run_id = value.uint();
            } else if id == self.queue_id {
                read.queue_id = value.uint();
            } else if id == self.core_type {
                read.core_type = value.uint().unwrap_or(0);
            } else if id == self.group_id {
                read.group_id = value.int();
            }
        }
        read.device = device_interval(offset, duration);
        Ok(read)
    }
}

/// The device's clock counts up from 0.
fn device_interval(offset: Option<i64>, duration: Option<i64>) -> Option<Interval> {
    let (start, duration) = offset.zip(duration)?;
    (start >= 0 && duration >= 0).then(|| Interval::new(start, duration))
}

/// Where an event of `line` lies on the session's time line.
#[inline]
pub(super) fn interval(start_of_line: i64, event: &TraceEvent<'_>) -> Interval {
    Interval::new(start_of_line.saturating_add(event.offset_ps), event.duration_ps)
}

/// The lines of a plane with that name, and where their events count from.
pub(super) fn lines<'a>(
    plane: &'a PlaneIndex,
    session: &SessionTimes,
    name: &str,
) -> Vec<(&'a LineIndex, i64)> {
    let named = plane.lines.iter().filter(|line| line.name == name && line.events > 0);
    named.map(|line| (line, session.line_start_ps(line))).collect()
}

/// The events of all lines of that name, by start; and whether some were over the limit.
pub(super) fn read<R: Read + Seek>(
    reader: &mut Reader<R>,
    plane: &PlaneIndex,
    session: &SessionTimes,
    stats: &DeviceStats,
    name: &str,
) -> Result<(Vec<DeviceEvent>, bool), Error> {
    let mut events = Vec::new();
    let mut over = false;
    for (line, start) in lines(plane, session, name) {
        reader.events(line.span, |event| {
            if events.len() == MOST {
                over = true;
                return Ok(ControlFlow::Break(()));
            }
            events.push(stats.of_event(event, interval(start, event))?);
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
    }
    sort(&mut events);
    Ok((events, over))
}

/// Sorts events by start, enclosing ones first.
pub(super) fn sort(events: &mut [DeviceEvent]) {
    events.sort_by_key(|event| (event.at.start, std::cmp::Reverse(event.at.end)));
}
