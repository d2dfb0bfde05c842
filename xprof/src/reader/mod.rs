//! The streaming reader of XSpace.
//!
//! [`Reader::open`] walks the file once and keeps an [`Index`]: names, numbers and places, never events.
//! Then any line's events, a plane's event metadata, or raw bytes are visited in any order: metadata may come
//! after the lines that use it, and real files have it so. Unknown planes, lines, stats and fields are left
//! where they are; [`Reader::plane_fields`] and [`Reader::copy`] carry them along.
//!
//! Memory is one buffer of [`RECORD`] bytes at most plus the index. What cannot seek is spooled to a file
//! first; [`Index::scan`] alone needs no seeking.
//!
//! Must never hold events, and never know what a TPU is.

mod by_id;
mod event;
mod far;
mod index;
mod line;
mod metadata;
mod names;
mod plane_index;
mod stat;
mod time;

use std::{
    collections::HashMap,
    io::{Read, Seek},
    ops::ControlFlow,
};

pub(crate) use by_id::ById;
pub use event::TraceEvent;
pub use far::FarLines;
use index::SessionSpan;
pub use index::{Index, LineIndex, NoTrace, PlaneIndex};
pub use metadata::EventMetadata;
#[cfg(test)]
pub(crate) use names::SEARCHES;
pub use names::StatNames;
pub use stat::{OwnedValue, Stat, StatValue, Stats};
pub use time::SessionTimes;
pub(crate) use time::{ENVIRONMENT, EPOCH_NS};

use crate::{
    input::ReadSeek,
    wire::{Error, FieldPayload, Header, Scanner, Span},
};

/// The largest record (an event, a stat metadata entry) that is read.
pub const RECORD: usize = 16 << 20;

/// A trace file, indexed.
#[derive(Debug)]
pub struct Reader<R> {
    scanner: Scanner<R>,
    index: Index,
    /// By where a line lies: the bounds of its events, where some lie outside.
    outside: HashMap<u64, SessionSpan>,
}

/// A reader of whatever can be read anywhere.
pub type AnyReader = Reader<Box<dyn ReadSeek>>;

impl AnyReader {
    /// [`Reader::open`], compiled here: a caller may be built to be small, while this has to be fast.
    ///
    /// # Errors
    /// As it has.
    pub fn open_any(input: Box<dyn ReadSeek>) -> Result<Self, Error> {
        Self::open(input)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Indexes `input` from its start.
    pub fn open(input: R) -> Result<Self, Error> {
        let mut scanner = Scanner::new(input, RECORD);
        let len = scanner.input_len()?;
        scanner.seek(0)?;
        let mut index = Index::scan_with(&mut scanner, Some(len))?;
        index.set_outside(&mut scanner)?;
        let outside = index.outside();
        Ok(Self { scanner, index, outside })
    }

    /// A reader of places that an index made elsewhere names; its own index stays empty. All events are visited.
    pub(crate) fn unindexed(input: R) -> Self {
        let scanner = Scanner::new(input, RECORD);
        Self { scanner, index: Index::default(), outside: HashMap::new() }
    }

    /// The same; events far outside the session are not visited.
    pub(crate) fn of_index(input: R, index: &Index) -> Self {
        Self { outside: index.outside(), ..Self::unindexed(input) }
    }

    /// What the file holds.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Takes the index out, so that it can be read while the events are visited.
    pub fn take_index(&mut self) -> Index {
        std::mem::take(&mut self.index)
    }

    /// Visits the events of a line (its [`LineIndex::span`]) in the file's order, until the visitor breaks.
    pub fn events<E: From<Error>>(
        &mut self,
        line: Span,
        mut visitor: impl FnMut(&TraceEvent<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        self.scanner.seek(line.offset)?;
        let mut failed = None;
        let bounds = self.outside.get(&line.offset).copied();
        line::walk(
            &mut self.scanner,
            line,
            |event| {
                if bounds.is_some_and(|bounds| !bounds.hold(event.offset_ps, event.duration_ps)) {
                    return Ok(ControlFlow::Continue(()));
                }
                Ok(visitor(event).unwrap_or_else(|error| {
                    failed = Some(error);
                    ControlFlow::Break(())
                }))
            },
            |scanner, header| match header.kind {
                FieldPayload::Bytes(len) => scanner.skip(len),
                _ => Ok(()),
            },
        )?;
        failed.map_or(Ok(()), Err)
    }

    /// Visits the event metadata of `plane`.
    pub fn event_metadata<E: From<Error>>(
        &mut self,
        plane: &PlaneIndex,
        mut visitor: impl FnMut(&EventMetadata<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for &run in &plane.others {
            self.scanner.seek(run.offset)?;
            while let Some(header) = self.scanner.header(Some(run.end()))? {
                match header {
                    Header { number: 4, kind: FieldPayload::Bytes(len), .. } => {
                        metadata::visit(&mut self.scanner, len, &mut visitor)?;
                    }
                    Header { kind: FieldPayload::Bytes(len), .. } => self.scanner.skip(len)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Visits every field of `plane` that is no line: its number and where it lies, tag included. The bytes
    /// are had with [`Self::copy`] afterwards.
    pub fn plane_fields<E: From<Error>>(
        &mut self,
        plane: &PlaneIndex,
        mut visitor: impl FnMut(u32, Span) -> Result<(), E>,
    ) -> Result<(), E> {
        for &run in &plane.others {
            self.scanner.seek(run.offset)?;
            while let Some(header) = self.scanner.header(Some(run.end()))? {
                if let FieldPayload::Bytes(len) = header.kind {
                    self.scanner.skip(len)?;
                }
                visitor(header.number, Span { offset: header.at, len: self.scanner.position() - header.at })?;
            }
        }
        Ok(())
    }

    /// Hands the bytes at `span` to `sink` in pieces.
    pub fn copy<E: From<Error>>(
        &mut self,
        span: Span,
        sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.scanner.copy(span, sink)
    }
}
