//! The default settings file: every setting with its default, below the doc comment of its field.

use std::fmt::Write;

use super::{SECTIONS, Section};

const HEAD: &str = "\
# All settings of tpuscope with their defaults.
#
# A setting can also come from the environment variable TPUSCOPE_<SECTION>__<KEY>, or from the flag
# --set <section>.<key>=<value>. A flag overrides the environment, and the environment overrides this file.
# Durations and sizes need a unit: 500ms, 2s, 1h; 64KiB, 8MiB.
";

/// The text of the default file.
pub fn commented() -> String {
    let mut text = HEAD.to_owned();
    for section in SECTIONS {
        print(section, &mut text);
    }
    text
}

fn print(section: &Section, text: &mut String) {
    let defaults = (section.default)().expect("a section's defaults are plain values, which TOML can hold");
    text.push('\n');
    comment(section.docs, text);
    // Writing to a String cannot fail. A repeated section has no defaults to print: an empty one would be one more.
    let _ = match section.is_list {
        true => writeln!(text, "# [[{}]]", section.name),
        false => writeln!(text, "[{}]", section.name),
    };
    for (field, docs) in section.fields.iter().zip(section.field_docs) {
        comment(docs, text);
        let _ = match defaults.get(*field) {
            Some(value) => writeln!(text, "{field} = {value}"),
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
        let text = commented();
        let layers = Layers { text: Some(("default.toml".as_ref(), &text)), ..Layers::default() };
        assert_eq!(load(&layers).unwrap().config, Config::default());
    }

    #[test]
    fn every_setting_is_in_the_default_file_and_explained() {
        let text = commented();
        for section in SECTIONS {
            let heading = if section.is_list {
                format!("\n# [[{}]]\n", section.name)
            } else {
                format!("\n[{}]\n", section.name)
            };
            assert!(text.contains(&heading), "{heading}");
            let defaults = (section.default)().unwrap();
            for key in defaults.keys() {
                assert!(section.fields.contains(&key.as_str()), "{}.{key} has no doc comment", section.name);
            }
            for field in section.fields {
                let at =
                    text.find(&format!("\n{field} = ")).or_else(|| text.find(&format!("\n# {field} = ")));
                assert!(at.is_some(), "{}.{field} is not printed", section.name);
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
