//! The wire of the marks socket: packets of text, which keep their bounds on the socket (SOCK_SEQPACKET).
//!
//! ```text
//! M1 RECORDER NUMBER      from a program: marks of this recorder; the first has this number, the next ones follow
//! NANOSECONDS {…}         one line for each
//!
//! A1 NUMBER               from the agent: all marks up to this number are stored, or refused
//! R1 COUNT REASON         so many marks of a packet were refused
//! E1 REASON               the agent closes the connection
//! ```
//!
//! docs/python.md describes it for clients. Must never allocate for what a packet only claims.

use std::fmt;

use thiserror::Error;

use crate::mark_line::MarkFault;

/// The largest packet in bytes.
pub const PACKET_BYTES: usize = 32 << 10;
/// The most marks of a packet.
pub const PACKET_MARKS: usize = 512;
/// The longest id of a recorder in bytes.
const RECORDER_BYTES: usize = 64;

/// The id of a recorder: random, and renewed after a fork.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecorderId(String);

impl RecorderId {
    /// Checks an id.
    ///
    /// # Errors
    /// If it is empty, too long, or has other characters than small letters, digits and `-`.
    pub fn parse(text: &str) -> Result<Self, PacketError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if (1..=RECORDER_BYTES).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(PacketError::Recorder)
        }
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Why a packet cannot be used. The connection is closed after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PacketError {
    /// It is larger than [`PACKET_BYTES`].
    #[error("a packet has at most {PACKET_BYTES} bytes")]
    TooLarge,
    /// It has more marks than [`PACKET_MARKS`].
    #[error("a packet has at most {PACKET_MARKS} marks")]
    TooManyMarks,
    /// It does not begin as this version's do.
    #[error("a packet begins with a line `M1 RECORDER NUMBER`")]
    Header,
    /// The id of the recorder is no [`RecorderId`].
    #[error("the id of a recorder has 1 to {RECORDER_BYTES} small letters, digits or `-`")]
    Recorder,
    /// The number is 0, no number, or beyond what can be counted.
    #[error("the number of a mark is from 1 to 2^63 - 1")]
    Number,
    /// A connection has one recorder.
    #[error("the connection is that of another recorder")]
    OtherRecorder,
}

/// Marks as they arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The recorder.
    pub recorder: RecorderId,
    /// The number of the first mark.
    pub first: u64,
    lines: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Decodes the header of a packet and checks its bounds.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        if bytes.len() > PACKET_BYTES {
            return Err(PacketError::TooLarge);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(PacketError::Header)?;
        let header = std::str::from_utf8(&bytes[..end]).map_err(|_| PacketError::Header)?;
        let words = header.strip_prefix("M1 ").and_then(|words| words.split_once(' '));
        let (recorder, number) = words.ok_or(PacketError::Header)?;
        let recorder = RecorderId::parse(recorder)?;
        let lines = &bytes[end + 1..];
        let further = lines.iter().filter(|byte| **byte == b'\n').count();
        if further >= PACKET_MARKS {
            return Err(PacketError::TooManyMarks);
        }
        let first = number_of(number, further).ok_or(PacketError::Number)?;
        Ok(Self { recorder, first, lines })
    }

    /// The lines of its marks, at least one.
    pub fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        self.lines.split(|byte| *byte == b'\n')
    }
}

/// A number after which `further` ones can be counted.
fn number_of(text: &str, further: usize) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = text.parse().ok().filter(|number| digits && *number > 0)?;
    let last = number.checked_add(u64::try_from(further).ok()?)?;
    i64::try_from(last).is_ok().then_some(number)
}

/// What the agent says to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentAnswer {
    /// All marks up to this number are stored or refused.
    Stored(u64),
    /// So many marks of a packet were refused.
    Refused(usize, MarkFault),
    /// The packet cannot be used; the connection is closed.
    Unusable(PacketError),
    /// The user has as many connections as one user may have.
    NoConnection,
    /// The agent cannot store now; the connection is closed, and the program comes again later.
    NotStored,
}

impl fmt::Display for AgentAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored(number) => write!(f, "A1 {number}"),
            Self::Refused(count, fault) => write!(f, "R1 {count} {fault}"),
            Self::Unusable(error) => write!(f, "E1 {error}"),
            Self::NoConnection => f.write_str(
                "this user has as many connections for marks as one user may: of each job one process should mark",
            ),
            Self::NotStored => f.write_str("E1 the agent cannot store marks now"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packet_has_a_recorder_a_number_and_lines() {
        let packet = Packet::parse(b"M1 0af-7 9223372036854775806\n5 {}\n6 {\"a\":1}").unwrap();
        assert_eq!((packet.recorder.clone().into_string().as_str(), packet.first), ("0af-7", (1 << 63) - 2));
        assert_eq!(packet.lines().collect::<Vec<_>>(), [&b"5 {}"[..], b"6 {\"a\":1}"]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let many = format!("M1 r 1\n{}", "\n".repeat(PACKET_MARKS));
        let large = format!("M1 r 1\n{}", "x".repeat(PACKET_BYTES));
        let long = format!("M1 {} 1\nx", "a".repeat(65));
        for (bytes, error) in [
            (&b""[..], PacketError::Header),
            (b"M1 r 1", PacketError::Header),
            (b"M2 r 1\nx", PacketError::Header),
            (b"M1 r\nx", PacketError::Header),
            (b"M1 \xff 1\nx", PacketError::Header),
            (b"M1  1\nx", PacketError::Recorder),
            (b"M1 R 1\nx", PacketError::Recorder),
            (long.as_bytes(), PacketError::Recorder),
            (b"M1 r 0\nx", PacketError::Number),
            (b"M1 r -1\nx", PacketError::Number),
            (b"M1 r +1\nx", PacketError::Number),
            (b"M1 r 1.5\nx", PacketError::Number),
            (b"M1 r \nx", PacketError::Number),
            (b"M1 r 9223372036854775808\nx", PacketError::Number),
            (b"M1 r 9223372036854775807\nx\ny", PacketError::Number),
            (b"M1 r 99999999999999999999\nx", PacketError::Number),
            (many.as_bytes(), PacketError::TooManyMarks),
            (large.as_bytes(), PacketError::TooLarge),
        ] {
            assert_eq!(Packet::parse(bytes), Err(error), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn answers_are_one_line() {
        let answers = [
            AgentAnswer::Stored(7),
            AgentAnswer::Refused(2, MarkFault::NoTime),
            AgentAnswer::Unusable(PacketError::Number),
            AgentAnswer::NoConnection,
            AgentAnswer::NotStored,
        ];
        let texts = answers.map(|answer| answer.to_string());
        assert!(texts.iter().all(|text| !text.contains('\n') && text.len() < 200), "{texts:?}");
        assert_eq!(texts[0], "A1 7");
        assert!(texts[1].starts_with("R1 2 "));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let header = [b"M1 r 5\n", &bytes[..]].concat();
            for bytes in [&bytes, &header] {
                if let Ok(packet) = Packet::parse(bytes) {
                    prop_assert!(packet.first > 0 && (1..=PACKET_MARKS).contains(&packet.lines().count()));
                }
            }
        }
    }
}
