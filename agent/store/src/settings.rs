//! Section `[store]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// Retention of the sessions in the state directory. The oldest sessions are removed first. Without limits none is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum size of all sessions. "0B": no limit.
    pub max_size: Bytes,
    /// Maximum age of a session. "0s": no limit.
    pub max_age: Duration,
}
