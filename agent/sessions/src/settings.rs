//! Section `[capture]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// Captures on demand and their limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum length of a capture.
    pub max_duration: Duration,
    /// Maximum size of the trace of one process. A larger trace is refused before it is received.
    pub max_size: Bytes,
    /// Default time limit for receiving the traces, counted from the end of the recording.
    pub timeout: Duration,
    /// Time limit for a connection to a profiler.
    pub connect_timeout: Duration,
    /// Time limit for the answer of a profiler to the first call, which checks that it is one.
    pub probe_timeout: Duration,
    /// Maximum level of each tracer, 0 to 3.
    pub max_tracer_level: u32,
    /// Advanced profiler options that callers of the agent may set. Others are refused. A name that tpuscope does not know
    /// makes that option known: it is sent as it is.
    pub advanced_options: Vec<String>,
    /// Maximum number of concurrent captures. Further ones are refused.
    pub max_captures: u16,
}

impl Default for Settings {
    fn default() -> Self {
        let options = [
            "tpu_trace_mode",
            "tpu_num_sparse_cores_to_trace",
            "tpu_num_sparse_core_tiles_to_trace",
            "tpu_num_chips_to_profile_per_task",
        ];
        Self {
            max_duration: Duration::from_secs(300),
            max_size: Bytes::mib(4095),
            timeout: Duration::from_secs(120),
            connect_timeout: Duration::from_millis(1000),
            probe_timeout: Duration::from_millis(2000),
            max_tracer_level: 3,
            advanced_options: options.map(str::to_owned).to_vec(),
            max_captures: 4,
        }
    }
}
