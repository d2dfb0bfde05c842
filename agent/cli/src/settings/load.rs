//! Merges the layers of settings into one [`Config`], with the source of each setting. Finds all faults, each with the
//! source of the wrong setting.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{ErrorKind, Read},
    path::Path,
};

use host::regular_file;
use model::suggestion::nearest;

use super::{
    Config, SECTIONS, Section, checks,
    error::{ConfigError, ConfigErrors, SettingSource},
    file::SettingsFile,
    setting_name,
    variables::{IgnoredVariable, PREFIX},
};

/// The largest settings file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The variable with the path of the socket. It is also that of the clients, and overrides `TPUSCOPE_API__SOCKET`.
pub const SOCKET_VARIABLE: &str = "TPUSCOPE_SOCKET";

/// The sources of settings, in rising order.
#[derive(Debug, Default)]
pub struct Layers<'a> {
    /// A file's name and text.
    pub text: Option<(&'a Path, &'a str)>,
    /// The environment. Variables that are not settings set nothing.
    pub environment: Vec<(String, String)>,
    /// `section.key=value` or, for a section that is a list, `section=value`, from `--set`.
    pub flags: &'a [String],
}

/// The settings of some layers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadedSettings {
    /// The settings.
    pub config: Config,
    /// The source of each setting that is not a default. The keys are `section.key`.
    pub sources: BTreeMap<String, SettingSource>,
    /// The variables that look like settings and are none.
    pub ignored: Vec<IgnoredVariable>,
}

/// Loads the settings of these layers.
///
/// # Errors
/// All wrong settings.
pub fn load(layers: &Layers<'_>) -> Result<LoadedSettings, ConfigErrors> {
    let mut merged = Merged::default();
    if let Some((file, text)) = layers.text {
        merged.add_file(file, text);
    }
    let (socket, others): (Vec<_>, Vec<_>) =
        layers.environment.iter().partition(|(name, _)| name == SOCKET_VARIABLE);
    for (name, value) in others.into_iter().chain(socket) {
        let named = if name == SOCKET_VARIABLE { Some("API__SOCKET") } else { name.strip_prefix(PREFIX) };
        let list = named.filter(|name| is_list(&name.to_lowercase())).map(|name| (name, ""));
        let Some((section, key)) = named.and_then(|name| name.rsplit_once("__")).or(list) else {
            merged.loaded.ignored.extend(IgnoredVariable::of(name));
            continue;
        };
        let origin = SettingSource::Variable(name.clone());
        // A section in another one: TPUSCOPE_API__REMOTE__LISTEN.
        let section = section.to_lowercase().replace("__", ".");
        merged.set(origin, &section, &key.to_lowercase(), value);
    }
    for flag in layers.flags {
        let origin = SettingSource::Flag(flag.clone());
        match flag.split_once('=').and_then(|(name, value)| Some((section_and_key(name)?, value))) {
            Some(((section, key), value)) => merged.set(origin, section, key, value),
            None => merged.faults.push(ConfigError::NotASetting(origin)),
        }
    }
    merged.check_rules();
    let Merged { faults, loaded, .. } = merged;
    if faults.is_empty() { Ok(loaded) } else { Err(ConfigErrors::new(faults, loaded.config)) }
}

/// The text of `file`. `None` if it does not exist.
///
/// # Errors
/// If it cannot be read, is too large, or is not a regular file.
pub fn read(file: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable { file: file.to_owned(), error };
    let mut text = String::new();
    let opened = match regular_file::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unreadable)?,
    };
    opened.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(ConfigError::TooLong { file: file.to_owned(), limit: MAX_FILE_BYTES });
    }
    Ok(Some(text))
}

/// The layers so far: as TOML and as [`Config`].
#[derive(Default)]
struct Merged {
    written: toml::Table,
    loaded: LoadedSettings,
    faults: Vec<ConfigError>,
}

impl Merged {
    fn add_file(&mut self, file: &Path, text: &str) {
        if let Some(SettingsFile { written, config, sources }) =
            SettingsFile::parse(file, text, &mut self.faults)
        {
            self.written = written;
            self.loaded = LoadedSettings { config, sources, ignored: Vec::new() };
        }
    }

    /// Adds a setting from outside the file. The text is read as a TOML value, or else as a string.
    fn set(&mut self, origin: SettingSource, section: &str, key: &str, value: &str) {
        if let Err(error) = check_name(&origin, section, key) {
            return self.faults.push(error);
        }
        let as_text = toml::Value::String(value.to_owned());
        let as_value = toml::from_str::<toml::Table>(&format!("v = {value}")).ok().and_then(|mut table| {
            // More than one key means that the text has a line break.
            if table.len() == 1 { table.remove("v") } else { None }
        });
        let setting = setting_name(section, key);
        let mut fault = None;
        for candidate in as_value.into_iter().chain([as_text]) {
            let mut written = self.written.clone();
            if key.is_empty() {
                written.insert(section.to_owned(), candidate);
            } else if let toml::Value::Table(table) =
                written.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()))
            {
                table.insert(key.to_owned(), candidate);
            }
            match written.clone().try_into() {
                Ok(config) => {
                    (self.written, self.loaded.config) = (written, config);
                    self.loaded.sources.insert(setting, origin);
                    return;
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        let mut messages = messages_of_list(section, key, value);
        if messages.is_empty() {
            messages.extend(fault.map(|error: toml::de::Error| first_line(error.message())));
        }
        let bad =
            |message| ConfigError::BadValue { origin: origin.clone(), setting: setting.clone(), message };
        self.faults.extend(messages.into_iter().map(bad));
    }

    /// Checks the rules between settings, except those about a setting whose value is already refused.
    fn check_rules(&mut self) {
        let refused: BTreeSet<&str> = self.faults.iter().filter_map(ConfigError::setting).collect();
        let unread = self.faults.iter().any(|fault| matches!(fault, ConfigError::Syntax { .. }));
        if unread {
            return;
        }
        let broken = checks::broken_rules(&self.loaded.config).into_iter();
        let broken = broken.filter(|rule| !rule.settings.iter().any(|setting| refused.contains(setting)));
        let faults: Vec<_> = broken
            .map(|rule| {
                let sources = &self.loaded.sources;
                let origin = rule.settings.iter().find_map(|setting| sources.get(*setting)).cloned();
                ConfigError::BrokenRule { origin, message: rule.message }
            })
            .collect();
        self.faults.extend(faults);
    }
}

/// The faults of all elements, if the value is a list. Otherwise none.
fn messages_of_list(section: &str, key: &str, value: &str) -> Vec<String> {
    if !value.trim_start().starts_with('[') {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let text = match key {
        "" => format!("{section} = {value}\n"),
        key => format!("[{section}]\n{key} = {value}\n"),
    };
    SettingsFile::parse(Path::new(key), &text, &mut faults);
    let message = |fault| match fault {
        ConfigError::BadValue { message, .. } => Some(message),
        _ => None,
    };
    faults.into_iter().filter_map(message).collect()
}

/// The first line of a message of the parser, with words for the types of numbers.
pub(super) fn first_line(message: &str) -> String {
    const TYPES: [(&str, &str); 5] = [
        ("expected u8", "expected a whole number from 0 to 255"),
        ("expected a sequence", "expected a list, such as [\"a\", \"b\"]"),
        ("expected u16", "expected a whole number from 0 to 65535"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number of 0 or more"),
    ];
    let line = message.lines().next().unwrap_or_default();
    let worded = TYPES.iter().find_map(|(name, words)| Some(format!("{}{words}", line.strip_suffix(name)?)));
    worded.unwrap_or_else(|| line.to_owned())
}

pub(super) fn find(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

/// The section and the key in the name of a setting.
fn section_and_key(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').or_else(|| is_list(name).then_some((name, "")))
}

fn is_list(name: &str) -> bool {
    find(name).is_some_and(|section| section.is_list)
}

pub(super) fn unknown_section(origin: SettingSource, name: &str) -> ConfigError {
    let nearest = nearest(name, SECTIONS.iter().map(|section| section.name)).map(str::to_owned);
    ConfigError::UnknownSection { origin, name: name.chars().take(60).collect(), nearest }
}

pub(super) fn check_name(origin: &SettingSource, section: &str, key: &str) -> Result<(), ConfigError> {
    let Some(known) = find(section) else {
        return Err(unknown_section(origin.clone(), section));
    };
    if known.is_list && !key.is_empty() {
        return Err(ConfigError::NotAList { origin: origin.clone(), name: section.to_owned() });
    }
    if known.is_list || known.fields.contains(&key) {
        return Ok(());
    }
    // The setting may exist in another section. A name that several have says nothing.
    let elsewhere = || {
        let has = |section: &&Section| !section.is_list && section.fields.contains(&key);
        let others: Vec<_> = SECTIONS.iter().filter(has).collect();
        let [only] = others[..] else { return None };
        Some(format!("{}.{key}", only.name))
    };
    Err(ConfigError::UnknownKey {
        origin: origin.clone(),
        section: section.to_owned(),
        key: key.chars().take(60).collect(),
        nearest: nearest(key, known.fields.iter().copied()).map(str::to_owned).or_else(elsewhere),
    })
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
