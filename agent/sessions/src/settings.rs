//! Section `[capture]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// Captures on demand, and what they may ask of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The longest window.
    pub max_duration: Duration,
    /// The largest trace of one process; more is refused before it is received.
    pub max_size: Bytes,
    /// How long the answer of a workload may take after the window, unless the caller says.
    pub timeout: Duration,
    /// How long a profiler may take to accept a connection.
    pub connect_timeout: Duration,
    /// How long a profiler may take to answer a harmless question before the window.
    pub probe_timeout: Duration,
    /// The highest level of each tracer.
    pub max_tracer_level: u32,
    /// The advanced profiler options that callers may set; others are refused.
    pub advanced_options: Vec<String>,
    /// Captures at a time; more are refused.
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
