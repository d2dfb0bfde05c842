//! Arbitrary text into the splitter of exported logs: no panic, and the size of chunks makes no difference.
#![no_main]

use goodput::splitter::{LogEnd, LogSplitter, SplitError};
use libfuzzer_sys::fuzz_target;

type Split = (Vec<(u64, Vec<u8>)>, Result<LogEnd, SplitError>);

fn split(text: &[u8], chunk: usize) -> Split {
    let (mut splitter, mut items) = (LogSplitter::new(), Vec::new());
    let mut each = |line, item: &[u8]| {
        items.push((line, item.to_vec()));
        Ok::<(), SplitError>(())
    };
    let pushed = text.chunks(chunk).try_for_each(|chunk| splitter.push(chunk, &mut each));
    (items, pushed.and_then(|()| splitter.finish()))
}

// The first byte is the size of chunks.
fuzz_target!(|data: &[u8]| {
    let Some((size, text)) = data.split_first() else { return };
    assert_eq!(split(text, usize::from(*size).max(1)), split(text, usize::MAX));
});
