//! Fields of a message that lies in memory as a whole.

use super::{Error, Found};

/// A field's value as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FieldValue<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: text, bytes or a message.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32(u32),
}

/// One field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field<'a> {
    /// Its number.
    pub number: u32,
    /// Its value.
    pub value: FieldValue<'a>,
    /// Where its tag lies in the input.
    pub at: u64,
}

impl<'a> Field<'a> {
    /// The number in a varint field.
    pub fn varint(&self, expected: &'static str) -> Result<u64, Error> {
        match self.value {
            FieldValue::Varint(value) => Ok(value),
            _ => Err(Error::damaged(self.at, expected, Found::OtherType)),
        }
    }

    /// The bytes of a length-delimited field.
    pub fn bytes(&self, expected: &'static str) -> Result<&'a [u8], Error> {
        match self.value {
            FieldValue::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::damaged(self.at, expected, Found::OtherType)),
        }
    }
}

/// Reads the fields of a message in a slice, one after another.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
}

impl<'a> Fields<'a> {
    /// The fields of `bytes`, which lie at `base` in the input.
    pub fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { bytes, at: 0, base }
    }

    /// Calls `with` for every length-delimited field `number` that is left, and moves over all others.
    ///
    /// For messages from outside that could grow a hundredfold when they are decoded whole: each part is seen, and
    /// can be counted and bounded, by itself.
    ///
    /// # Errors
    /// At the first damaged field, or when `with` fails.
    pub fn each<E: From<Error>>(
        mut self,
        number: u32,
        mut with: impl FnMut(&'a [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(field) = self.next_field()? {
            if let (true, FieldValue::Bytes(bytes)) = (field.number == number, field.value) {
                with(bytes)?;
            }
        }
        Ok(())
    }

    /// Where the next field lies in the input.
    pub fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Where `part`, a sub-slice of this message, lies in the input.
    pub fn offset_of(&self, part: &[u8]) -> u64 {
        self.base + (part.as_ptr() as usize).saturating_sub(self.bytes.as_ptr() as usize) as u64
    }

    /// The next field; `None` at the end.
    #[inline]
    pub fn next_field(&mut self) -> Result<Option<Field<'a>>, Error> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        let at = self.position();
        let tag = self.number("a field tag")?;
        let number = field_number(tag, at)?;
        let value = match tag & 7 {
            0 => FieldValue::Varint(self.number("a number")?),
            1 => FieldValue::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let len = self.number("a length")?;
                FieldValue::Bytes(self.take(len, at)?)
            }
            5 => FieldValue::Fixed32(u32::from_le_bytes(self.fixed()?)),
            wire => {
                return Err(Error::damaged(at, "a field of a known wire type", Found::WireType(wire as u8)));
            }
        };
        Ok(Some(Field { number, value, at }))
    }

    #[inline]
    fn number(&mut self, expected: &'static str) -> Result<u64, Error> {
        varint(self.bytes, &mut self.at)
            .ok_or_else(|| Error::damaged(self.position(), expected, Found::Varint))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64, self.position())?;
        let mut fixed = [0; N];
        fixed.copy_from_slice(bytes);
        Ok(fixed)
    }

    #[inline]
    fn take(&mut self, len: u64, at: u64) -> Result<&'a [u8], Error> {
        let left = self.bytes.len() - self.at;
        if len > left as u64 {
            let found = Found::Length { claimed: len, left: left as u64 };
            return Err(Error::damaged(at, "a field that ends within its message", found));
        }
        let from = self.at;
        self.at += len as usize;
        Ok(&self.bytes[from..self.at])
    }
}

/// The field number in a tag.
#[inline]
pub(super) fn field_number(tag: u64, at: u64) -> Result<u32, Error> {
    match tag >> 3 {
        number @ 1..=0x1fff_ffff => Ok(number as u32),
        number => Err(Error::damaged(at, "a field number from 1 to 536870911", Found::FieldNumber(number))),
    }
}

/// The varint at `at`, which moves behind it; `None`, and `at` as it was, if it does not end within ten bytes
/// or the slice.
#[inline]
pub fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let rest = bytes.get(*at..)?;
    let first = *rest.first()?;
    if first < 0x80 {
        *at += 1;
        return Some(u64::from(first));
    }
    if let Some(word) = rest.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let stops = !word & 0x8080_8080_8080_8080;
        if stops != 0 {
            // The bits up to the first byte without a continuation bit, then the groups of seven drawn together.
            let word = word & (stops ^ (stops - 1)) & 0x7f7f_7f7f_7f7f_7f7f;
            let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
            let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
            *at += stops.trailing_zeros() as usize / 8 + 1;
            return Some(word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4);
        }
    }
    long_varint(rest, at)
}

/// A varint of more than eight bytes, or near the end of the slice.
fn long_varint(rest: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for (i, &byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *at += i + 1;
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length() {
        let values =
            (0..64).flat_map(|shift| [u64::MAX >> shift, 0x9e37_79b9_7f4a_7c15 >> shift, 1 << shift]);
        for value in values {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(value, &mut bytes);
            let length = bytes.len();
            let mut at = 0;
            assert_eq!(varint(&bytes[..length - 1], &mut at), None);
            assert_eq!(at, 0);
            // Whatever follows, and how much of it.
            for follows in [0, 0x7f, 0x80, 0xff] {
                for more in 0..10 {
                    bytes.truncate(length);
                    bytes.resize(length + more, follows);
                    let mut at = 0;
                    assert_eq!(varint(&bytes, &mut at), Some(value));
                    assert_eq!(at, length);
                }
            }
        }
        assert_eq!(varint(&[0xff; 11], &mut 0), None);
    }

    #[test]
    fn a_length_beyond_the_message_names_its_byte() {
        let error = Fields::new(&[0x0a, 5, 1, 2], 100).next_field().unwrap_err();
        assert_eq!(
            error.to_string(),
            "damaged at byte 100: expected a field that ends within its message, found a length of 5 bytes where 2 are left"
        );
    }

    #[test]
    fn parts_of_one_number_are_seen_one_by_one() {
        let mut seen = Vec::new();
        let message = [0x0a, 1, b'a', 0x10, 7, 0x0a, 0, 0x12, 1, b'x', 0x0a, 2, b'b', b'c'];
        let mut each = |message| {
            Fields::new(message, 0).each(1, |part: &[u8]| {
                seen.push(part.to_vec());
                Ok::<_, Error>(())
            })
        };
        each(&message[..]).unwrap();
        assert_eq!(seen, [&b"a"[..], b"", b"bc"]);
        assert!(Fields::new(&message[..12], 0).each(1, |_| Ok::<_, Error>(())).is_err());
    }

    #[test]
    fn groups_and_field_zero_are_refused() {
        assert!(Fields::new(&[0x0b], 0).next_field().is_err());
        assert!(Fields::new(&[0x00, 1], 0).next_field().is_err());
    }
}
