//! Bindings of libtpu's three C interfaces, and a thin safe wrapper that bounds every string and count.
//!
//! [`sdk`] is the SDK table (metrics and runtime status), [`pjrt`] the PJRT header with its extensions and the
//! profiler among them, [`legacy`] the older `TpuProfiler_*` exports, [`abi`] the structs as libtpu lays them out.
//! [`version`] says before loading which libtpu it is.
//!
//! A libtpu may hang, abort, crash or lie at any call, and loading it installs signal handlers and starts
//! threads: only a process that may be lost at any moment should come here. What it must never do: call
//! `PJRT_Plugin_Initialize`, create a PJRT client, touch the libtpu lock file, or unload a libtpu whose SDK
//! was asked for. The wrapper cannot make a lying library safe to read; it keeps an honest library's
//! contract, refuses absurd sizes, and leaves the rest to the process boundary.

pub mod abi;
mod bounded;
pub mod kernel_clock;
pub mod legacy;
pub mod library;
mod maps;
pub mod pjrt;
pub mod process_exit;
pub mod sdk;
pub mod version;

pub use library::{Library, LoadError};

/// Longest text taken over from libtpu, bytes.
pub const MAX_TEXT: usize = 64 << 10;
/// Most values of one metric.
pub const MAX_VALUES: usize = 4096;
/// Longest values of one metric together, bytes.
pub const MAX_VALUES_TEXT: usize = 1 << 20;
/// Largest serialised message or trace taken over from libtpu, bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// Most PJRT extensions walked.
pub const MAX_EXTENSIONS: usize = 64;

/// Why a call into libtpu gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// libtpu's own error.
    #[error("libtpu: {message} (code {code})")]
    Status {
        /// An absl status code.
        code: i32,
        /// Its text, bounded.
        message: String,
    },
    /// This libtpu lacks the function.
    #[error("this libtpu has no {0}")]
    Missing(&'static str),
    /// libtpu said yes and gave nothing.
    #[error("libtpu returned no {0}")]
    Null(&'static str),
    /// A size beyond the limit, which a well-behaved libtpu never has.
    #[error("libtpu returned {what} of absurd size {size}")]
    Absurd {
        /// What has that size.
        what: &'static str,
        /// The size that it claimed.
        size: usize,
    },
}
