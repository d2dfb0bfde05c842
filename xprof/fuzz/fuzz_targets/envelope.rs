//! The answer of a profiler, in pieces of any size: where pieces end must not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xprof::client::envelope::{Envelope, Piece, ResponseFields};

const LIMIT: u64 = 1 << 20;

/// The fields and the trace of an answer; `None` for a refused one.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<(ResponseFields, Vec<u8>)> {
    let mut envelope = Envelope::new(LIMIT);
    let mut trace = Vec::new();
    for piece in pieces {
        let read = envelope.push(piece, |piece| {
            if let Piece::Bytes(bytes) = piece {
                trace.extend_from_slice(bytes);
            }
            Ok(())
        });
        read.ok()?;
    }
    Some((envelope.finish().ok()?, trace))
}

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let whole = read(std::iter::once(bytes));
    if let Some((fields, trace)) = &whole {
        assert_eq!(fields.trace_bytes.unwrap_or(0), trace.len() as u64);
    }
    assert_eq!(whole, read(bytes.chunks(usize::from(piece) + 1)));
});
