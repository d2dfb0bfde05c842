//! Where a trace goes while it is received.

use std::io::{self, Write};

use crate::{capture::StagedPart, recorder::ArrivingTrace};

/// Where a trace goes while it is received.
#[derive(Debug)]
pub enum TraceSink {
    /// A part of a session.
    Part(StagedPart),
    /// A segment of the recorder.
    Segment(ArrivingTrace),
}

impl Write for TraceSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Part(part) => part.write(bytes),
            Self::Segment(trace) => trace.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Part(part) => part.flush(),
            Self::Segment(trace) => trace.flush(),
        }
    }
}
