//! The default settings file: every setting with its default, below the doc comment of its field.

use std::fmt::Write;

use super::{SECTIONS, Section};

/// How the default file has its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValues {
    /// In force.
    Set,
    /// Behind a `#` without a space: a later version's defaults apply.
    CommentedOut,
}

const HEAD: &str = "\
# All settings of tpuscope with their defaults.
#
# A setting can also come from the environment variable TPUSCOPE_<SECTION>__<KEY>, or from the flag
# --set <section>.<key>=<value>. A flag overrides the environment, and the environment overrides this file.
# Durations and sizes need a unit: 500ms, 2s, 1h; 64KiB, 8MiB.
";

const UNSET: &str = "\
#
# A line that begins with # and no space is a setting with its default. Remove the # to set it: what is not set has the
# default of the version that runs.
";

/// The text of the default file.
pub fn commented(values: DefaultValues) -> String {
    let mut text = HEAD.to_owned();
    if values == DefaultValues::CommentedOut {
        text.push_str(UNSET);
    }
    for section in SECTIONS {
        print(section, values, &mut text);
    }
    text
}

fn print(section: &Section, values: DefaultValues, text: &mut String) {
    let defaults = (section.default)().expect("a section's defaults are plain values, which TOML can hold");
    text.push('\n');
    comment(section.docs, text);
    // Writing to a String cannot fail. A repeated section is commented out: an empty one would be one more.
    let _ = match section.is_list {
        true => writeln!(text, "#[[{}]]", section.name),
        false => writeln!(text, "[{}]", section.name),
    };
    let unset = if section.is_list || values == DefaultValues::CommentedOut { "#" } else { "" };
    for (field, docs) in section.fields.iter().zip(section.field_docs) {
        comment(docs, text);
        let _ = match defaults.get(*field) {
            Some(value) => writeln!(text, "{unset}{field} = {value}"),
            None => writeln!(text, "# {field} = (not set)"),
        };
    }
}

fn comment(docs: &str, text: &mut String) {
    for line in docs.lines() {
        text.push_str(if line.trim().is_empty() { "#" } else { "# " });
        text.push_str(line.trim());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Layers, load};
    use super::*;

    #[test]
    fn the_default_file_parses_back_to_the_defaults() {
        for values in [DefaultValues::Set, DefaultValues::CommentedOut] {
            let text = commented(values);
            let layers = Layers { text: Some(("default.toml".as_ref(), &text)), ..Layers::default() };
            let loaded = load(&layers).unwrap();
            assert_eq!(loaded.config, Config::default());
            assert_eq!(loaded.sources.is_empty(), values == DefaultValues::CommentedOut);
        }
    }

    #[test]
    fn what_is_commented_out_is_the_default_file_once_the_mark_is_removed() {
        let uncomment = |line: &str| {
            let is_setting =
                line.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
            is_setting.unwrap_or(line).to_owned() + "\n"
        };
        let lists: Vec<_> = SECTIONS.iter().filter(|section| section.is_list).collect();
        assert!(!lists.is_empty());
        let of = |values| commented(values).split("\n#[[").next().unwrap().replace(UNSET, "");
        let set = of(DefaultValues::Set) + "\n";
        assert_eq!(
            of(DefaultValues::CommentedOut).lines().map(uncomment).collect::<String>().trim(),
            set.trim()
        );
    }

    #[test]
    fn the_default_file_has_the_defaults_of_the_elements_of_a_list() {
        let text = commented(DefaultValues::Set);
        assert!(
            text.contains("\n#upload = \"asked\"\n") && text.contains("\n#allow = \"owner\"\n"),
            "{text}"
        );
    }

    #[test]
    fn every_setting_is_in_the_default_file_and_explained() {
        let text = commented(DefaultValues::Set);
        for section in SECTIONS {
            let heading = if section.is_list {
                format!("\n#[[{}]]\n", section.name)
            } else {
                format!("\n[{}]\n", section.name)
            };
            assert!(text.contains(&heading), "{heading}");
            let defaults = (section.default)().unwrap();
            for key in defaults.keys() {
                assert!(section.fields.contains(&key.as_str()), "{}.{key} has no doc comment", section.name);
            }
            for field in section.fields {
                let printed = ["", "#", "# "].map(|mark| text.contains(&format!("\n{mark}{field} = ")));
                assert!(printed.contains(&true), "{}.{field} is not printed", section.name);
            }
        }
    }

    #[test]
    fn an_empty_section_is_its_default() {
        for section in SECTIONS.iter().filter(|section| !section.is_list) {
            let text = format!("[{}]\n", section.name);
            let layers = Layers { text: Some(("x.toml".as_ref(), &text)), ..Layers::default() };
            assert_eq!(load(&layers).unwrap().config, Config::default(), "{}", section.name);
        }
    }
}
