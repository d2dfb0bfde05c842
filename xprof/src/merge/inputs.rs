//! The inputs: indexed one after another, put in order, then read as if they were one long file.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Seek, SeekFrom},
};

use super::{
    MergeError,
    join::{ProcessLabel, Processes},
    report::{Gap, MergeReport, Segment},
};
use crate::{
    input::{Input, ReadSeek},
    reader::{EPOCH_NS, Index, PlaneIndex, Reader},
    wire::{self, Span},
};

/// How many inputs are held open at a time.
const MOST_OPEN: usize = 64;
/// What is read after a jump; each further read in a row may be twice as long.
const FIRST_READ: usize = 16 << 10;

const DAY_NS: f64 = 86_400e9;

/// Where a plane of the output comes from: the input and its plane there.
pub(super) type Member = (usize, usize);

/// All inputs in the order of their sessions. Spans in their indexes count from the first input's first byte.
pub(super) struct Inputs<'a> {
    pub(super) indexes: Vec<Index>,
    names: Vec<String>,
    /// Where each input begins in the whole.
    bases: Vec<u64>,
    pub(super) reader: Reader<Chain<'a>>,
    /// What tells several processes apart; `None` for segments of one.
    pub(super) processes: Option<Processes>,
}

impl<'a> Inputs<'a> {
    /// The segments of one process.
    pub(super) fn of_segments(
        inputs: &[&'a dyn Input],
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Result<Self, MergeError> {
        let mut found = indexed(inputs.iter().map(|&input| (input, ())), progress)?;
        found.sort_by_key(|(_, index, ())| index.session.start_ns);
        let names: Vec<_> = found.iter().map(|(input, ..)| input.name()).collect();
        check_one_process(&names, found.iter().map(|(_, index, ())| index))?;
        Ok(Self::chained(found.into_iter().map(|(input, index, ())| (input, index)).collect(), progress))
    }

    /// The traces of several processes of one host.
    pub(super) fn of_processes(
        processes: &[(&'a dyn Input, ProcessLabel)],
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Result<Self, MergeError> {
        let each = processes.iter().map(|(input, label)| (*input, label.clone()));
        let mut found = indexed(each, progress)?;
        found.sort_by_key(|(_, index, _)| index.session.start_ns);
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        for (input, index, label) in found {
            inputs.push((input, index));
            labels.push(label);
        }
        let mut joined = Self::chained(inputs, progress);
        joined.processes = Some(Processes::new(labels, &joined.indexes));
        Ok(joined)
    }

    /// The inputs, in order, one after another.
    fn chained(mut found: Vec<(&'a dyn Input, Index)>, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        let names = found.iter().map(|(input, _)| input.name()).collect();
        let mut bases = Vec::new();
        let mut base = 0;
        for (_, index) in &mut found {
            bases.push(base);
            move_spans(index, base);
            base += index.len;
        }
        let (inputs, indexes): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let chain = Chain {
            inputs,
            bases: bases.clone(),
            len: base,
            at: 0,
            next_read: FIRST_READ,
            open: VecDeque::new(),
            read: 0,
            progress,
        };
        Self { indexes, names, bases, reader: Reader::unindexed(chain), processes: None }
    }

    /// Whether they are of several processes.
    pub(super) fn are_processes(&self) -> bool {
        self.processes.is_some()
    }

    pub(super) fn plane(&self, member: Member) -> &PlaneIndex {
        &self.indexes[member.0].planes[member.1]
    }

    /// The planes of the output: those of one name are one. Where an input has several of a name, the first
    /// ones belong together, the second ones, and so on.
    pub(super) fn planes(&self) -> Vec<Vec<Member>> {
        let mut place = BTreeMap::new();
        let mut planes: Vec<Vec<Member>> = Vec::new();
        for (input, index) in self.indexes.iter().enumerate() {
            let mut count = BTreeMap::<&str, usize>::new();
            for (at, plane) in index.planes.iter().enumerate() {
                let nth = count.entry(&plane.name).or_default();
                let place = *place.entry((self.plane_name((input, at)), *nth)).or_insert(planes.len());
                *nth += 1;
                if place == planes.len() {
                    planes.push(Vec::new());
                }
                planes[place].push((input, at));
            }
        }
        planes
    }

    /// The name of a plane in the output.
    pub(super) fn plane_name(&self, member: Member) -> Cow<'_, str> {
        let name = &self.plane(member).name;
        match &self.processes {
            Some(processes) => processes.plane_name(member.0, name),
            None => Cow::Borrowed(name),
        }
    }

    /// The id of a plane in the output.
    pub(super) fn plane_id(&self, member: Member) -> i64 {
        let plane = self.plane(member);
        self.processes.as_ref().map_or(plane.id, |processes| processes.plane_id(member, plane))
    }

    /// The fields of the inputs that are no planes.
    pub(super) fn others(&self) -> Vec<Span> {
        self.indexes.iter().flat_map(|index| index.others.iter().copied()).collect()
    }

    /// The bytes at `span`. Only for metadata: they are held in memory.
    pub(super) fn bytes(&mut self, span: Span) -> Result<Vec<u8>, wire::Error> {
        let mut bytes = Vec::new();
        self.reader.copy(span, |piece| {
            bytes.extend_from_slice(piece);
            Ok::<_, wire::Error>(())
        })?;
        Ok(bytes)
    }

    /// How far the session of `input` began after the first one.
    pub(super) fn session_ns(&self, input: usize) -> i64 {
        let start = |input: usize| self.indexes[input].session.start_ns.unwrap_or(0);
        start(input).saturating_sub(start(0))
    }

    /// The report's first part: the segments and the gaps between them.
    pub(super) fn report(&self) -> MergeReport {
        let segments: Vec<_> =
            self.indexes.iter().zip(&self.names).map(|(index, file)| segment(file, index)).collect();
        let mut report = MergeReport::default();
        for (after_segment, pair) in segments.windows(2).enumerate() {
            let (Some(start_ns), Some(next)) = (pair[0].stop_ns, pair[1].start_ns) else { continue };
            if next < start_ns {
                report.warnings.push(format!(
                    "{} begins {} ns before {} ends",
                    pair[1].file,
                    start_ns.abs_diff(next),
                    pair[0].file
                ));
            }
            report.gaps.push(Gap { after_segment, start_ns, stop_ns: next.max(start_ns) });
        }
        report.segments = segments;
        report
    }

    /// The file in which an error of the second pass lies, with the offset there.
    pub(super) fn at_fault(&self, error: wire::Error) -> MergeError {
        let input = self.bases.partition_point(|&base| base <= error.offset()).saturating_sub(1);
        MergeError::Input { file: self.names[input].clone(), source: error.moved_back(self.bases[input]) }
    }
}

/// Each input with its index.
fn indexed<'a, L>(
    inputs: impl Iterator<Item = (&'a dyn Input, L)>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<(&'a dyn Input, Index, L)>, MergeError> {
    let mut found = Vec::new();
    for (input, label) in inputs {
        found.push((input, index(input)?, label));
        // The whole length is not known yet; twice what was seen is what remains at least.
        let read = found.iter().map(|(_, index, _)| index.len).sum();
        progress(read, 2 * read);
    }
    // A single input needs no start: nothing has to be placed beside it.
    let placeless = found.iter().find(|(_, index, _)| index.session.start_ns.is_none());
    match (found.len(), placeless) {
        (0, _) => Err(MergeError::Nothing),
        (2.., Some((input, ..))) => Err(MergeError::NoStart(input.name())),
        _ => Ok(found),
    }
}

fn index(input: &dyn Input) -> Result<Index, MergeError> {
    let read = |source| MergeError::Read { file: input.name(), source };
    let opened = input.open().map_err(read)?;
    let index = match Reader::open(opened) {
        Ok(mut reader) => reader.take_index(),
        Err(wire::Error::Io { source, .. }) => return Err(read(source)),
        Err(source) => return Err(MergeError::Input { file: input.name(), source }),
    };
    match index.no_trace() {
        Some(why) => Err(MergeError::NoTrace { file: input.name(), why }),
        None => Ok(index),
    }
}

fn segment(file: &str, index: &Index) -> Segment {
    let lines = || index.planes.iter().flat_map(|plane| &plane.lines);
    // A file that does not say when it ended ended with its last event.
    let last_event_ns = || {
        let ends = lines().map(|line| index.session.line_start_ps(line).saturating_add(line.last_end_ps));
        Some(index.session.start_ns?.saturating_add(ends.max()? / 1000))
    };
    Segment {
        file: file.to_owned(),
        bytes: index.len,
        events: lines().map(|line| line.events).sum(),
        start_ns: index.session.start_ns,
        stop_ns: index.session.stop_ns.or_else(last_event_ns),
    }
}

/// Refuses what cannot come from one process: another host, another process id, the same time twice, or
/// times too far apart for one trace.
fn check_one_process<'i>(
    names: &[String],
    indexes: impl Iterator<Item = &'i Index>,
) -> Result<(), MergeError> {
    let indexes: Vec<_> = indexes.collect();
    let refuse = |first: usize, second: usize, why: String| {
        Err(MergeError::NotOneProcess { first: names[first].clone(), second: names[second].clone(), why })
    };
    for second in 1..indexes.len() {
        let first = second - 1;
        let (a, b) = (indexes[first], indexes[second]);
        if !a.hostnames.is_empty() && !b.hostnames.is_empty() && a.hostnames != b.hostnames {
            return refuse(
                first,
                second,
                format!("the hosts are {} and {}", a.hostnames.join(", "), b.hostnames.join(", ")),
            );
        }
        if let (Some(a), Some(b)) = (a.process_id(), b.process_id())
            && a != b
        {
            return refuse(first, second, format!("the process ids are {a} and {b}"));
        }
        if let Some(shared_ns) = shared_time(a, b) {
            return refuse(first, second, format!("both cover the same {:.3} s", shared_ns as f64 / 1e9));
        }
        if let Some(reach_ns) = reach(indexes[0], b).filter(|&ns| ns > EPOCH_NS) {
            return refuse(
                0,
                second,
                format!(
                    "one reaches {:.1} days beyond the start of the other, and a trace holds {:.1} at most",
                    reach_ns as f64 / DAY_NS,
                    EPOCH_NS as f64 / DAY_NS
                ),
            );
        }
    }
    Ok(())
}

/// How far `last`'s session reaches beyond `first`'s start. Picoseconds have no room for more than [`EPOCH_NS`],
/// and a line's start beyond it would be taken for an absolute one.
fn reach(first: &Index, last: &Index) -> Option<i64> {
    let (first, last) = (first.session.start_ns?, last.session);
    Some(last.stop_ns.max(last.start_ns)?.saturating_sub(first))
}

/// The time that two sessions share, where it is too much for a clock that was set back a little.
fn shared_time(a: &Index, b: &Index) -> Option<i64> {
    let (a, b) = (segment("", a), segment("", b));
    let shared = a.stop_ns?.min(b.stop_ns?).saturating_sub(b.start_ns?);
    let shortest = a.stop_ns?.saturating_sub(a.start_ns?).min(b.stop_ns?.saturating_sub(b.start_ns?));
    (a.start_ns == b.start_ns || shared > shortest / 2).then_some(shared.max(0))
}

fn move_spans(index: &mut Index, by: u64) {
    for span in &mut index.others {
        span.offset += by;
    }
    for plane in &mut index.planes {
        plane.span.offset += by;
        for span in plane.others.iter_mut().chain(plane.lines.iter_mut().map(|line| &mut line.span)) {
            span.offset += by;
        }
    }
}

/// The inputs one after another as a single reader. Few are open at once, and a jump reads little: there may
/// be thousands of inputs, with a short stretch of every line in each.
pub(super) struct Chain<'a> {
    inputs: Vec<&'a dyn Input>,
    bases: Vec<u64>,
    len: u64,
    at: u64,
    next_read: usize,
    open: VecDeque<(usize, Box<dyn ReadSeek>)>,
    read: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Chain<'_> {
    /// The input at `at`, opened.
    fn opened(&mut self, input: usize) -> io::Result<&mut Box<dyn ReadSeek>> {
        if let Some(at) = self.open.iter().position(|(open, _)| *open == input) {
            self.open.swap(0, at);
        } else {
            self.open.truncate(MOST_OPEN - 1);
            self.open.push_front((input, self.inputs[input].open()?));
        }
        Ok(&mut self.open[0].1)
    }
}

impl Read for Chain<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.len || buffer.is_empty() {
            return Ok(0);
        }
        let input = self.bases.partition_point(|&base| base <= self.at) - 1;
        let end = self.bases.get(input + 1).copied().unwrap_or(self.len);
        let most = (end - self.at).min(self.next_read as u64).min(buffer.len() as u64) as usize;
        let from = self.at - self.bases[input];
        let opened = self.opened(input)?;
        opened.seek(SeekFrom::Start(from))?;
        let read = opened.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file has become shorter meanwhile",
            ));
        }
        self.at += read as u64;
        self.next_read = self.next_read.saturating_mul(2);
        self.read += read as u64;
        (self.progress)((self.len + self.read).min(2 * self.len), 2 * self.len);
        Ok(read)
    }
}

impl Seek for Chain<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(to) => Some(to),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
        };
        self.at = to.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.next_read = FIRST_READ;
        Ok(self.at)
    }
}
