//! What a capture reports while it runs.

use std::sync::Arc;

use model::time::Timestamp;
use xprof::session::{PartEntry, SessionName};

use crate::{CaptureError, target::CaptureTarget};

/// What happens while a capture runs, by index of the target.
#[derive(Debug, Clone)]
pub enum CaptureProgress {
    /// All targets were probed. The window begins at `start`.
    Started {
        /// Name of the session to be.
        session: SessionName,
        /// The targets, including those that did not answer.
        targets: Vec<CaptureTarget>,
        /// Begin of the window.
        start: Timestamp,
    },
    /// The number of bytes of this target's answer so far.
    Received(usize, u64),
    /// This target's part is visible.
    Part(usize, Box<PartEntry>),
    /// This target gives no part.
    Failed(usize, CaptureError),
}

/// Receives the progress. Called from several tasks; must not block.
pub type ProgressListener = Arc<dyn Fn(CaptureProgress) + Send + Sync>;
