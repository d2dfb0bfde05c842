//! Settings from file, environment and flags, in rising order. Each section is a plain struct whose doc comments become the
//! commented default file. The crates own their sections; this module composes them.
//!
//! Must never read anything but the given file and environment, and never replace a wrong value by a default: a wrong
//! setting is an error.

pub mod agent;
mod checks;
mod default;
mod error;
mod file;
mod load;
pub mod log;
mod ranges;
mod variables;

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Serialize};

pub use default::{DefaultValues, commented};
pub use error::{ConfigError, ConfigErrors, SettingSource};
pub use load::{Layers, LoadedSettings, SOCKET_VARIABLE, load, read};
pub use variables::IgnoredVariable;

/// The default settings file.
pub const FILE: &str = "/etc/tpuscope/tpuscope.toml";

/// One section, for the loader and the printer.
struct Section {
    name: &'static str,
    /// Whether it is repeated, as `[[name]]`. Then it is a setting of its own, whose name has no key.
    is_list: bool,
    docs: &'static str,
    fields: &'static [&'static str],
    field_docs: &'static [&'static str],
    /// Its defaults as TOML. For a list: those of an element, without what an element must have.
    default: fn() -> Result<toml::Table, toml::ser::Error>,
}

/// Declares [`Config`] and the table of its sections together, so that both have the same sections. A section in another
/// one has a name with a dot.
macro_rules! sections {
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $path:literal) => { $path };
    (
        $($(#[$doc:meta])* $name:ident $(in $path:literal)?: $type:ty,)*
        ; $($(#[$list_doc:meta])* $list:ident: $list_type:ty, each $each:ty,)*
    ) => {
        /// All settings.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            $($(#[$doc])* $(#[serde(rename = $path)])? pub $name: $type,)*
            $($(#[$list_doc])* pub $list: $list_type,)*
        }

        const SECTIONS: &[Section] = &[$(Section {
            name: sections!(@name $name $($path)?),
            is_list: false,
            docs: <$type as Documented>::DOCS,
            fields: <$type as DocumentedFields>::FIELD_NAMES,
            field_docs: <$type as DocumentedFields>::FIELD_DOCS,
            default: || toml::Table::try_from(<$type>::default()),
        },)* $(Section {
            name: stringify!($list),
            is_list: true,
            docs: <$each as Documented>::DOCS,
            fields: <$each as DocumentedFields>::FIELD_NAMES,
            field_docs: <$each as DocumentedFields>::FIELD_DOCS,
            default: || toml::Table::try_from(<$each>::defaults()),
        },)*];
    };
}

sections! {
    /// The daemon.
    agent: agent::Settings,
    /// The addresses on which the agent serves.
    api: server::settings::Settings,
    /// The listener for other hosts.
    api_remote in "api.remote": server::remote::settings::RemoteSettings,
    /// The log.
    log: log::Settings,
    /// The paths of the kernel's interfaces.
    paths: host::settings::paths::Paths,
    /// The sources and their intervals.
    sampler: sampling::settings::sampler::Settings,
    /// The libtpu SDK as a source.
    libtpu: sampling::settings::libtpu::Settings,
    /// Additional chip types.
    device: host::settings::device::Settings,
    /// The search for workloads.
    workload: host::settings::workload::Settings,
    /// Captures on demand.
    capture: sessions::settings::Settings,
    /// The trace of the minutes before.
    recorder: sessions::recorder::RecorderSettings,
    /// The jobs of the host over time.
    jobs: ::jobs::settings::JobSettings,
    /// What programs say of themselves.
    marks: ::marks::settings::Settings,
    /// The retention of sessions.
    store: store::settings::Settings,
    /// The hooks of Slurm.
    slurm: server::hook_users::SlurmSettings,
    /// Uploads.
    upload: store::uploads::settings::Settings,
    /// Points to Cloud Monitoring.
    export_cloud_monitoring in "export.cloud_monitoring": export::cloud_monitoring::settings::CloudMonitoringSettings,
    /// Event files for TensorBoard.
    export_tensorboard in "export.tensorboard": export::tensorboard::settings::TensorBoardSettings,
    /// Exports to a collector of OpenTelemetry.
    export_otlp in "export.otlp": export::otlp::settings::OtlpSettings,
    ;
    /// Where sessions are uploaded to.
    destination: store::destinations::Destinations, each store::destinations::Destination,
}

/// The name of a setting. A section that is a list has no keys.
pub fn setting_name(section: &str, key: &str) -> String {
    if key.is_empty() { section.to_owned() } else { format!("{section}.{key}") }
}

/// The settings of one section: keys and values. A setting without a value has `None`. A section that is a list has one
/// value, without a key.
pub type SectionValues = Vec<(&'static str, Option<toml::Value>)>;

/// The value of every setting, section by section.
///
/// # Errors
/// If TOML cannot hold a value, such as a path that is not UTF-8.
pub fn values(config: &Config) -> Result<Vec<(&'static str, SectionValues)>, toml::ser::Error> {
    let written = toml::Table::try_from(config)?;
    let section = |section: &Section| {
        let value = |field: &&'static str| {
            (*field, written.get(section.name).and_then(|values| values.get(*field)).cloned())
        };
        let list = || vec![("", written.get(section.name).cloned())];
        let values = if section.is_list { list() } else { section.fields.iter().map(value).collect() };
        (section.name, values)
    };
    Ok(SECTIONS.iter().map(section).collect())
}
