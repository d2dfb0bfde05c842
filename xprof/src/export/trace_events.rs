//! Chrome's trace-event format: a process per plane, a thread per line, a complete event (`X`) per event.
//!
//! Times are whole nanoseconds, rounded down at both ends alike, so that what nests or touches in the trace
//! does so in the viewer, which knows nothing finer.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use super::{
    ExportError, json,
    lanes::{self, LineLanes},
    names::{END, Names},
};
use crate::{
    analysis::Placing,
    input::{Input, ReadSeek},
    reader::{Index, LineIndex, PlaneIndex, Reader, TraceEvent},
    wire,
};

/// Text is handed on in pieces of this size.
const PIECE: usize = 64 << 10;
/// Threads are numbered from here on, apart from processes: a viewer takes equal numbers for a main thread.
const FIRST_THREAD: u64 = 10_000;
/// Sort numbers for the lines of one process leave room for the lanes of each.
const LANES: usize = 64;

/// One host's trace and where it lies on the common time line.
pub struct ExportedHost<'a> {
    /// The host's name.
    pub host: &'a str,
    /// Its trace.
    pub input: &'a dyn Input,
    /// Added to times on the host's own session time line.
    pub offset_ps: i64,
}

/// What was exported.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct TraceEvents {
    /// Planes with events.
    pub processes: u64,
    /// Lines with events, lanes of their own included.
    pub threads: u64,
    /// Events written.
    pub events: u64,
    /// Events without a time (aggregated ones), which have no place on a time line.
    pub timeless: u64,
    /// Events far outside the session, which are left out: their file may be damaged.
    pub far: u64,
    /// Events that a viewer may not show: they overlap too many others, or a line too long to be put in order
    /// has them out of order.
    pub overfull: u64,
}

/// Writes `hosts` as one trace. `progress` receives the bytes read so far and in all.
///
/// # Errors
/// When an input is unreadable or damaged, or when `out` cannot be written.
pub fn trace_events(
    hosts: &[ExportedHost<'_>],
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<TraceEvents, ExportError> {
    let mut indexes = Vec::new();
    let (mut read, mut far) = (0, 0);
    for host in hosts {
        let mut index = index(host)?;
        far += take_far_events(&mut index);
        read += index.len;
        progress(read, 2 * read);
        indexes.push(index);
    }
    let earliest = hosts.iter().map(|host| host.offset_ps).min().unwrap_or(0);
    let mut writer = Writer {
        out,
        text: Vec::with_capacity(2 * PIECE),
        done: TraceEvents { far, ..TraceEvents::default() },
        read,
        all: 2 * read,
        progress,
    };
    writer.text.extend_from_slice(b"{\"displayTimeUnit\":\"ns\",\"otherData\":{\"exporter\":\"tpuscope ");
    writer.text.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
    writer.text.extend_from_slice(b"\"},\"traceEvents\":[\n");
    for (at, (host, index)) in hosts.iter().zip(&indexes).enumerate() {
        let shift_ps = host.offset_ps.saturating_sub(earliest);
        let mut reader = Reader::of_index(open(host)?, index);
        writer.host(at, host.host, shift_ps, &mut reader, index).map_err(|error| match error {
            Pass::Write(error) => ExportError::Write(error),
            Pass::Wire(error) => unread(host, error),
        })?;
        writer.read += index.len;
    }
    Ok(writer.finish()?)
}

/// Adds the arguments and the end of an event that has stats of its own.
fn arguments(
    event: &TraceEvent<'_>,
    constant: &[u8],
    names: &Names,
    plane: &PlaneIndex,
    out: &mut Vec<u8>,
) -> Result<(), wire::Error> {
    out.extend_from_slice(b",\"args\":{");
    let from = out.len();
    names.arguments(event.stats(), &plane.stat_names, from, out)?;
    if out.len() > from && !constant.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(constant);
    out.push(b'}');
    out.extend_from_slice(END);
    Ok(())
}

/// One line, and where its events lie.
struct Times<'a> {
    plane: &'a PlaneIndex,
    line: &'a LineIndex,
    /// Where the line's events count from.
    line_start_ps: i64,
    /// What brings the host's time onto the common time line.
    shift_ps: i64,
    /// For a core whose line's clock jumped.
    placing: Option<&'a Placing>,
}

impl Times<'_> {
    /// An event's start and end in whole nanoseconds; none for one without a time.
    #[inline]
    fn slice(&self, event: &TraceEvent<'_>) -> Result<Option<(u64, u64)>, wire::Error> {
        if event.occurrences.is_some() {
            return Ok(None);
        }
        let (from_ps, to_ps) = match self.placing {
            Some(placing) => placing.place(self.plane, self.line, event, self.line_start_ps)?,
            None => {
                let from_ps = self.line_start_ps.saturating_add(event.offset_ps);
                (from_ps, from_ps.saturating_add(event.duration_ps.max(0)))
            }
        };
        let ns = |ps: i64| (ps.saturating_add(self.shift_ps).max(0) / 1000) as u64;
        Ok(Some((ns(from_ps), ns(to_ps))))
    }
}

/// How the events of a line get their lanes. One that is out of order is read once more for it.
fn line_lanes(reader: &mut Reader<Box<dyn ReadSeek>>, times: &Times<'_>) -> Result<LineLanes, wire::Error> {
    if times.line.sorted && times.placing.is_none() {
        return Ok(LineLanes::sorted());
    }
    if times.line.events > lanes::MOST_UNSORTED {
        return Ok(LineLanes::one());
    }
    let mut slices = Vec::new();
    reader.events(times.line.span, |event| {
        slices.extend(times.slice(event)?);
        Ok::<_, wire::Error>(ControlFlow::Continue(()))
    })?;
    Ok(LineLanes::of(&slices))
}

fn open(host: &ExportedHost<'_>) -> Result<Box<dyn ReadSeek>, ExportError> {
    host.input.open().map_err(|source| ExportError::Read { file: host.input.name(), source })
}

/// A host's index. The file is closed again: there may be more hosts than files can be open.
fn index(host: &ExportedHost<'_>) -> Result<Index, ExportError> {
    let mut reader = Reader::open(open(host)?).map_err(|error| unread(host, error))?;
    let index = reader.take_index();
    match index.no_trace() {
        Some(why) => Err(ExportError::NoTrace { file: host.input.name(), why }),
        None => Ok(index),
    }
}

/// Leaves out the lines that lie far outside the session; the number of their events and of the single ones of other
/// lines, which are not visited.
fn take_far_events(index: &mut Index) -> u64 {
    let lines = index.take_far_lines().iter().map(|far| far.events).sum::<u64>();
    lines + index.planes.iter().flat_map(|plane| &plane.lines).map(|line| line.outside).sum::<u64>()
}

fn unread(host: &ExportedHost<'_>, error: wire::Error) -> ExportError {
    match error {
        wire::Error::Io { source, .. } => ExportError::Read { file: host.input.name(), source },
        source => ExportError::Input { file: host.input.name(), source },
    }
}

/// Errors on the way, before the file is known.
#[derive(Debug, thiserror::Error)]
enum Pass {
    #[error(transparent)]
    Wire(#[from] wire::Error),
    #[error(transparent)]
    Write(#[from] io::Error),
}

struct Writer<'p> {
    out: &'p mut dyn Write,
    text: Vec<u8>,
    done: TraceEvents,
    read: u64,
    all: u64,
    progress: &'p mut dyn FnMut(u64, u64),
}

impl Writer<'_> {
    fn host(
        &mut self,
        host_at: usize,
        host: &str,
        shift_ps: i64,
        reader: &mut Reader<Box<dyn ReadSeek>>,
        index: &Index,
    ) -> Result<(), Pass> {
        let mut planes: Vec<_> = index.planes.iter().collect();
        // Devices on top, as XProf has it.
        planes.sort_by_key(|plane| !plane.name.starts_with("/device:"));
        for (at, plane) in planes.into_iter().enumerate() {
            if plane.lines.iter().all(|line| line.events == 0) {
                continue;
            }
            self.done.processes += 1;
            let name = format!("{host} {}", plane.name);
            let pid = self.done.processes;
            self.meta("process_name", pid, None, |out| {
                out.extend_from_slice(b"\"name\":");
                json::string(name.as_bytes(), 512, out);
            });
            self.sort_index("process_sort_index", pid, None, host_at * 8192 + at);
            let names = Names::of(reader, plane)?;
            let placing = Placing::of(reader, plane, &index.session)?;
            for (order, line) in plane.lines.iter().enumerate() {
                if line.events > 0 {
                    let line_start_ps = index.session.line_start_ps(line);
                    let times = Times { plane, line, line_start_ps, shift_ps, placing: placing.as_ref() };
                    self.line(reader, plane, &names, order, &times)?;
                }
            }
        }
        Ok(())
    }

    fn meta(&mut self, name: &str, pid: u64, tid: Option<u64>, args: impl FnOnce(&mut Vec<u8>)) {
        let out = &mut self.text;
        out.extend_from_slice(b"{\"ph\":\"M\",\"pid\":");
        json::unsigned(pid, out);
        if let Some(tid) = tid {
            out.extend_from_slice(b",\"tid\":");
            json::unsigned(tid, out);
        }
        out.extend_from_slice(b",\"name\":\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\",\"args\":{");
        args(out);
        out.extend_from_slice(b"}},\n");
    }

    fn sort_index(&mut self, name: &str, pid: u64, tid: Option<u64>, at: usize) {
        self.meta(name, pid, tid, |out| {
            out.extend_from_slice(b"\"sort_index\":");
            json::unsigned(at as u64, out);
        });
    }

    /// A new thread for `line`; the text that each of its events begins with.
    fn thread(&mut self, line: &LineIndex, order: usize, lane: usize) -> Vec<u8> {
        let pid = self.done.processes;
        let tid = FIRST_THREAD + self.done.threads;
        self.done.threads += 1;
        let name = match (line.display_name.as_str(), line.name.as_str()) {
            ("", "") => format!("line {}", line.id),
            ("", name) | (name, _) => name.to_owned(),
        };
        let name = if lane == 0 { name } else { format!("{name} ({})", lane + 1) };
        self.meta("thread_name", pid, Some(tid), |out| {
            out.extend_from_slice(b"\"name\":");
            json::string(name.as_bytes(), 512, out);
        });
        self.sort_index("thread_sort_index", pid, Some(tid), order * LANES + lane);
        format!("{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":").into_bytes()
    }

    fn line(
        &mut self,
        reader: &mut Reader<Box<dyn ReadSeek>>,
        plane: &PlaneIndex,
        names: &Names,
        order: usize,
        times: &Times<'_>,
    ) -> Result<(), Pass> {
        let line = times.line;
        let mut lanes = line_lanes(reader, times)?;
        let mut heads = vec![self.thread(line, order, 0)];
        reader.events(line.span, |event| {
            let Some((from, to)) = times.slice(event)? else {
                self.done.timeless += 1;
                return Ok(ControlFlow::Continue(()));
            };
            let lane = lanes.next(from, to);
            while lane >= heads.len() {
                let head = self.thread(line, order, heads.len());
                heads.push(head);
            }
            self.event(&heads[lane], from, to, event, names, plane)?;
            Ok::<_, Pass>(ControlFlow::Continue(()))
        })?;
        self.done.overfull += lanes.overfull();
        self.pass_on()?;
        Ok(())
    }

    #[inline]
    fn event(
        &mut self,
        head: &[u8],
        from: u64,
        to: u64,
        event: &TraceEvent<'_>,
        names: &Names,
        plane: &PlaneIndex,
    ) -> Result<(), Pass> {
        self.done.events += 1;
        let out = &mut self.text;
        out.extend_from_slice(head);
        json::micros(from, out);
        out.extend_from_slice(b",\"dur\":");
        json::micros(to - from, out);
        match names.get(event.metadata_id) {
            Some(constant) if !event.has_stats() => out.extend_from_slice(constant.whole),
            Some(constant) => {
                out.extend_from_slice(constant.name);
                arguments(event, constant.args, names, plane, out)?;
            }
            None => {
                out.extend_from_slice(format!(",\"name\":\"event {}\"", event.metadata_id).as_bytes());
                arguments(event, &[], names, plane, out)?;
            }
        }
        if self.text.len() >= PIECE {
            self.pass_on()?;
            (self.progress)((self.read + event.at).min(self.all), self.all);
        }
        Ok(())
    }

    fn pass_on(&mut self) -> io::Result<()> {
        self.out.write_all(&self.text)?;
        self.text.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<TraceEvents> {
        // One more event without meaning, so that every other one may end with a comma.
        self.text.extend_from_slice(b"{\"ph\":\"M\",\"name\":\"end\",\"pid\":0,\"args\":{}}\n]}\n");
        self.pass_on()?;
        self.out.flush()?;
        Ok(self.done)
    }
}
