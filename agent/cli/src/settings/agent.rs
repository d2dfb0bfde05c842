//! Section `[agent]`.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::unit::Duration;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    /// Where sessions and the database are kept. One agent at a time uses it.
    #[serde(deserialize_with = "absolute")]
    pub state_dir: PathBuf,
    /// What this host is called in file names and manifests; empty: its host name.
    pub host: String,
    /// How long the agent may take to stop. What is not done by then is abandoned.
    pub stop_timeout: Duration,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/tpuscope"),
            host: String::new(),
            stop_timeout: Duration::from_secs(10),
        }
    }
}

/// A path that does not depend on where the agent is started.
fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() {
        return Ok(path);
    }
    let written = path.display();
    Err(D::Error::custom(format_args!(
        "`{written}` is no absolute path: write it from `/` on, as in `/var/lib/tpuscope`"
    )))
}
