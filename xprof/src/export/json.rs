//! JSON by hand: an export writes millions of small objects.

/// Adds `text` as a JSON string of at most `most` bytes of it; what is no UTF-8 becomes the replacement
/// character.
pub(super) fn string(text: &[u8], most: usize, out: &mut Vec<u8>) {
    let cut = &text[..text.len().min(most)];
    let text = String::from_utf8_lossy(cut);
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0..0x20 => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Adds a whole number.
#[inline]
pub(super) fn unsigned(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Adds nanoseconds as microseconds.
#[inline]
pub(super) fn micros(ns: u64, out: &mut Vec<u8>) {
    unsigned(ns / 1000, out);
    let rest = ns % 1000;
    if rest != 0 {
        // The leading 1 keeps the zeros, and the point takes its place.
        let at = out.len();
        unsigned(1000 + rest, out);
        out[at] = b'.';
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_reads_back(text in any::<String>(), number in any::<u64>()) {
            let mut out = Vec::new();
            string(text.as_bytes(), usize::MAX, &mut out);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
            out.clear();
            unsigned(number, &mut out);
            prop_assert_eq!(serde_json::from_slice::<u64>(&out).unwrap(), number);
        }
    }

    #[test]
    fn a_cut_text_is_still_a_text() {
        let mut out = Vec::new();
        string("aé".as_bytes(), 2, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "\"a\u{fffd}\"");
    }

    #[test]
    fn microseconds_keep_their_nanoseconds() {
        let text = |ns| {
            let mut out = Vec::new();
            micros(ns, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!([text(0), text(7), text(1_000), text(12_340)], ["0", "0.007", "1", "12.340"]);
    }
}
