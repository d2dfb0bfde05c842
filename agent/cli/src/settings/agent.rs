//! Settings section `[agent]`.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::unit::Duration;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// The daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Directory for sessions and other state. Only one agent can use it.
    #[serde(deserialize_with = "absolute")]
    pub state_dir: PathBuf,
    /// Name of this host in file names and manifests. Empty: the host name of the system.
    pub host: String,
    /// Time limit for a stop. Unfinished work is aborted after it.
    pub stop_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/tpuscope"),
            host: String::new(),
            stop_timeout: Duration::from_secs(10),
        }
    }
}

/// Accepts absolute paths only: a relative one would depend on the working directory of the agent.
fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() {
        return Ok(path);
    }
    let path = path.display();
    Err(D::Error::custom(format_args!(
        "expected an absolute path, such as `/var/lib/tpuscope`, got `{path}`"
    )))
}
