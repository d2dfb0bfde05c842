//! Settings: file, environment, flags, in rising order. One module per section, each a plain struct whose doc
//! comments become the commented default file.
//!
//! Must never read anything but the file and the environment that it is handed, and never start with a value
//! that it does not understand: a wrong setting is an error, not a default.

pub mod agent;
mod checks;
mod default;
mod error;
mod load;
pub mod log;

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Serialize};

pub use default::commented;
pub use error::{ConfigError, Place};
pub use load::{Layers, load, read};

/// Where the agent looks for its settings when nobody says.
pub const FILE: &str = "/etc/tpuscope/tpuscope.toml";

/// One section, as far as the loader and the printer need to know it.
struct Section {
    name: &'static str,
    docs: &'static str,
    fields: &'static [&'static str],
    field_docs: &'static [&'static str],
    /// Its defaults, as they stand in a file.
    default: fn() -> Result<toml::Table, toml::ser::Error>,
}

/// Declares [`Config`] and the table of its sections together: neither can lack one that the other has.
macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// All settings.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[$doc])* pub $name: $type,)*
        }

        const SECTIONS: &[Section] = &[$(Section {
            name: stringify!($name),
            docs: <$type as Documented>::DOCS,
            fields: <$type as DocumentedFields>::FIELD_NAMES,
            field_docs: <$type as DocumentedFields>::FIELD_DOCS,
            default: || toml::Table::try_from(<$type>::default()),
        },)*];
    };
}

sections! {
    /// The daemon itself.
    agent: agent::Agent,
    /// Who is served, and where.
    api: server::settings::Api,
    /// What is logged.
    log: log::Log,
    /// Where the kernel's interfaces are.
    paths: host::settings::paths::Paths,
    /// What is measured, and how often.
    sampler: sampling::settings::sampler::Settings,
    /// The libtpu SDK as a source.
    libtpu: sampling::settings::libtpu::Settings,
    /// Chips that this release does not know.
    device: host::settings::device::Settings,
    /// Whom to look for.
    workload: host::settings::workload::Settings,
    /// Captures on demand.
    capture: sessions::settings::Capture,
    /// What is kept of the sessions.
    store: store::settings::Store,
}
