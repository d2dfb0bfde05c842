//! Merges the layers of settings into one [`Config`]. Each error names the source of the wrong setting.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Read},
    ops::Range,
    path::{Path, PathBuf},
};

use toml::{Spanned, de::DeTable};

use super::{
    Config, SECTIONS, Section,
    checks::{self, BrokenRule},
    error::{ConfigError, SettingSource, nearest},
};

/// The largest settings file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Variables with this prefix and `__` in their name are settings.
const PREFIX: &str = "TPUSCOPE_";

/// The sources of settings, in rising order.
#[derive(Debug, Default)]
pub struct Layers<'a> {
    /// A file's name and text.
    pub text: Option<(&'a Path, &'a str)>,
    /// The environment. Variables that are not settings are ignored.
    pub environment: Vec<(String, String)>,
    /// `section.key=value`, from `--set`.
    pub flags: &'a [String],
}

/// Loads the settings of these layers.
///
/// # Errors
/// The first wrong setting.
pub fn load(layers: &Layers<'_>) -> Result<Config, ConfigError> {
    let mut settings = Merged::default();
    if let Some((file, text)) = layers.text {
        settings = Merged::from_text(file, text)?;
    }
    for (name, value) in &layers.environment {
        let Some((section, key)) = name.strip_prefix(PREFIX).and_then(|name| name.split_once("__")) else {
            continue;
        };
        let origin = SettingSource::Variable(name.clone());
        settings.set(origin, &section.to_lowercase(), &key.to_lowercase(), value)?;
    }
    for flag in layers.flags {
        let origin = SettingSource::Flag(flag.clone());
        let Some(((section, key), value)) =
            flag.split_once('=').and_then(|(name, value)| Some((name.split_once('.')?, value)))
        else {
            return Err(ConfigError::NotASetting(origin));
        };
        settings.set(origin, section, key, value)?;
    }
    match checks::check(&settings.config) {
        Some(rule) => Err(settings.broken(rule)),
        None => Ok(settings.config),
    }
}

/// The text of `file`. `None` if it does not exist.
///
/// # Errors
/// If it cannot be read, or is too large.
pub fn read(file: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable { file: file.to_owned(), error };
    let mut text = String::new();
    let opened = match File::open(file) {
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
    config: Config,
    /// The source of each setting that is not a default.
    origins: BTreeMap<String, SettingSource>,
}

impl Merged {
    fn from_text(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source { file: file.to_owned(), text };
        let document = DeTable::parse(text).map_err(|error| source.syntax(&error))?;
        let settings = source.check_names(document.get_ref())?;
        let config: Config = toml::from_str(text).map_err(|error| source.bad_value(&error, &settings))?;
        let written = toml::from_str(text).map_err(|error| source.syntax(&error))?;
        let origins = settings.into_iter().map(|(name, span)| (name, source.origin(span.start))).collect();
        Ok(Self { written, config, origins })
    }

    fn broken(&self, rule: BrokenRule) -> ConfigError {
        let origin = rule.settings.iter().find_map(|setting| self.origins.get(*setting)).cloned();
        ConfigError::BrokenRule { origin, message: rule.message }
    }

    /// Adds a setting from outside the file. The text is read as a TOML value, or else as a string.
    fn set(
        &mut self,
        origin: SettingSource,
        section: &str,
        key: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        check_name(&origin, section, key)?;
        let as_text = toml::Value::String(value.to_owned());
        let as_value = toml::from_str::<toml::Table>(&format!("v = {value}")).ok().and_then(|mut table| {
            // More than one key means that the text has a line break.
            if table.len() == 1 { table.remove("v") } else { None }
        });
        let mut fault = None;
        for candidate in as_value.into_iter().chain([as_text]) {
            let mut written = self.written.clone();
            let table = written.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let toml::Value::Table(table) = table {
                table.insert(key.to_owned(), candidate);
            }
            match written.clone().try_into() {
                Ok(config) => {
                    (self.written, self.config) = (written, config);
                    self.origins.insert(format!("{section}.{key}"), origin);
                    return Ok(());
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        let message = fault.map(|error: toml::de::Error| first_line(error.message())).unwrap_or_default();
        Err(ConfigError::BadValue { origin, setting: format!("{section}.{key}"), message })
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

fn find(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

fn unknown_section(origin: SettingSource, name: &str) -> ConfigError {
    let nearest = nearest(name, SECTIONS.iter().map(|section| section.name));
    ConfigError::UnknownSection { origin, name: name.chars().take(60).collect(), nearest }
}

fn check_name(origin: &SettingSource, section: &str, key: &str) -> Result<(), ConfigError> {
    let Some(known) = find(section) else {
        return Err(unknown_section(origin.clone(), section));
    };
    if known.fields.contains(&key) {
        return Ok(());
    }
    // The setting may exist in another section.
    let elsewhere = || {
        let mut others = SECTIONS.iter().filter(|section| section.fields.contains(&key));
        others.next().map(|section| format!("{}.{key}", section.name))
    };
    Err(ConfigError::UnknownKey {
        origin: origin.clone(),
        section: section.to_owned(),
        key: key.chars().take(60).collect(),
        nearest: nearest(key, known.fields.iter().copied()).or_else(elsewhere),
    })
}

/// The range of each setting's value in the text.
type Spans = Vec<(String, Range<usize>)>;

struct Source<'a> {
    file: PathBuf,
    text: &'a str,
}

impl Source<'_> {
    fn origin(&self, offset: usize) -> SettingSource {
        let before = self.text.as_bytes().iter().take(offset);
        SettingSource::Line(self.file.clone(), 1 + before.filter(|byte| **byte == b'\n').count())
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let origin = self.origin(error.span().map_or(0, |span| span.start));
        ConfigError::Syntax { origin, message: first_line(error.message()) }
    }

    fn bad_value(&self, error: &toml::de::Error, settings: &Spans) -> ConfigError {
        let at = error.span().map_or(0, |span| span.start);
        let setting = settings.iter().find(|(_, span)| span.contains(&at));
        ConfigError::BadValue {
            origin: self.origin(at),
            setting: setting.map(|(name, _)| name.clone()).unwrap_or_default(),
            message: first_line(error.message()),
        }
    }

    /// Refuses the first unknown name. Returns the range of each value.
    fn check_names(&self, document: &DeTable<'_>) -> Result<Spans, ConfigError> {
        let mut sections: Vec<_> = document.iter().collect();
        sections.sort_by_key(|(name, _)| name.span().start);
        let mut spans = Spans::new();
        for (name, value) in sections {
            let origin = self.origin(name.span().start);
            let name: &str = name.get_ref();
            if find(name).is_none() {
                return Err(unknown_section(origin, name));
            }
            let Some(table) = value.get_ref().as_table() else {
                return Err(ConfigError::NotATable { origin, name: name.to_owned() });
            };
            let mut keys: Vec<(&Spanned<_>, _)> = table.iter().collect();
            keys.sort_by_key(|(key, _)| key.span().start);
            for (key, value) in keys {
                check_name(&self.origin(key.span().start), name, key.get_ref())?;
                spans.push((format!("{name}.{}", key.get_ref()), value.span()));
            }
        }
        Ok(spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::unit::Duration;

    fn from_text(text: &str) -> Result<Config, String> {
        load(&Layers { text: Some((Path::new("a.toml"), text)), ..Layers::default() })
            .map_err(|error| error.to_string())
    }

    fn from_environment(name: &str, value: &str) -> Result<Config, String> {
        let environment = vec![(name.to_owned(), value.to_owned())];
        load(&Layers { environment, ..Layers::default() }).map_err(|error| error.to_string())
    }

    #[test]
    fn unknown_names_are_named_with_line_and_suggestion() {
        assert_eq!(
            from_text("[agent]\nstop_timout = \"2s\"\n").unwrap_err(),
            "a.toml line 2: there is no setting `agent.stop_timout` (did you mean `stop_timeout`?)"
        );
        assert_eq!(
            from_text("\n[agnt]\n").unwrap_err(),
            "a.toml line 2: there is no section `agnt` (did you mean `agent`?)"
        );
        assert_eq!(
            from_text("[agent]\nhttp = \"off\"\n").unwrap_err(),
            "a.toml line 2: there is no setting `agent.http` (did you mean `api.http`?)"
        );
        assert_eq!(
            from_text("[agent]\nzzz = 1").unwrap_err(),
            "a.toml line 2: there is no setting `agent.zzz`"
        );
        assert_eq!(
            from_text("agent = 1").unwrap_err(),
            "a.toml line 1: `agent` is a section: write [agent] and its settings below"
        );
    }

    #[test]
    fn bad_values_are_named_with_line_and_setting() {
        assert_eq!(
            from_text("[agent]\n\nstop_timeout = \"2\"\n").unwrap_err(),
            "a.toml line 3: agent.stop_timeout: `2` has no unit: write ns, us, ms, s, m, h or d, as in `2s`"
        );
        assert!(
            from_text("[agent]\nstop_timeout = 5\n")
                .unwrap_err()
                .contains("agent.stop_timeout: `5` has no unit")
        );
        let remote = from_text("[api]\nhttp = \"0.0.0.0:80\"\n").unwrap_err();
        assert!(remote.starts_with("a.toml line 2: api.http: expected a loopback address"), "{remote}");
        for dir in ["", "state"] {
            let relative = from_text(&format!("[agent]\nstate_dir = \"{dir}\"\n")).unwrap_err();
            assert!(
                relative.contains(&format!("line 2: agent.state_dir: expected an absolute path, such as `/var/lib/tpuscope`, got `{dir}`")),
                "{relative}"
            );
        }
        let at = |length: usize| from_text(&format!("[api]\nsocket = \"/{}\"\n", "x".repeat(length - 1)));
        assert!(at(107).is_ok());
        assert!(
            at(108)
                .unwrap_err()
                .contains("line 2: api.socket: expected a socket path of at most 107 bytes, got 108 bytes")
        );
        let syntax = from_text("[agent]\nhost = \n").unwrap_err();
        assert!(syntax.starts_with("a.toml line 2: "), "{syntax}");
        assert!(from_text("[agent]\nhost = \"a\"\nhost = \"b\"\n").unwrap_err().contains("line 3"));
    }

    #[test]
    fn later_layers_win() {
        let flags = ["api.max_connections=3".to_owned()];
        let layers = Layers {
            text: Some((Path::new("a.toml"), "[agent]\nhost = 'file'\nstop_timeout = '1s'\n")),
            environment: vec![
                ("TPUSCOPE_AGENT__STOP_TIMEOUT".into(), "2s".into()),
                ("TPUSCOPE_API__MAX_CONNECTIONS".into(), "2".into()),
                ("TPUSCOPE_SOCKET".into(), "no setting".into()),
                ("HOME".into(), "/".into()),
            ],
            flags: &flags,
        };
        let config = load(&layers).unwrap();
        assert_eq!(config.agent.host, "file");
        assert_eq!(config.agent.stop_timeout, Duration::from_secs(2));
        assert_eq!(config.api.max_connections, 3);
    }

    #[test]
    fn variables_hold_every_kind_of_value() {
        let set = |name: &str, value: &str| from_environment(name, value).unwrap();
        assert_eq!(set("TPUSCOPE_AGENT__HOST", "web 1").agent.host, "web 1");
        // It looks like a number, but the setting is a text.
        assert_eq!(set("TPUSCOPE_AGENT__HOST", "17").agent.host, "17");
        assert_eq!(set("TPUSCOPE_API__ALLOWED_HOSTS", "['a', 'b']").api.allowed_hosts, ["a", "b"]);
        assert_eq!(set("TPUSCOPE_AGENT__HOST", "1\nx = 2").agent.host, "1\nx = 2");
    }

    #[test]
    fn faults_outside_the_file_name_their_place() {
        assert_eq!(
            from_environment("TPUSCOPE_API__MAX_CONNECTION", "1").unwrap_err(),
            "the variable TPUSCOPE_API__MAX_CONNECTION: there is no setting `api.max_connection` (did you mean \
             `max_connections`?)"
        );
        let bad = from_environment("TPUSCOPE_API__MAX_CONNECTIONS", "-1").unwrap_err();
        assert!(
            bad.starts_with("the variable TPUSCOPE_API__MAX_CONNECTIONS: api.max_connections: "),
            "{bad}"
        );
        let bad = from_environment("TPUSCOPE_AGENT__STOP_TIMEOUT", "soon").unwrap_err();
        assert!(bad.contains("expected a duration, such as `2s`, got `soon`"), "{bad}");
        let flags = ["nonsense".to_owned()];
        let error = load(&Layers { flags: &flags, ..Layers::default() }).unwrap_err().to_string();
        assert!(error.starts_with("--set nonsense: expected SECTION.KEY=VALUE"), "{error}");
    }

    #[test]
    fn a_file_is_read_within_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("big.toml");
        assert!(read(&file).unwrap().is_none());
        std::fs::write(&file, vec![b'#'; usize::try_from(MAX_FILE_BYTES).unwrap() + 1]).unwrap();
        assert!(matches!(read(&file), Err(ConfigError::TooLong { .. })));
        assert!(matches!(read(dir.path()), Err(ConfigError::Unreadable { .. })));
    }
}
