//! The progress and the result of a capture as messages, for a caller that may be slow.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use proto::tpuscope::v1::{
    CaptureEvent, CaptureFinished, CaptureStarted, CaptureTarget, PartSummary, TargetEvent, capture_event,
    target_event,
};
use sessions::{
    CaptureError,
    capture::{CaptureProgress, ProgressListener},
    capture_runner::StoredCapture,
    target,
};
use tokio::{sync::mpsc, time::Instant};
use tonic::Status;
use xprof::session::PartEntry;

use super::{grpc_sessions, protocol, session_messages, upload_messages};

/// Events that wait for a slow reader. Byte counts are dropped first.
pub(crate) const EVENT_QUEUE: usize = 1024;
/// The shortest time between two byte counts of one target.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Sends the progress to the caller, each event in the message that `wrap` makes of it. Never waits.
pub(crate) fn listener<M: Send + 'static>(
    events: mpsc::Sender<Result<M, Status>>,
    wrap: impl Fn(CaptureEvent) -> M + Send + Sync + 'static,
) -> ProgressListener {
    let sent: Mutex<BTreeMap<usize, Instant>> = Mutex::default();
    Arc::new(move |event| {
        if let CaptureProgress::Received(index, _) = event {
            let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = sent.get(&index).is_some_and(|at| at.elapsed() < PROGRESS_INTERVAL);
            if recent || events.capacity() < EVENT_QUEUE / 2 {
                return;
            }
            sent.insert(index, Instant::now());
        }
        // Full or closed: the caller does not read. The capture goes on.
        let _ = events.try_send(Ok(wrap(message(event))));
    })
}

fn message(event: CaptureProgress) -> CaptureEvent {
    let of = |index: usize, event| {
        capture_event::Event::Target(TargetEvent {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            event: Some(event),
        })
    };
    let event = match event {
        CaptureProgress::Started { session, targets, start } => {
            capture_event::Event::Started(CaptureStarted {
                peer: Some(protocol::agent()),
                session: session.to_string(),
                targets: targets.iter().zip(0..).map(|(target, index)| of_target(target, index)).collect(),
                start_unix_ns: start.0,
            })
        }
        CaptureProgress::Received(index, bytes) => of(index, target_event::Event::ReceivedBytes(bytes)),
        CaptureProgress::Part(index, entry) => of(index, target_event::Event::Part(part(*entry))),
        CaptureProgress::Failed(index, error) => {
            of(index, target_event::Event::Failed(session_messages::failure(&error)))
        }
    };
    CaptureEvent { event: Some(event) }
}

/// A target, by its index, as a message.
pub(crate) fn of_target(target: &target::CaptureTarget, index: u32) -> CaptureTarget {
    CaptureTarget {
        index,
        address: target.at.to_string(),
        pid: target.process.map_or(0, |process| process.pid),
        command: target.command.clone(),
    }
}

fn part(entry: PartEntry) -> PartSummary {
    PartSummary {
        file: entry.file,
        bytes: entry.size,
        planes: entry.planes,
        events: entry.events,
        warnings: entry.warnings,
    }
}

/// The last event.
pub(crate) fn finished(result: Result<StoredCapture, CaptureError>) -> CaptureEvent {
    CaptureEvent { event: Some(capture_event::Event::Finished(outcome(result))) }
}

/// How a capture or a snapshot ended.
pub(crate) fn outcome(result: Result<StoredCapture, CaptureError>) -> CaptureFinished {
    match result {
        Ok(StoredCapture { manifest, failures, stored, uploads }) => {
            let failures: Vec<_> = failures.iter().map(session_messages::failure).collect();
            CaptureFinished {
                session: Some(grpc_sessions::summary(&stored)),
                failure: failures.first().cloned(),
                manifest: Some(session_messages::manifest(manifest)),
                failures,
                uploads: uploads.iter().map(upload_messages::status).collect(),
            }
        }
        Err(error) => {
            CaptureFinished { failure: Some(session_messages::failure(&error)), ..Default::default() }
        }
    }
}
