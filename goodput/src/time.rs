//! Times as the library keeps them: whole microseconds since the epoch, rounded half to even.

use std::fmt;

use crate::error::Error;

/// The first instant of the year 1 and of the year 10000: what the library's clock type can hold.
const RANGE: std::ops::Range<f64> = -62_135_596_800.0..253_402_300_800.0;

/// Microseconds since the Unix epoch, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub i64);

impl Micros {
    /// Rounds epoch seconds to microseconds.
    ///
    /// # Errors
    /// `ValueError` outside the years 1 to 9999, or for NaN.
    pub fn from_seconds(seconds: f64) -> Result<Self, Error> {
        if seconds.is_nan() {
            return Err(Error::value("cannot convert float NaN to integer"));
        }
        if !RANGE.contains(&seconds) {
            return Err(Error::value("year is out of range"));
        }
        let whole = seconds.trunc();
        let micros = ((seconds - whole) * 1e6).round_ties_even();
        // Both are whole numbers far below 2^53 after the check above.
        #[expect(clippy::cast_possible_truncation, reason = "checked against RANGE")]
        Ok(Self(whole as i64 * 1_000_000 + micros as i64))
    }

    /// Epoch seconds.
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 for every instant the type can hold")]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// This time plus `micros`.
    #[must_use]
    pub fn plus(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// As the library prints a time: `2026-03-01 00:00:02+00:00`, with microseconds where there are any.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(instant) = jiff::Timestamp::from_microsecond(self.0) else {
            return write!(f, "{} us", self.0);
        };
        let pattern = if self.0 % 1_000_000 == 0 { "%Y-%m-%d %H:%M:%S" } else { "%Y-%m-%d %H:%M:%S.%6f" };
        write!(f, "{}+00:00", instant.strftime(pattern))
    }
}

/// Nanoseconds since the Unix epoch, UTC: the resolution of log timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub i64);

impl Nanos {
    /// Parses RFC 3339.
    pub fn parse(text: &str) -> Option<Self> {
        let instant: jiff::Timestamp = text.trim().parse().ok()?;
        i64::try_from(instant.as_nanosecond()).ok().map(Self)
    }

    /// To the microsecond below.
    pub fn micros(self) -> Micros {
        Micros(self.0.div_euclid(1000))
    }
}

impl From<Micros> for Nanos {
    fn from(micros: Micros) -> Self {
        Self(micros.0.saturating_mul(1000))
    }
}

/// Parses RFC 3339 or epoch seconds.
pub fn parse_instant(text: &str) -> Option<Micros> {
    if let Ok(seconds) = text.trim().parse::<f64>() {
        return Micros::from_seconds(seconds).ok();
    }
    Nanos::parse(text).map(Nanos::micros)
}

/// Whether `text` has the form of a time that is out of range.
pub fn is_out_of_range(text: &str) -> bool {
    let written = match text.trim().parse::<f64>() {
        Ok(seconds) => !seconds.is_nan(),
        Err(_) => is_date_time_offset(text.trim()),
    };
    written && parse_instant(text).is_none()
}

/// Whether `text` has the parts of RFC 3339. `jiff::Timestamp` ends a day before the year 9999 does.
fn is_date_time_offset(text: &str) -> bool {
    jiff::fmt::temporal::Pieces::parse(text)
        .is_ok_and(|pieces| pieces.time().is_some() && pieces.offset().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_half_to_even_and_prints_like_python() {
        assert_eq!(Micros::from_seconds(0.000_000_5).expect("in range"), Micros(0));
        assert_eq!(Micros::from_seconds(-1.5).expect("in range"), Micros(-1_500_000));
        assert_eq!(
            Micros::from_seconds(1_772_323_202.0).expect("in range").to_string(),
            "2026-03-01 00:00:02+00:00"
        );
        assert_eq!(Micros(1_772_323_202_250_000).to_string(), "2026-03-01 00:00:02.250000+00:00");
        assert!(Micros::from_seconds(1e18).is_err());
        assert!(Micros::from_seconds(f64::NAN).is_err());
    }

    #[test]
    fn instants_in_both_spellings() {
        assert_eq!(parse_instant("1772323200.5"), Some(Micros(1_772_323_200_500_000)));
        assert_eq!(parse_instant("2026-03-01T00:00:00.5Z"), Some(Micros(1_772_323_200_500_000)));
        assert_eq!(parse_instant("2026-03-01T01:00:00+01:00"), Some(Micros(1_772_323_200_000_000)));
        assert_eq!(parse_instant("yesterday"), None);
        let far = ["1e12", "-1e300", "inf", "2300-01-01T00:00:00Z", "0001-01-01T00:00:00Z"];
        let farthest = ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.5-23:00"];
        assert!(far.iter().chain(&farthest).all(|text| is_out_of_range(text)));
        let near = ["0", "NaN", "yesterday", "2026-03-01T00:00:00Z"];
        let unwritten = ["9999-12-31", "9999-12-31T23:59:59", "2026-02-30T00:00:00Z"];
        assert!(near.iter().chain(&unwritten).all(|text| !is_out_of_range(text)));
    }
}
