//! Section `[marks]`.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::{
    absolute_path,
    unit::{Bytes, Duration},
};
use serde::{Deserialize, Serialize};

/// What programs say of themselves: steps, data loading, checkpoints. `tpuscope goodput --job` answers from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Path of the socket for marks. Empty: `marks.sock` beside an `api.socket` that is named `agent.sock`, and `NAME.marks.sock`
    /// beside one with another name. It has the mode and the group of `api.socket`.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub socket: PathBuf,
    /// Marks per second that one user may send, on average. More wait in the program, which drops and counts what its
    /// buffer has no room for.
    pub max_rate: u32,
    /// A job without a new mark for this long is forgotten.
    pub keep: Duration,
    /// Maximum size of all marks on this host. The user with the most marks makes room first. "0B": no marks are taken.
    pub max_size: Bytes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            max_rate: 2000,
            keep: Duration::from_secs(30 * 24 * 3600),
            max_size: Bytes::mib(256),
        }
    }
}
