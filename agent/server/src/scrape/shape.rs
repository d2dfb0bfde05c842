//! The shape of a web configuration file: which of its values are mappings, lists and texts.
//!
//! Serde reads a struct from a list too, by position. Must never accept that.

use serde_json::Value;

/// What a value must be.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Text,
    /// A list of texts.
    List,
    /// A mapping of any keys to texts.
    Texts,
    /// A mapping of these keys and of keys with texts.
    Mapping(&'static [(&'static str, Shape)]),
}

const FILE: &[(&str, Shape)] = &[
    (
        "tls_server_config",
        Shape::Mapping(&[
            ("cipher_suites", Shape::List),
            ("curve_preferences", Shape::List),
            ("client_allowed_sans", Shape::List),
        ]),
    ),
    ("http_server_config", Shape::Mapping(&[("headers", Shape::Texts)])),
    ("basic_auth_users", Shape::Texts),
    ("rate_limit", Shape::Mapping(&[])),
];

/// Checks the value of a whole file. An unknown key is left to the parser.
///
/// # Errors
/// The first value of another shape, with its key.
pub(super) fn check(file: &Value) -> Result<(), String> {
    let Value::Object(sections) = file else {
        return Err(format!(
            "expected a mapping with tls_server_config, http_server_config, basic_auth_users or rate_limit, got {}",
            name(file)
        ));
    };
    let known = |key: &String| FILE.iter().find(|(name, _)| name == key);
    sections
        .iter()
        .filter_map(|(key, value)| Some((value, known(key)?)))
        .try_for_each(|(value, (key, shape))| check_value(key, value, *shape))
}

fn check_value(path: &str, value: &Value, shape: Shape) -> Result<(), String> {
    let expected = match (shape, value) {
        (Shape::Text, Value::String(_)) => return Ok(()),
        (Shape::List, Value::Array(list)) => {
            return list.iter().try_for_each(|element| check_value(path, element, Shape::Text));
        }
        (Shape::Texts | Shape::Mapping(_), Value::Object(values)) => {
            return values.iter().try_for_each(|(key, value)| {
                let shapes = if let Shape::Mapping(shapes) = shape { shapes } else { &[] };
                let known = shapes.iter().find(|(name, _)| name == key);
                let path = format!("{path}.{}", key.escape_debug());
                check_value(&path, value, known.map_or(Shape::Text, |(_, shape)| *shape))
            });
        }
        (Shape::Text, _) => "a text",
        (Shape::List, _) => "a list",
        (Shape::Texts | Shape::Mapping(_), _) => "a mapping",
    };
    Err(format!("{path}: expected {expected}, got {}", name(value)))
}

fn name(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
        Value::Null => "nothing",
        Value::String(_) | Value::Bool(_) | Value::Number(_) => "a text",
    }
}
