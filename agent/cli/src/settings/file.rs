//! A settings file: its names and values with their lines. Finds all its faults.
//!
//! Must never report a fault twice: a name or value with a fault is left out of the rest of the check.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
};

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, Deserializer},
};

use super::{
    Config, SECTIONS,
    error::{ConfigError, SettingSource},
    load::{check_name, find, first_line, unknown_section},
    setting_name,
};

/// The settings of a file.
pub(super) struct SettingsFile {
    /// As TOML, without the settings that have a fault.
    pub(super) written: toml::Table,
    /// The same, with the defaults.
    pub(super) config: Config,
    /// The line of each of them.
    pub(super) sources: BTreeMap<String, SettingSource>,
}

/// A section and a key. Without a key: the section itself.
type Name = (String, String);

impl SettingsFile {
    /// Reads the text of `file`. Adds all faults to `faults`. `None` if the text is not TOML.
    pub(super) fn parse(file: &Path, text: &str, faults: &mut Vec<ConfigError>) -> Option<Self> {
        let lines = Lines { file, text };
        let (mut document, syntax) = DeTable::parse_recoverable(text);
        if !syntax.is_empty() {
            faults.extend(lines.first_of_each_line(&syntax));
            return None;
        }
        lift_inner_sections(document.get_mut());
        let mut values = BTreeMap::new();
        let mut refused = Vec::new();
        lines.check_names(document.get_ref(), &mut values, &mut refused, faults);
        for name in &refused {
            remove(&mut document, name);
        }
        let mut damaged = BTreeSet::new();
        let config = loop {
            let error = match Config::deserialize(Deserializer::from(document.clone())) {
                Ok(config) => break config,
                Err(error) => error,
            };
            let at = error.span().map_or(0, |span| span.start);
            let Some(name) = setting_at(document.get_ref(), at) else {
                faults.push(lines.syntax(&error));
                return None;
            };
            let mut fault = true;
            match element(&mut document, &name, at) {
                Some(element) => fault = element.remove_fault(at, &mut damaged),
                None => {
                    values.remove(&name);
                    remove(&mut document, &name);
                }
            }
            if fault {
                let (section, key) = name;
                let (setting, message) = (setting_name(&section, &key), first_line(error.message()));
                faults.push(ConfigError::BadValue { origin: lines.origin(at), setting, message });
            }
        };
        let written = toml::Table::deserialize(Deserializer::from(document));
        let written = written.map_err(|error| faults.push(lines.syntax(&error))).ok()?;
        let sources = values.into_iter();
        let sources =
            sources.map(|((section, key), span)| (setting_name(&section, &key), lines.origin(span.start)));
        Some(Self { written, config, sources: sources.collect() })
    }
}

/// Makes a section of its own of each section that is in another one: `[api.remote]` becomes `["api.remote"]`. What is in a
/// table that is no section itself, such as `[export]`, becomes one too, also if there is none of this name.
fn lift_inner_sections(document: &mut DeTable<'_>) {
    for section in SECTIONS {
        let Some((outer, inner)) = section.name.split_once('.') else { continue };
        if find(outer).is_none() {
            lift_all(document, outer);
            continue;
        }
        let Some(DeValue::Table(table)) = document.get_mut(outer).map(Spanned::get_mut) else { continue };
        if let Some((key, value)) = table.remove_entry(inner) {
            document.insert(Spanned::new(key.span(), Cow::Borrowed(section.name)), value);
        }
    }
}

/// Makes a section of its own of each one in the table `outer`.
fn lift_all(document: &mut DeTable<'_>, outer: &str) {
    // What is no table stays, and is refused as an unknown section.
    if !document.get(outer).is_some_and(|value| value.get_ref().is_table()) {
        return;
    }
    let Some(DeValue::Table(table)) = document.remove(outer).map(Spanned::into_inner) else { return };
    for (key, value) in table {
        let name = Cow::Owned(setting_name(outer, key.get_ref()));
        document.insert(Spanned::new(key.span(), name), value);
    }
}

/// Removes a setting, or with an empty key a section.
fn remove(document: &mut Spanned<DeTable<'_>>, (section, key): &Name) {
    if key.is_empty() {
        document.get_mut().remove(section.as_str());
    } else if let Some(DeValue::Table(table)) =
        document.get_mut().get_mut(section.as_str()).map(Spanned::get_mut)
    {
        table.remove(key.as_str());
    }
}

/// The setting whose value has this offset.
fn setting_at(document: &DeTable<'_>, at: usize) -> Option<Name> {
    document.iter().find_map(|(section, value)| {
        if value.get_ref().as_array().is_some() && contains(value, at) {
            return Some((section.get_ref().to_string(), String::new()));
        }
        let (key, _) = value.get_ref().as_table()?.iter().find(|(_, value)| contains(value, at))?;
        Some((section.get_ref().to_string(), key.get_ref().to_string()))
    })
}

/// Whether an offset is in a value or in a part of it. The parts of `[[list]]` are outside its own range.
fn contains(value: &Spanned<DeValue<'_>>, at: usize) -> bool {
    value.span().contains(&at)
        || match value.get_ref() {
            DeValue::Array(list) => list.iter().any(|element| contains(element, at)),
            DeValue::Table(table) => {
                table.iter().any(|(key, value)| key.span().contains(&at) || contains(value, at))
            }
            _ => false,
        }
}

fn is_list_of_tables(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|element| element.get_ref().is_table()))
}

/// The range of a list, or of its first element: that of `[[list]]` is not its own.
fn first_part(value: &Spanned<DeValue<'_>>) -> Range<usize> {
    let first = value.get_ref().as_array().and_then(|list| list.iter().next());
    first.map_or_else(|| value.span(), Spanned::span)
}

/// One element of a list.
struct ListElement<'a, 'i> {
    list: &'a mut DeArray<'i>,
    index: usize,
}

/// The element of a setting at an offset of the text, if the setting is a list and has one there.
fn element<'a, 'i>(
    document: &'a mut Spanned<DeTable<'i>>,
    (section, key): &Name,
    at: usize,
) -> Option<ListElement<'a, 'i>> {
    let mut value = document.get_mut().get_mut(section.as_str())?.get_mut();
    if !key.is_empty() {
        let DeValue::Table(table) = value else { return None };
        value = table.get_mut(key.as_str())?.get_mut();
    }
    let DeValue::Array(list) = value else { return None };
    let index = list.iter().position(|element| contains(element, at))?;
    Some(ListElement { list, index })
}

impl ListElement<'_, '_> {
    /// Removes what is wrong at an offset: a key of the element, else the element. Whether that is a fault, rather than what
    /// follows from a key that was removed before. `damaged` has the offsets of the elements without such a key.
    fn remove_fault(self, at: usize, damaged: &mut BTreeSet<usize>) -> bool {
        let element = &mut (**self.list)[self.index];
        let start = element.span().start;
        if let DeValue::Table(table) = element.get_mut() {
            let is_wrong = |key: &Spanned<_>, value: &Spanned<DeValue<'_>>| {
                key.span().contains(&at) || contains(value, at)
            };
            let wrong = table.iter().find(|(key, value)| is_wrong(key, value));
            if let Some(key) = wrong.map(|(key, _)| key.get_ref().to_string()) {
                table.remove(key.as_str());
                damaged.insert(start);
                return true;
            }
        }
        let elements = std::mem::replace(self.list, DeArray::new()).into_iter().enumerate();
        *self.list = elements.filter(|(index, _)| *index != self.index).map(|(_, element)| element).collect();
        !damaged.contains(&start)
    }
}

/// The text with its lines.
struct Lines<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    fn origin(&self, offset: usize) -> SettingSource {
        let before = self.text.as_bytes().iter().take(offset);
        SettingSource::Line(self.file.to_owned(), 1 + before.filter(|byte| **byte == b'\n').count())
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let origin = self.origin(error.span().map_or(0, |span| span.start));
        let mut message = first_line(error.message());
        // The parser does not say which one.
        if let Some(key) = error.span().and_then(|span| self.text.get(span))
            && message == "duplicate key"
        {
            message = format!("{message} `{}`", first_line(key));
        }
        ConfigError::Syntax { origin, message }
    }

    /// The first error of each line: the parser reports what follows from it too.
    fn first_of_each_line(&self, errors: &[toml::de::Error]) -> Vec<ConfigError> {
        let mut faults: Vec<ConfigError> = errors.iter().map(|error| self.syntax(error)).collect();
        faults.dedup_by(|next, first| matches!(
            (next, first),
            (ConfigError::Syntax { origin: next, .. }, ConfigError::Syntax { origin: first, .. }) if next == first
        ));
        faults
    }

    /// Finds the range of each value, and the unknown names.
    fn check_names(
        &self,
        document: &DeTable<'_>,
        values: &mut BTreeMap<Name, Range<usize>>,
        refused: &mut Vec<Name>,
        faults: &mut Vec<ConfigError>,
    ) {
        let mut sections: Vec<_> = document.iter().collect();
        sections.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in sections {
            let origin = self.origin(name.span().start);
            let name: &str = name.get_ref();
            if find(name).is_some_and(|section| section.is_list) {
                let setting = (name.to_owned(), String::new());
                if is_list_of_tables(value.get_ref()) {
                    values.insert(setting, first_part(value));
                } else {
                    refused.push(setting);
                    faults.push(ConfigError::NotAList { origin, name: name.to_owned() });
                }
                continue;
            }
            let table = value.get_ref().as_table();
            if find(name).is_none() || table.is_none() {
                refused.push((name.to_owned(), String::new()));
            }
            let Some(table) = table.filter(|_| find(name).is_some()) else {
                faults.push(match find(name) {
                    None => unknown_section(origin, name),
                    Some(_) => ConfigError::NotATable { origin, name: name.to_owned() },
                });
                continue;
            };
            let mut keys: Vec<(&Spanned<_>, _)> = table.iter().collect();
            keys.sort_by_key(|(key, _)| key.span().start);
            for (key, value) in keys {
                let setting = (name.to_owned(), key.get_ref().to_string());
                match check_name(&self.origin(key.span().start), name, key.get_ref()) {
                    Ok(()) => {
                        values.insert(setting, value.span());
                    }
                    Err(error) => {
                        faults.push(error);
                        refused.push(setting);
                    }
                }
            }
        }
    }
}
