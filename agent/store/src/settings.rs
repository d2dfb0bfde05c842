//! Section `[store]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// What is kept of the sessions in the state directory. The oldest go first; nothing goes unless a limit is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Sessions may take so much in all; "0B": no limit.
    pub max_size: Bytes,
    /// Sessions are kept so long; "0s": for ever.
    pub max_age: Duration,
}
