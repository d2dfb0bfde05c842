//! One walk over the body of a line, for the index and for the events alike.

use std::{io::Read, ops::ControlFlow};

use super::event::TraceEvent;
use crate::wire::{Error, FieldPayload, Found, Header, Scanner, Span, varint};

/// The field of a line that holds its events.
const EVENTS: u32 = 4;
const EVENT_TAG: u8 = 0x22;

/// Calls `on_event` for each event of the line at `span`, which `scanner` stands at, and `on_field` for each
/// other field; that one must read or skip what follows the header. Either may end the walk.
pub(super) fn walk<R: Read>(
    scanner: &mut Scanner<R>,
    span: Span,
    mut on_event: impl FnMut(&TraceEvent<'_>) -> Result<ControlFlow<()>, Error>,
    mut on_field: impl FnMut(&mut Scanner<R>, Header) -> Result<(), Error>,
) -> Result<(), Error> {
    let end = span.end();
    while scanner.position() < end {
        let at = scanner.position();
        let window = scanner.window(end - at, 1, "the rest of a line")?;
        let mut used = 0;
        while let Some((from, to)) = whole_event(window, used) {
            used = to;
            if on_event(&TraceEvent::decode(&window[from..to], at + from as u64)?)?.is_break() {
                return Ok(());
            }
        }
        scanner.consume(used);
        if used > 0 {
            continue;
        }
        // Something else than an event, or one that is not whole in the buffer.
        let Some(header) = scanner.header(Some(end))? else { break };
        match header {
            Header { number: EVENTS, kind: FieldPayload::Bytes(len), .. } => {
                let from = scanner.position();
                let event = TraceEvent::decode(scanner.bytes(len, "an event")?, from)?;
                if on_event(&event)?.is_break() {
                    return Ok(());
                }
            }
            Header { number: EVENTS, at, .. } => {
                return Err(Error::damaged(at, "an event", Found::OtherType));
            }
            header => on_field(scanner, header)?,
        }
    }
    Ok(())
}

/// Where the event at `at` of `window` starts and ends, if one stands there and is whole.
#[inline]
fn whole_event(window: &[u8], at: usize) -> Option<(usize, usize)> {
    if *window.get(at)? != EVENT_TAG {
        return None;
    }
    let mut from = at + 1;
    let len = varint(window, &mut from)?;
    let left = (window.len() - from) as u64;
    (len <= left).then(|| (from, from + len as usize))
}
