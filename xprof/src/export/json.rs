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

/// The digits of 00 to 99: two at a time halves the divisions.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut i = 0;
    while i < 100 {
        pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    pairs
};

/// Adds a whole number.
#[inline]
pub(super) fn unsigned(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut from = digits.len();
    while value >= 100 {
        from -= 2;
        digits[from..from + 2].copy_from_slice(&PAIRS[(value % 100) as usize]);
        value /= 100;
    }
    let [tens, ones] = PAIRS[value as usize];
    from -= 1;
    digits[from] = ones;
    if tens != b'0' {
        from -= 1;
        digits[from] = tens;
    }
    out.extend_from_slice(&digits[from..]);
}

/// Adds nanoseconds as microseconds.
#[inline]
pub(super) fn micros(ns: u64, out: &mut Vec<u8>) {
    unsigned(ns / 1000, out);
    let rest = (ns % 1000) as usize;
    if rest != 0 {
        let [tens, ones] = PAIRS[rest % 100];
        out.extend_from_slice(&[b'.', b'0' + (rest / 100) as u8, tens, ones]);
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
