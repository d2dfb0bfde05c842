//! Durations and sizes as people write them: `500ms`, `2s`, `64KiB`. A bare number is refused: its unit would
//! be a guess.

use std::{fmt, str::FromStr, time};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Why a duration or a size cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No number at its start.
    #[error("expected a {kind}, such as `{example}`, got `{text}`")]
    NoNumber {
        /// What was written.
        text: String,
        /// `duration` or `size`.
        kind: &'static str,
        /// One that is right.
        example: &'static str,
    },
    /// A number alone.
    #[error("`{text}` has no unit: write {units}, as in `{example}`")]
    NoUnit {
        /// What was written.
        text: String,
        /// The units there are.
        units: &'static str,
        /// One that is right.
        example: &'static str,
    },
    /// A unit that does not exist.
    #[error("`{text}` has the unknown unit `{unit}`: write {units}, as in `{example}`")]
    UnknownUnit {
        /// What was written.
        text: String,
        /// Its unit.
        unit: String,
        /// The units there are.
        units: &'static str,
        /// One that is right.
        example: &'static str,
    },
    /// More than can be held.
    #[error("`{text}` is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
    /// A fraction of the smallest unit.
    #[error("`{text}` is finer than {smallest}")]
    TooFine {
        /// What was written.
        text: String,
        /// The smallest unit.
        smallest: &'static str,
    },
}

/// How one quantity is written.
struct Grammar {
    kind: &'static str,
    units: &'static str,
    example: &'static str,
    smallest: &'static str,
    zero: &'static str,
    /// Name and size in the smallest unit, rising.
    table: &'static [(&'static str, u64)],
}

const DURATION: Grammar = Grammar {
    kind: "duration",
    units: "ns, us, ms, s, m, h or d",
    example: "2s",
    smallest: "a nanosecond",
    zero: "0s",
    table: &[
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
    ],
};

const BYTES: Grammar = Grammar {
    kind: "size",
    units: "B, KiB, MiB, GiB or TiB",
    example: "64KiB",
    smallest: "a byte",
    zero: "0B",
    table: &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)],
};

/// Longest text that an error quotes.
const QUOTED: usize = 40;

impl Grammar {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let text = text.trim();
        let quoted = || text.chars().take(QUOTED).flat_map(char::escape_debug).collect::<String>();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim_start());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
            return Err(UnitError::NoNumber { text: quoted(), kind: self.kind, example: self.example });
        }
        if unit.is_empty() {
            return Err(UnitError::NoUnit { text: quoted(), units: self.units, example: self.example });
        }
        let Some((_, scale)) = self.table.iter().find(|(name, _)| *name == unit) else {
            return Err(UnitError::UnknownUnit {
                text: quoted(),
                unit: unit.chars().take(QUOTED).flat_map(char::escape_debug).collect(),
                units: self.units,
                example: self.example,
            });
        };
        let too_large = || UnitError::TooLarge { text: quoted() };
        let too_fine = || UnitError::TooFine { text: quoted(), smallest: self.smallest };
        let whole: u128 = whole.parse().map_err(|_| too_large())?;
        let mut value = whole.checked_mul(u128::from(*scale)).ok_or_else(too_large)?;
        let fraction = fraction.trim_end_matches('0');
        if !fraction.is_empty() {
            // 20 digits of fraction are finer than any unit's smallest part.
            let parts: u64 = fraction.parse().map_err(|_| too_fine())?;
            let power = u32::try_from(fraction.len()).ok().and_then(|digits| 10u128.checked_pow(digits));
            let (scaled, power) = (u128::from(parts) * u128::from(*scale), power.ok_or_else(too_fine)?);
            if !scaled.is_multiple_of(power) {
                return Err(too_fine());
            }
            value = value.checked_add(scaled / power).ok_or_else(too_large)?;
        }
        u64::try_from(value).map_err(|_| too_large())
    }

    /// In the largest unit that needs no fraction.
    fn print(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |scale: u64| value != 0 && value.is_multiple_of(scale);
        match self.table.iter().rev().find(|(_, scale)| fits(*scale)) {
            Some((unit, scale)) => write!(f, "{}{unit}", value / scale),
            None => f.write_str(self.zero),
        }
    }
}

/// A length of time of at most 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Duration {
    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// So many milliseconds.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// For everything that waits.
    pub const fn get(self) -> time::Duration {
        time::Duration::from_nanos(self.0)
    }
}

impl From<Duration> for time::Duration {
    fn from(duration: Duration) -> Self {
        duration.get()
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

impl Bytes {
    /// So many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// So many times 1024 bytes.
    pub const fn kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// So many times 1024² bytes.
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number for people, such as `12.6GiB`: rounded down to a tenth of the largest unit that it fills.
    pub fn rounded(self) -> String {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.into_iter().find(|(_, bits)| self.0 >> bits > 0) {
            None => format!("{}B", self.0),
            Some((unit, bits)) => {
                let tenths = (u128::from(self.0) * 10) >> bits;
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            }
        }
    }

    /// The number, for what is held in memory.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// What both quantities are to serde, clap and a terminal.
macro_rules! written {
    ($type:ty, $grammar:expr) => {
        impl FromStr for $type {
            type Err = UnitError;

            fn from_str(text: &str) -> Result<Self, UnitError> {
                $grammar.parse(text).map(Self)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $grammar.print(self.0, f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Text(&$grammar)).map(Self)
            }
        }
    };
}

written!(Duration, DURATION);
written!(Bytes, BYTES);

/// Reads a quantity from text, and answers a bare number with what is missing.
struct Text(&'static Grammar);

impl de::Visitor<'_> for Text {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} in quotes, such as \"{}\"", self.0.kind, self.0.example)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        self.0.parse(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rounded_size_has_one_decimal_of_its_largest_unit() {
        let rounded = |bytes| Bytes::new(bytes).rounded();
        assert_eq!([0, 1023, 1024, 13_527_658_700].map(rounded), ["0B", "1023B", "1.0KiB", "12.5GiB"]);
        assert_eq!(rounded(u64::MAX), "16777215.9TiB");
    }

    #[test]
    fn what_people_write_is_read() {
        let duration = |text: &str| text.parse::<Duration>().map(|d| d.get());
        assert_eq!(duration("2s"), Ok(time::Duration::from_secs(2)));
        assert_eq!(duration("500ms"), Ok(time::Duration::from_millis(500)));
        assert_eq!(duration(" 1.5 h "), Ok(time::Duration::from_secs(5400)));
        assert_eq!(duration("0s"), Ok(time::Duration::ZERO));
        let bytes = |text: &str| text.parse::<Bytes>().map(Bytes::get);
        assert_eq!(bytes("8MiB"), Ok(8 << 20));
        assert_eq!(bytes("64KiB"), Ok(64 << 10));
        assert_eq!(bytes("0B"), Ok(0));
        assert_eq!(bytes("0.5KiB"), Ok(512));
    }

    #[test]
    fn faults_are_named() {
        let duration = |text: &str| text.parse::<Duration>().unwrap_err().to_string();
        assert_eq!(duration("2"), "`2` has no unit: write ns, us, ms, s, m, h or d, as in `2s`");
        assert_eq!(
            duration("2 sec"),
            "`2 sec` has the unknown unit `sec`: write ns, us, ms, s, m, h or d, as in `2s`"
        );
        for none in ["", "s", "-2s", ".5s", "1.s", "1.2.3s", "fast"] {
            assert_eq!(duration(none), format!("expected a duration, such as `2s`, got `{none}`"));
        }
        assert_eq!(duration("0.5ns"), "`0.5ns` is finer than a nanosecond");
        assert_eq!(duration("99999999999999999999d"), "`99999999999999999999d` is too large");
        assert_eq!("8MB".parse::<Bytes>().unwrap_err().to_string().matches("unknown unit `MB`").count(), 1);
        assert!(duration(&"9".repeat(1000)).len() < 120);
    }

    #[test]
    fn printed_in_the_largest_whole_unit() {
        assert_eq!(Duration::from_millis(1500).to_string(), "1500ms");
        assert_eq!(Duration::from_secs(86_400).to_string(), "1d");
        assert_eq!(Duration::default().to_string(), "0s");
        assert_eq!(Bytes::mib(8).to_string(), "8MiB");
        assert_eq!(Bytes::default().to_string(), "0B");
        assert_eq!(Bytes::new(1025).to_string(), "1025B");
    }

    #[test]
    fn a_bare_number_in_a_file_is_told_what_it_lacks() {
        let error = serde_json::from_str::<Duration>("5").unwrap_err().to_string();
        assert!(error.contains("`5` has no unit"), "{error}");
        let error = serde_json::from_str::<Bytes>("true").unwrap_err().to_string();
        assert!(error.contains("a size in quotes"), "{error}");
    }

    proptest! {
        #[test]
        fn printing_and_reading_are_inverse(value: u64) {
            prop_assert_eq!(Duration(value).to_string().parse(), Ok(Duration(value)));
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = text.parse::<Duration>();
            let _ = text.parse::<Bytes>();
        }

        #[test]
        fn no_number_panics(text in "[0-9.]{0,40}(ns|us|ms|s|m|h|d|B|KiB|TiB)?") {
            let _ = text.parse::<Duration>();
            let _ = text.parse::<Bytes>();
        }
    }
}
