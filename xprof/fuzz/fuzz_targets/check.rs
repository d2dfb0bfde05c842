//! The check that a trace passes while it arrives, on arbitrary bytes in pieces of any size.
//!
//! Where pieces fall must not matter, and where the reader takes the bytes too, both count the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xprof::{
    check::{Checker, Damage, TraceSummary},
    reader::Index,
};

fn checked<'a>(bytes: &'a [u8], pieces: impl Iterator<Item = &'a [u8]>) -> Result<TraceSummary, Damage> {
    let mut checker = Checker::new(bytes.len() as u64);
    for piece in pieces {
        checker.push(piece)?;
    }
    checker.finish()
}

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = input;
    let whole = checked(bytes, std::iter::once(bytes));
    assert_eq!(whole, checked(bytes, bytes.chunks(usize::from(piece) + 1)));
    if let (Ok(summary), Ok(index)) = (whole, Index::scan(bytes, None)) {
        let lines = || index.planes.iter().flat_map(|plane| &plane.lines);
        let events: u64 = lines().map(|line| line.events).sum();
        assert_eq!(
            (summary.plane_count, summary.lines, summary.events),
            (index.planes.len() as u64, lines().count() as u64, events)
        );
    }
});
