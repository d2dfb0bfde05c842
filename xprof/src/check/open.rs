//! What is known of the messages that are open while a trace passes by.

use super::PlaneSummary;
use crate::{
    loss::{DROP_EVENT, LAUNCH_EVENT, MODULES_LINE, OPS_LINE},
    versions,
};

/// A line's `timestamp_ns` above this is absolute, not relative to the session's start.
const ABSOLUTE_NS: i64 = 9_200_000_000_000_000;

/// What is known of the line that is open.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OpenLine {
    pub(super) timestamp_ns: i64,
    pub(super) extent: Option<Extent>,
    pub(super) longest_pause_ps: i64,
    pub(super) events: u64,
    pub(super) kind: LineKind,
}

/// From the first start to the last end, in picoseconds of the line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) first: i64,
    pub(super) last: i64,
}

impl OpenLine {
    #[inline]
    pub(super) fn count(&mut self, start: i64, duration: i64) {
        let end = start.saturating_add(duration);
        self.events += 1;
        self.extent = Some(match self.extent {
            None => Extent { first: start, last: end },
            Some(Extent { first, last }) => {
                self.longest_pause_ps = self.longest_pause_ps.max(start.saturating_sub(last));
                Extent { first: first.min(start), last: last.max(end) }
            }
        });
    }
}

/// The lines by which cores are compared, and all others.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineKind {
    #[default]
    Other,
    Modules,
    Ops,
}

/// The first start or the last end of the lines with absolute and with relative time, in picoseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Ends {
    pub(super) absolute: Option<i128>,
    pub(super) relative: Option<i128>,
}

impl Ends {
    pub(super) fn add(&mut self, timestamp_ns: i64, ps: i64, better: impl Fn(i128, i128) -> i128) {
        let at = i128::from(timestamp_ns) * 1000 + i128::from(ps);
        let known = if timestamp_ns > ABSOLUTE_NS { &mut self.absolute } else { &mut self.relative };
        *known = Some(known.map_or(at, |known| better(known, at)));
    }

    pub(super) fn add_end(&mut self, line: OpenLine) {
        if let Some(extent) = line.extent {
            self.add(line.timestamp_ns, extent.last, i128::max);
        }
    }

    pub(super) fn add_start(&mut self, line: OpenLine) {
        if let Some(extent) = line.extent {
            self.add(line.timestamp_ns, extent.first, i128::min);
        }
    }

    /// That since a session's start; of both kinds the later.
    pub(super) fn since(self, start_ps: Option<i128>) -> Option<i128> {
        self.relative.max(self.absolute.zip(start_ps).map(|(end, start)| end - start))
    }
}

/// What is known of the plane that is open.
#[derive(Debug, Default)]
pub(super) struct OpenPlane {
    pub(super) plane: PlaneSummary,
    pub(super) stats: Vec<(u64, u64)>,
    /// The text stats, by the id of their name, and the ids of the names that are of versions.
    pub(super) texts: Vec<(u64, String)>,
    pub(super) version_names: Vec<(u64, String)>,
    pub(super) start_id: Option<u64>,
    pub(super) stop_id: Option<u64>,
    pub(super) dropped_id: Option<u64>,
    pub(super) line: OpenLine,
    pub(super) ends: Ends,
    /// Of the programs and operations alone.
    pub(super) core_ends: Ends,
    /// The first starts of the programs.
    pub(super) starts: Ends,
    /// Of the open event, stat, or metadata entry.
    pub(super) offset_ps: i64,
    pub(super) duration_ps: i64,
    pub(super) stat: (u64, u64),
    pub(super) stat_text: String,
    pub(super) key: u64,
    pub(super) version_name: Option<String>,
}

impl OpenPlane {
    /// The versions of the process's libraries, if this is the plane that has them.
    pub(super) fn versions(&self) -> impl Iterator<Item = (String, String)> {
        let named = self.version_names.iter().filter(|_| self.plane.name == versions::PLANE);
        named.filter_map(|(id, library)| {
            let (_, text) = self.texts.iter().find(|(known, _)| known == id)?;
            Some((library.clone(), versions::version(text)?))
        })
    }

    pub(super) fn take_event_name(&mut self, name: &[u8]) {
        self.plane.drop_event |= name == DROP_EVENT.as_bytes();
        self.plane.launches |= name == LAUNCH_EVENT.as_bytes();
    }

    pub(super) fn close_line(&mut self) {
        let (line, plane) = (self.line, &mut self.plane);
        plane.lines += 1;
        plane.events += line.events;
        self.ends.add_end(line);
        match line.kind {
            LineKind::Other => return,
            LineKind::Modules => {
                plane.modules += line.events;
                plane.longest_pause_ps = plane.longest_pause_ps.max(i128::from(line.longest_pause_ps));
                self.starts.add_start(line);
            }
            LineKind::Ops => plane.ops += line.events,
        }
        self.core_ends.add_end(line);
    }
}

pub(super) fn line_kind(name: &[u8]) -> LineKind {
    match name {
        name if name == MODULES_LINE.as_bytes() => LineKind::Modules,
        name if name == OPS_LINE.as_bytes() => LineKind::Ops,
        _ => LineKind::Other,
    }
}
