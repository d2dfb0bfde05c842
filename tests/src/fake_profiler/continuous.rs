//! The calls of continuous profiling, on a server that may lack some of them or answer them badly.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use h2::server::SendResponse;
use prost::Message;
use proto::tensorflow::{GetSnapshotRequest, ProfileRequest, StopContinuousProfilingRequest};

use super::{Fault, Mode, Seen, answer, framed, head, ok, status};

/// What a server lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingMethods {
    /// Nothing.
    #[default]
    None,
    /// `GetSnapshot` has its older name.
    NewName,
    /// It starts, and has no method to stop.
    Stop,
    /// It says that it can stop, and cannot.
    StopWhenAsked,
    /// All of them.
    All,
}

/// A server with continuous profiling.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuousFake {
    /// What it lacks.
    pub missing: MissingMethods,
    /// How it answers a start; its session is open all the same if it does not answer.
    pub start: Mode,
    /// How it answers a snapshot.
    pub snapshot: Mode,
}

impl Default for ContinuousFake {
    /// A server that works.
    fn default() -> Self {
        Self { missing: MissingMethods::None, start: Mode::NoBytes, snapshot: Mode::Trace(super::trace()) }
    }
}

impl From<ContinuousFake> for Mode {
    fn from(fake: ContinuousFake) -> Self {
        Self::Continuous(Box::new(fake))
    }
}

/// Answers one call.
pub(super) async fn call(
    fake: &ContinuousFake,
    method: &str,
    message: &[u8],
    mut respond: SendResponse<Bytes>,
    seen: &Arc<Mutex<Seen>>,
) -> Result<(), Fault> {
    let missing = match method {
        "GetSnapshot" => matches!(fake.missing, MissingMethods::NewName | MissingMethods::All),
        "GetSnapShot" => fake.missing != MissingMethods::NewName,
        "StopContinuousProfiling" => matches!(fake.missing, MissingMethods::Stop | MissingMethods::All),
        "StartContinuousProfiling" => fake.missing == MissingMethods::All,
        _ => false,
    };
    if missing {
        return status(&mut respond, 12, "");
    }
    // As gRPC does: a message that cannot be read never comes to the method.
    let readable = match method {
        "StopContinuousProfiling" => StopContinuousProfilingRequest::decode(message).is_ok(),
        "GetSnapshot" | "GetSnapShot" => GetSnapshotRequest::decode(message).is_ok(),
        _ => ProfileRequest::decode(message).is_ok(),
    };
    if !readable {
        return status(&mut respond, 13, "Failed to parse the request");
    }
    let note = |change: fn(&mut Seen)| change(&mut seen.lock().expect("no holder panics"));
    let is_open = seen.lock().expect("no holder panics").is_open;
    match method {
        "StartContinuousProfiling" if is_open => {
            status(&mut respond, 6, "Continuous profiling is already running")
        }
        "StartContinuousProfiling" => {
            note(|seen| (seen.is_open, seen.starts) = (true, seen.starts + 1));
            reply(&fake.start, respond).await
        }
        "StopContinuousProfiling" => {
            note(|seen| seen.stops += 1);
            if fake.missing == MissingMethods::StopWhenAsked {
                return status(&mut respond, 12, "");
            }
            if !is_open {
                return status(&mut respond, 5, "Continuous profiling is not running");
            }
            note(|seen| seen.is_open = false);
            reply(&Mode::NoBytes, respond).await
        }
        "GetSnapshot" | "GetSnapShot" => {
            note(|seen| seen.snapshots += 1);
            if !is_open {
                return status(&mut respond, 5, "Continuous profiling is not running");
            }
            reply(&fake.snapshot, respond).await
        }
        _ if is_open => status(&mut respond, 13, "Another profiling session active."),
        _ => reply(&Mode::Empty, respond).await,
    }
}

async fn reply(mode: &Mode, mut respond: SendResponse<Bytes>) -> Result<(), Fault> {
    match mode {
        Mode::Silent => {
            let _ = poll_fn(|context| respond.poll_reset(context)).await;
            return Ok(());
        }
        Mode::Reset => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
        Mode::Unserializable => return status(&mut respond, 13, "Failed to serialize message"),
        _ => {}
    }
    let mut body = respond.send_response(head(), false)?;
    if *mode == Mode::NoBytes {
        body.send_data(framed(&[]), false)?;
        return ok(&mut body);
    }
    answer(&mut body, mode).await?;
    ok(&mut body)
}
