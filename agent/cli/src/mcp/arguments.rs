//! The arguments of tools: what each one may be, its schema, and the check of what a client sends. Pure.
//!
//! What is checked here becomes words of a command. Must never let a value be taken for an option, a path or a URL.

use std::collections::BTreeMap;

use model::{
    unit::Duration,
    untrusted::{clean, harmless},
};
use serde_json::{Map, Value, json};
use xprof::session::{PART_SUFFIX, SessionName};

/// The longest text, in characters.
const LONGEST: usize = 256;
/// Characters of a wrong value that an error repeats.
const SHOWN: usize = 60;

/// What an argument may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum ArgumentKind {
    /// A text without control characters.
    Text,
    /// The name of a session of the agent.
    Session,
    /// A whole number from the first to the second one.
    Number(u32, u32),
    /// More than no time, as `10m`.
    Time,
    /// true or false.
    Switch,
    /// One of these.
    OneOf(&'static [&'static str]),
}

/// An argument of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) kind: ArgumentKind,
    pub(super) required: bool,
    /// For the model that chooses it.
    pub(super) about: &'static str,
}

/// Why arguments are refused. The text names the argument and what it may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArgumentError {
    #[error("arguments: expected a JSON object")]
    NoObject,
    #[error("unknown argument {name}: expected {known}")]
    Unknown { name: String, known: String },
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{name}: expected {expected}, got {got}")]
    Wrong { name: &'static str, expected: String, got: String },
}

/// Arguments that were checked, as the words of a command have them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ToolArguments(BTreeMap<&'static str, String>);

impl ToolArguments {
    /// Checks what a client sends. An argument that is null is not there.
    pub(super) fn of(arguments: &[Argument], sent: &Value) -> Result<Self, ArgumentError> {
        let empty = Map::new();
        let sent = match sent {
            Value::Object(sent) => sent,
            Value::Null => &empty,
            _ => return Err(ArgumentError::NoObject),
        };
        if let Some(name) = sent.keys().find(|name| arguments.iter().all(|known| known.name != **name)) {
            let known: Vec<&str> = arguments.iter().map(|known| known.name).collect();
            return Err(ArgumentError::Unknown { name: clean(name, SHOWN), known: known.join(", ") });
        }
        let mut checked = BTreeMap::new();
        for argument in arguments {
            match sent.get(argument.name).unwrap_or(&Value::Null) {
                Value::Null if argument.required => return Err(ArgumentError::Missing(argument.name)),
                Value::Null => {}
                value => {
                    checked.insert(argument.name, argument.checked(value)?);
                }
            }
        }
        Ok(Self(checked))
    }

    /// The value of an argument; none if it was not sent.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// `--name=value`, if the argument was sent.
    pub(super) fn option(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| format!("--{name}={value}"))
    }
}

impl Argument {
    fn checked(&self, value: &Value) -> Result<String, ArgumentError> {
        let good = match (self.kind, value) {
            (ArgumentKind::Text, Value::String(text)) => Some(text).filter(|text| is_text(text)).cloned(),
            (ArgumentKind::Session, Value::String(text)) => {
                Some(text).filter(|text| is_session(text)).cloned()
            }
            (ArgumentKind::Time, Value::String(text)) => Some(text).filter(|text| is_time(text)).cloned(),
            (ArgumentKind::OneOf(words), Value::String(text)) => {
                Some(text).filter(|text| words.contains(&text.as_str())).cloned()
            }
            (ArgumentKind::Number(least, most), Value::Number(number)) => number
                .as_u64()
                .filter(|number| (least.into()..=most.into()).contains(number))
                .map(|n| n.to_string()),
            (ArgumentKind::Switch, Value::Bool(on)) => Some(on.to_string()),
            _ => None,
        };
        good.ok_or_else(|| ArgumentError::Wrong {
            name: self.name,
            expected: self.kind.expected(),
            got: clean(&value.to_string(), SHOWN),
        })
    }

    /// Its schema.
    pub(super) fn schema(&self) -> Value {
        let mut schema = match self.kind {
            ArgumentKind::Text | ArgumentKind::Session | ArgumentKind::Time => {
                json!({ "type": "string", "minLength": 1, "maxLength": LONGEST })
            }
            ArgumentKind::Number(least, most) => {
                json!({ "type": "integer", "minimum": least, "maximum": most })
            }
            ArgumentKind::Switch => json!({ "type": "boolean" }),
            ArgumentKind::OneOf(words) => json!({ "type": "string", "enum": words }),
        };
        schema["description"] = self.about.into();
        schema
    }
}

impl ArgumentKind {
    fn expected(self) -> String {
        match self {
            Self::Text => format!("a text of 1 to {LONGEST} characters without control characters"),
            Self::Session => {
                "the name of a session, as the tool `sessions` lists it, not a path or a URL".to_owned()
            }
            Self::Number(least, most) => format!("a whole number from {least} to {most}"),
            Self::Time => "a time such as \"10m\" or \"1h\", more than 0 and at most 584 years".to_owned(),
            Self::Switch => "true or false".to_owned(),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
        }
    }
}

fn is_text(text: &str) -> bool {
    (1..=LONGEST).contains(&text.chars().count()) && text.chars().all(harmless)
}

/// A name with the end of a trace would be taken for a file.
fn is_session(text: &str) -> bool {
    text.parse::<SessionName>().is_ok() && !text.ends_with(PART_SUFFIX)
}

fn is_time(text: &str) -> bool {
    is_text(text) && text.parse::<Duration>().is_ok_and(|time| !time.get().is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: [Argument; 6] = [
        Argument { name: "text", kind: ArgumentKind::Text, required: false, about: "" },
        Argument { name: "session", kind: ArgumentKind::Session, required: false, about: "" },
        Argument { name: "number", kind: ArgumentKind::Number(1, 1000), required: false, about: "" },
        Argument { name: "time", kind: ArgumentKind::Time, required: false, about: "" },
        Argument { name: "on", kind: ArgumentKind::Switch, required: false, about: "" },
        Argument { name: "word", kind: ArgumentKind::OneOf(&["a", "b"]), required: false, about: "" },
    ];

    #[test]
    fn good_values_become_words() {
        let sent = json!({ "text": "--help", "session": "2026_11_29", "number": 1000, "time": "10m", "on": true, "word": "b" });
        let checked = ToolArguments::of(&ARGUMENTS, &sent).unwrap();
        assert_eq!(checked.option("text").as_deref(), Some("--text=--help"));
        assert_eq!(checked.option("number").as_deref(), Some("--number=1000"));
        assert!(checked.is_on("on") && !checked.is_on("text"));
        for none in [json!(null), json!({}), json!({ "text": null })] {
            assert_eq!(ToolArguments::of(&ARGUMENTS, &none), Ok(ToolArguments::default()));
        }
    }

    #[test]
    fn bad_values_are_refused_with_what_is_expected() {
        let long = "x".repeat(257);
        for (name, bad) in [
            ("text", json!("")),
            ("text", json!(long)),
            ("text", json!("a\u{0}b")),
            ("text", json!(5)),
            ("session", json!("../x")),
            ("session", json!("/etc/passwd")),
            ("session", json!("gs://b/c")),
            ("session", json!("x.xplane.pb")),
            ("session", json!("-x y")),
            ("number", json!(0)),
            ("number", json!(1001)),
            ("number", json!(1e300)),
            ("number", json!(-1)),
            ("number", json!(1.5)),
            ("number", json!("7")),
            ("number", json!(u64::MAX)),
            ("time", json!("0s")),
            ("time", json!("10")),
            ("on", json!("true")),
            ("word", json!("c")),
            ("word", json!(["a"])),
        ] {
            let error = ToolArguments::of(&ARGUMENTS, &json!({ name: bad })).unwrap_err();
            assert!(matches!(&error, ArgumentError::Wrong { name: of, .. } if *of == name), "{error}");
            assert!(error.to_string().chars().count() < 250, "{error}");
        }
        let unknown = ToolArguments::of(&ARGUMENTS, &json!({ "path": "/" })).unwrap_err().to_string();
        assert_eq!(unknown, "unknown argument path: expected text, session, number, time, on, word");
        let required = [Argument { required: true, ..ARGUMENTS[0] }];
        assert_eq!(ToolArguments::of(&required, &json!({})), Err(ArgumentError::Missing("text")));
        assert_eq!(ToolArguments::of(&required, &json!([])), Err(ArgumentError::NoObject));
    }
}
