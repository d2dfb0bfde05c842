//! One plane of the output, from the planes of that name in the inputs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use super::{
    PassError,
    ids::{ContentId, IdMap, digest},
    inputs::{Inputs, Member},
    join::{CORE_DETAILS, LineIds},
    output::Output,
    report::MergeReport,
    rewrite::{self, Maps, Move, MovedStats, Tables},
    steps::Steps,
};
use crate::{
    reader::{ENVIRONMENT, LineIndex, PlaneIndex, Stat, StatValue},
    wire::{self, Span},
};

/// Merged events are handed to the output in pieces of this size.
const PIECE: usize = 64 << 10;

pub(super) struct PlaneMerge<'m, 'a> {
    inputs: &'m mut Inputs<'a>,
    members: &'m [Member],
    /// The ids of each member.
    maps: Vec<Maps>,
    /// The stats of each member's events that tell a time or a step.
    moved_stats: Vec<MovedStats>,
    tables: Tables,
}

/// A line of one member, and how its events move.
struct Piece {
    member: usize,
    line: LineIndex,
    /// The line's zero on the merged time line.
    start_ns: i64,
}

impl<'m, 'a> PlaneMerge<'m, 'a> {
    pub(super) fn new(inputs: &'m mut Inputs<'a>, members: &'m [Member]) -> Self {
        let maps =
            members.iter().map(|_| Maps { stats: IdMap::default(), events: IdMap::default() }).collect();
        // Looked up here once: a plane may have as many lines as it has names.
        let moved_stats =
            members.iter().map(|&member| MovedStats::of(&inputs.plane(member).stat_names)).collect();
        Self { inputs, members, maps, moved_stats, tables: Tables::default() }
    }

    fn plane(&self, member: usize) -> &PlaneIndex {
        self.inputs.plane(self.members[member])
    }

    pub(super) fn write(
        mut self,
        out: &mut Output<'_>,
        steps: &mut Steps,
        report: &mut MergeReport,
    ) -> Result<(), PassError> {
        out.begin(1)?;
        let (id, name) =
            (self.inputs.plane_id(self.members[0]), self.inputs.plane_name(self.members[0]).into_owned());
        let mut head = Vec::new();
        prost::encoding::int64::encode(1, &id, &mut head);
        prost::encoding::string::encode(2, &name, &mut head);
        out.raw(&head)?;
        for member in 0..self.members.len() {
            self.metadata(member, out)?;
        }
        self.stats(out)?;
        let mut lines = self.lines();
        self.tell_lines_apart(&mut lines);
        for pieces in lines {
            report.lines += 1;
            self.line(&pieces, out, steps, report)?;
        }
        out.end()?;
        Ok(())
    }

    /// The fields of `member` that are no lines, by number.
    fn fields(&mut self, member: usize) -> Result<Vec<(u32, Span)>, wire::Error> {
        let mut fields = Vec::new();
        let (input, plane) = self.members[member];
        let inputs = &mut *self.inputs;
        inputs.reader.plane_fields(&inputs.indexes[input].planes[plane], |number, span| {
            fields.push((number, span));
            Ok::<_, wire::Error>(())
        })?;
        Ok(fields)
    }

    /// Writes the metadata entries of `member` that no member before it had, and learns its ids.
    fn metadata(&mut self, member: usize, out: &mut Output<'_>) -> Result<(), PassError> {
        let fields = self.fields(member)?;
        let of =
            |wanted: u32| fields.iter().filter(move |(number, _)| *number == wanted).map(|&(_, span)| span);
        let mut written = Vec::new();
        for span in of(5) {
            let raw = self.inputs.bytes(span)?;
            let entry = rewrite::entry(&raw, span.offset)?;
            let body = rewrite::stat_metadata(&entry)?;
            let (id, new) = self.tables.stats.assign(entry.key, digest(&body));
            self.maps[member].stats.insert(entry.key, id);
            if new {
                written.clear();
                rewrite::put_entry(5, id, &body, &mut written);
                out.raw(&written)?;
            }
        }
        let mut parents = Vec::new();
        let mut contents = BTreeMap::new();
        for span in of(4) {
            let raw = self.inputs.bytes(span)?;
            let entry = rewrite::entry(&raw, span.offset)?;
            let (body, children) = rewrite::event_metadata(&entry, &mut self.maps[member], &mut self.tables)?;
            let content = digest(&body);
            if children.is_empty() {
                let (id, new) = self.tables.events.assign(entry.key, content);
                self.maps[member].events.insert(entry.key, id);
                if new {
                    written.clear();
                    rewrite::put_entry(4, id, &body, &mut written);
                    out.raw(&written)?;
                }
            } else {
                parents.push((entry.key, span, children));
            }
            contents.insert(entry.key, content);
        }
        self.parents(member, &parents, &contents, out)
    }

    /// Entries with children come last: what they say includes who their children are, and the children's ids
    /// must be known.
    fn parents(
        &mut self,
        member: usize,
        parents: &[(i64, Span, Vec<i64>)],
        contents: &BTreeMap<i64, ContentId>,
        out: &mut Output<'_>,
    ) -> Result<(), PassError> {
        let mut new_ones = Vec::new();
        for (key, span, children) in parents {
            let mut said = contents.get(key).copied().unwrap_or_default().to_vec();
            for child in children {
                said.extend_from_slice(&contents.get(child).copied().unwrap_or_default());
            }
            let (id, new) = self.tables.events.assign(*key, digest(&said));
            self.maps[member].events.insert(*key, id);
            if new {
                new_ones.push((id, *span, children));
            }
        }
        for (id, span, children) in new_ones {
            let raw = self.inputs.bytes(span)?;
            let entry = rewrite::entry(&raw, span.offset)?;
            let maps = &mut self.maps[member];
            let (mut body, _) = rewrite::event_metadata(&entry, maps, &mut self.tables)?;
            let children: Vec<_> =
                children.iter().map(|&child| maps.events.get(child, &mut self.tables.events)).collect();
            rewrite::put_children(&children, &mut body);
            let mut written = Vec::new();
            rewrite::put_entry(4, id, &body, &mut written);
            out.raw(&written)?;
        }
        Ok(())
    }

    /// Writes the plane's own stats and unknown fields, each once: the first member that has it tells.
    fn stats(&mut self, out: &mut Output<'_>) -> Result<(), PassError> {
        let mut seen = BTreeSet::new();
        let mut unknown = BTreeSet::new();
        for member in 0..self.members.len() {
            let names = [
                self.plane(member).stat_names.id("profile_start_time"),
                self.plane(member).stat_names.id("profile_stop_time"),
            ];
            let core_details = self.plane(member).stat_names.id(CORE_DETAILS);
            let covered = self.covered();
            for (number, span) in self.fields(member)? {
                if number <= 5 {
                    continue;
                }
                let raw = self.inputs.bytes(span)?;
                let mut fields = wire::Fields::new(&raw, span.offset);
                let field = fields.next_field()?;
                let Some(wire::Field { number: 6, value: wire::FieldValue::Bytes(stat), .. }) = field else {
                    if unknown.insert(digest(&raw)) {
                        out.raw(&raw)?;
                    }
                    continue;
                };
                let at = fields.offset_of(stat);
                let old = Stat::decode(stat, at)?.metadata_id;
                let maps = &mut self.maps[member];
                if !seen.insert(maps.stats.get(old, &mut self.tables.stats)) {
                    continue;
                }
                let number = covered.and_then(|covered| {
                    names.iter().zip(covered).find(|(name, _)| **name == Some(old)).map(|(_, ns)| ns)
                });
                let mut written = Vec::new();
                let details = self.inputs.processes.as_ref().filter(|_| core_details == Some(old));
                if let (Some(processes), StatValue::Bytes(value)) = (details, Stat::decode(stat, at)?.value) {
                    let value = processes.core_details(self.members[member].0, value, at)?;
                    rewrite::bytes_stat(old, &value, maps, &mut self.tables, &mut written);
                } else {
                    rewrite::plane_stat(stat, at, number, maps, &mut self.tables, &mut written)?;
                }
                out.raw(&written)?;
            }
        }
        Ok(())
    }

    /// The start and stop of the whole, for the plane that tells them.
    fn covered(&self) -> Option<[u64; 2]> {
        if self.plane(0).name != ENVIRONMENT {
            return None;
        }
        let sessions = || self.inputs.indexes.iter().map(|index| &index.session);
        let start = sessions().filter_map(|session| session.start_ns).min()?;
        let stop = sessions().filter_map(|session| session.stop_ns).max().unwrap_or(start);
        Some([start as u64, stop as u64])
    }

    /// The lines of the output: those with the same id and name are one.
    fn lines(&self) -> Vec<Vec<Piece>> {
        let mut place = BTreeMap::new();
        let mut lines: Vec<Vec<Piece>> = Vec::new();
        for member in 0..self.members.len() {
            let input = self.members[member].0;
            let session = self.inputs.indexes[input].session;
            let moved_ns = self.inputs.session_ns(input);
            let mut count = BTreeMap::<(i64, &str), usize>::new();
            for line in &self.plane(member).lines {
                let nth = count.entry((line.id, &line.name)).or_default();
                // Threads of two processes are two lines, whatever they are called.
                let process = self.inputs.are_processes().then_some(input);
                let place = *place.entry((line.id, line.name.clone(), *nth, process)).or_insert(lines.len());
                *nth += 1;
                if place == lines.len() {
                    lines.push(Vec::new());
                }
                let start_ns = (session.line_start_ps(line) / 1000).saturating_add(moved_ns);
                lines[place].push(Piece { member, line: line.clone(), start_ns });
            }
        }
        lines
    }

    /// Gives the lines of several processes ids and names of their own.
    fn tell_lines_apart(&self, lines: &mut [Vec<Piece>]) {
        let Some(processes) = self.inputs.processes.as_ref().filter(|_| self.members.len() > 1) else {
            return;
        };
        let reserved = lines.iter().flatten().map(|piece| piece.line.id).collect();
        let mut ids = LineIds::default();
        for piece in lines.iter_mut().flatten() {
            let input = self.members[piece.member].0;
            piece.line.id = ids.of(input, piece.line.id, &reserved);
            piece.line.name = processes.line_name(input, &piece.line.name);
            if !piece.line.display_name.is_empty() {
                piece.line.display_name = processes.line_name(input, &piece.line.display_name);
            }
        }
    }

    fn line(
        &mut self,
        pieces: &[Piece],
        out: &mut Output<'_>,
        steps: &mut Steps,
        report: &mut MergeReport,
    ) -> Result<(), PassError> {
        // Events must not start before their line; an empty piece does not count.
        let filled = || pieces.iter().filter(|piece| piece.line.events > 0);
        let start_ns = filled().map(|piece| piece.start_ns).min().unwrap_or(pieces[0].start_ns);
        out.begin(3)?;
        out.raw(&line_head(pieces, start_ns))?;
        for piece in pieces {
            self.events(piece, start_ns, out, steps, report)?;
        }
        out.end()?;
        Ok(())
    }

    fn events(
        &mut self,
        piece: &Piece,
        line_start_ns: i64,
        out: &mut Output<'_>,
        steps: &mut Steps,
        report: &mut MergeReport,
    ) -> Result<(), PassError> {
        let input = self.members[piece.member].0;
        let by = Move {
            offset_ps: piece.start_ns.saturating_sub(line_start_ns).saturating_mul(1000),
            session_ps: self.inputs.session_ns(input).saturating_mul(1000),
            line_start_ps: self.inputs.indexes[input].session.line_start_ps(&piece.line),
            stats: self.moved_stats[piece.member],
            devices: self.inputs.processes.as_ref().map(|processes| processes.devices(input)),
        };
        let maps = &mut self.maps[piece.member];
        let tables = &mut self.tables;
        let mut written = Vec::with_capacity(2 * PIECE);
        let mut unnamed = Vec::new();
        self.inputs.reader.events(piece.line.span, |event| {
            let (id, step) = rewrite::event(event, &by, maps, tables, &mut written)?;
            report.events += 1;
            if let Some(number) = step
                && steps.note(report.lines, id, input, number)
            {
                unnamed.push((event.metadata_id, id));
            }
            if written.len() >= PIECE {
                out.raw(&written)?;
                written.clear();
            }
            Ok::<_, PassError>(ControlFlow::Continue(()))
        })?;
        out.raw(&written)?;
        if unnamed.is_empty() { Ok(()) } else { self.name_steps(piece, &unnamed, steps, report.lines) }
    }

    fn name_steps(
        &mut self,
        piece: &Piece,
        unnamed: &[(i64, i64)],
        steps: &mut Steps,
        line: u64,
    ) -> Result<(), PassError> {
        let (input, plane) = self.members[piece.member];
        let inputs = &mut *self.inputs;
        inputs.reader.event_metadata(&inputs.indexes[input].planes[plane], |entry| {
            for &(_, id) in unnamed.iter().filter(|(old, _)| *old == entry.id) {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                steps.name(line, id, name, &piece.line.name);
            }
            Ok::<_, PassError>(())
        })
    }
}

/// A line's own fields.
fn line_head(pieces: &[Piece], start_ns: i64) -> Vec<u8> {
    let first = &pieces[0].line;
    let ends = pieces.iter().filter(|piece| piece.line.duration_ps != 0).map(|piece| {
        let moved = piece.start_ns.saturating_sub(start_ns).saturating_mul(1000);
        moved.saturating_add(piece.line.duration_ps)
    });
    let mut head = Vec::new();
    let mut number = |field: u32, value: i64| {
        if value != 0 {
            prost::encoding::int64::encode(field, &value, &mut head);
        }
    };
    number(1, first.id);
    number(3, start_ns);
    number(9, ends.max().unwrap_or(0));
    number(10, first.display_id);
    for (field, text) in [(2, &first.name), (11, &first.display_name)] {
        if !text.is_empty() {
            prost::encoding::string::encode(field, text, &mut head);
        }
    }
    head
}
