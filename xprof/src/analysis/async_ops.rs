//! Where asynchronous operations lie on a core whose line's clock jumped, for exports.
//!
//! Their events have no device time. But each starts with the operation of its own name and ends with the one that its
//! stat `hlo_op` names, and those have. Must never hold operations other than these.

use std::{
    collections::HashMap,
    io::{Read, Seek},
    ops::ControlFlow,
};

use super::{
    clock::CoreClock,
    device_events::{self, DeviceStats, Interval},
};
use crate::{
    reader::{ById, EventMetadata, PlaneIndex, Reader, SessionTimes, TraceEvent},
    wire::Error,
};

/// The line of asynchronous operations.
pub(super) const ASYNC_LINE: &str = "Async XLA Ops";
/// How many asynchronous operations are held; those beyond are moved as the line's clock was off at the time.
const MOST: usize = 1 << 18;

/// An operation by its number, and when it starts or ends by the line's clock.
type Instant = (u32, i64);

/// The starts and ends of a core's asynchronous operations by the core's clock, once they are found.
#[derive(Debug, Default)]
pub(super) struct AsyncOps {
    hlo_op: Option<i64>,
    /// The operations by the metadata ids of events, and by name.
    by_id: ById<u32>,
    by_name: HashMap<String, u32>,
    starts: HashMap<Instant, Option<i64>>,
    ends: HashMap<Instant, Option<i64>>,
}

impl AsyncOps {
    /// Those of `plane`, whose operations are on the lines called `ops`.
    pub(super) fn of<R: Read + Seek>(
        reader: &mut Reader<R>,
        plane: &PlaneIndex,
        session: &SessionTimes,
        ops: &str,
        clock: &CoreClock,
    ) -> Result<Self, Error> {
        let mut found = Self { hlo_op: plane.stat_names.id("hlo_op"), ..Self::default() };
        let lines = device_events::lines(plane, session, ASYNC_LINE);
        if found.hlo_op.is_none() || lines.is_empty() {
            return Ok(found);
        }
        reader.event_metadata(plane, |entry| {
            let next = found.by_name.len() as u32;
            let number = *found.by_name.entry(op_name(entry)).or_insert(next);
            found.by_id.set(entry.id, number);
            Ok::<_, Error>(())
        })?;
        for (line, start) in lines {
            reader.events(line.span, |event| {
                let (from, to) = found.instants(event, device_events::interval(start, event), plane)?;
                found.starts.extend(from.map(|from| (from, None)));
                found.ends.extend(to.map(|to| (to, None)));
                let is_full = found.ends.len() >= MOST;
                Ok::<_, Error>(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        found.look_up(reader, plane, session, ops, clock)?;
        Ok(found)
    }

    fn look_up<R: Read + Seek>(
        &mut self,
        reader: &mut Reader<R>,
        plane: &PlaneIndex,
        session: &SessionTimes,
        ops: &str,
        clock: &CoreClock,
    ) -> Result<(), Error> {
        let stats = DeviceStats::of(&plane.stat_names);
        for (line, start) in device_events::lines(plane, session, ops) {
            reader.events(line.span, |event| {
                let Some(&op) = self.by_id.get(event.metadata_id) else {
                    return Ok(ControlFlow::Continue(()));
                };
                let at = device_events::interval(start, event);
                let (from, to) = (self.starts.get_mut(&(op, at.start)), self.ends.get_mut(&(op, at.end)));
                if from.is_some() || to.is_some() {
                    let placed = clock.time(at, stats.of_op(event)?.0);
                    from.into_iter().for_each(|from| *from = Some(placed.start));
                    to.into_iter().for_each(|to| *to = Some(placed.end));
                }
                Ok::<_, Error>(ControlFlow::Continue(()))
            })?;
        }
        Ok(())
    }

    /// The operations that an event starts and ends with, and when.
    fn instants(
        &self,
        event: &TraceEvent<'_>,
        at: Interval,
        plane: &PlaneIndex,
    ) -> Result<(Option<Instant>, Option<Instant>), Error> {
        let from = self.by_id.get(event.metadata_id).map(|&op| (op, at.start));
        let mut stats = event.stats();
        while let Some(stat) = stats.next_stat()? {
            if Some(stat.metadata_id) == self.hlo_op {
                let name = stat.value.text(&plane.stat_names);
                let op = name.and_then(|name| self.by_name.get(&*name));
                return Ok((from, op.map(|&op| (op, at.end))));
            }
        }
        Ok((from, None))
    }

    /// Where an event of [`ASYNC_LINE`] lies by the core's clock; `moved` is where the line's clock has it.
    pub(super) fn time(
        &self,
        event: &TraceEvent<'_>,
        line: Interval,
        moved: Interval,
        plane: &PlaneIndex,
    ) -> Result<Interval, Error> {
        let (from, to) = self.instants(event, line, plane)?;
        let start = from.and_then(|from| *self.starts.get(&from)?).unwrap_or(moved.start);
        let end = to.and_then(|to| *self.ends.get(&to)?).unwrap_or(moved.end);
        Ok(Interval { start, end: end.max(start) })
    }
}

/// The operation of `%copy-start.4 = …`, whatever name is shown for it.
fn op_name(entry: &EventMetadata<'_>) -> String {
    let name = String::from_utf8_lossy(entry.name);
    let short = name.strip_prefix('%').unwrap_or(&name);
    short.split_once(" = ").map_or(short, |(op, _)| op).to_owned()
}
