//! Where the events of a core's plane lie on the session's time line if its line's clock jumped, for exports.

use std::{
    collections::HashMap,
    io::{Read, Seek},
};

use super::{
    async_ops::{ASYNC_LINE, AsyncOps},
    clock::{self, Surveyed},
    core::{self, SPARSE_CORE, TENSOR_CORE},
    device_events::{self, DeviceStats, Interval},
    planes::{self, PlaneKind},
};
use crate::{
    reader::{LineIndex, PlaneIndex, Reader, SessionTimes, TraceEvent},
    wire::Error,
};

/// The times of one plane's events.
#[derive(Debug)]
pub(crate) struct Placing {
    stats: DeviceStats,
    surveyed: Surveyed,
    /// By the name of a line: its events that have no device time of their own, by their line's time.
    moved: [(&'static str, HashMap<Interval, Interval>); 2],
    async_ops: AsyncOps,
}

impl Placing {
    /// Of a core whose line's clock jumped; none for other planes, whose lines are right.
    pub(crate) fn of<R: Read + Seek>(
        reader: &mut Reader<R>,
        plane: &PlaneIndex,
        session: &SessionTimes,
    ) -> Result<Option<Self>, Error> {
        let names = match planes::kind(&plane.name, true) {
            PlaneKind::TensorCore { .. } => TENSOR_CORE,
            PlaneKind::SparseCore { .. } => SPARSE_CORE,
            _ => return Ok(None),
        };
        let lines = core::lines(reader, plane, session, names)?;
        let surveyed = clock::survey(reader, plane, session, names.ops, &lines.modules)?;
        if !surveyed.clock.is_device() {
            return Ok(None);
        }
        let (modules, steps) = lines.by_clock(&surveyed);
        let moved = |events: &[device_events::DeviceEvent], times: Vec<Interval>| {
            events.iter().map(|event| event.at).zip(times).collect()
        };
        Ok(Some(Self {
            async_ops: AsyncOps::of(reader, plane, session, names.ops, &surveyed.clock)?,
            stats: DeviceStats::of(&plane.stat_names),
            moved: [
                (names.modules, moved(&lines.modules, modules)),
                (names.steps, moved(&lines.steps, steps)),
            ],
            surveyed,
        }))
    }

    /// Start and end of an event of a line of `plane`.
    pub(crate) fn place(
        &self,
        plane: &PlaneIndex,
        of: &LineIndex,
        event: &TraceEvent<'_>,
        line_start_ps: i64,
    ) -> Result<(i64, i64), Error> {
        let line = device_events::interval(line_start_ps, event);
        let (device, _) = self.stats.of_op(event)?;
        let moved = self.moved.iter().find(|(name, _)| *name == of.name && device.is_none());
        let at = moved.and_then(|(_, moved)| moved.get(&line).copied());
        let mut at = at.unwrap_or_else(|| self.surveyed.clock.time(line, device));
        if of.name == ASYNC_LINE && device.is_none() {
            at = self.async_ops.time(event, line, at, plane)?;
        }
        Ok((self.surveyed.clock.place(at.start), self.surveyed.clock.place(at.end)))
    }
}
