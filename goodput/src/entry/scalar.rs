//! A JSON value without nested content, and Python's conversions of it.
//!
//! `serde_json::Value` would build lists and objects of any size that no ledger reads.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::Error;

/// A JSON value. The content of lists and objects is dropped.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsonScalar {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    Nested,
}

impl JsonScalar {
    fn python_type(&self) -> &'static str {
        match self {
            JsonScalar::Null => "NoneType",
            JsonScalar::Bool(_) => "bool",
            JsonScalar::Int(_) => "int",
            JsonScalar::Float(_) => "float",
            JsonScalar::Text(_) => "str",
            JsonScalar::Nested => "dict",
        }
    }

    /// The value if it is a number. In Python, booleans are numbers.
    #[expect(clippy::cast_precision_loss, reason = "epoch seconds and counts are far below 2^53")]
    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            JsonScalar::Bool(b) => Some(f64::from(u8::from(*b))),
            JsonScalar::Int(i) => Some(*i as f64),
            JsonScalar::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// The value as a time or a count.
    pub(super) fn number(&self, key: &str) -> Result<f64, Error> {
        self.as_number()
            .ok_or_else(|| Error::type_(format!("'{}' object of {key} is not a number", self.python_type())))
    }

    /// The value as `datetime.fromtimestamp` reads it.
    pub(super) fn instant(&self) -> Result<f64, Error> {
        self.as_number().ok_or_else(|| {
            Error::type_(format!("'{}' object cannot be interpreted as an integer", self.python_type()))
        })
    }

    /// The value as Python's `int` reads it.
    #[expect(clippy::cast_possible_truncation, reason = "Python truncates too; beyond i64 it saturates")]
    pub(super) fn int(&self) -> Result<i64, Error> {
        match self {
            JsonScalar::Bool(b) => Ok(i64::from(*b)),
            JsonScalar::Int(i) => Ok(*i),
            JsonScalar::Float(x) => Ok(*x as i64),
            JsonScalar::Text(text) => text
                .trim()
                .parse()
                .map_err(|_| Error::value(format!("invalid literal for int() with base 10: '{text}'"))),
            other => Err(Error::type_(format!(
                "int() argument must be a string, a bytes-like object or a real number, not '{}'",
                other.python_type()
            ))),
        }
    }

    /// The value as Python's `float` reads it. Values that are not finite are errors: they would make every sum
    /// meaningless.
    pub(super) fn float(&self) -> Result<f64, Error> {
        let value = match self {
            JsonScalar::Text(text) => text.trim().parse().ok(),
            other => Some(other.as_number().ok_or_else(|| {
                Error::type_(format!(
                    "float() argument must be a string or a real number, not '{}'",
                    other.python_type()
                ))
            })?),
        };
        value.filter(|x: &f64| x.is_finite()).ok_or_else(|| match self {
            JsonScalar::Text(text) => Error::value(format!("could not convert string to float: '{text}'")),
            _ => Error::value("the duration is not finite"),
        })
    }

    /// The value as Python's `str` prints it, for the name of a checkpoint step.
    pub(super) fn text(&self) -> String {
        match self {
            JsonScalar::Null => "None".into(),
            JsonScalar::Bool(true) => "True".into(),
            JsonScalar::Bool(false) => "False".into(),
            JsonScalar::Int(i) => i.to_string(),
            JsonScalar::Float(x) => format!("{x:?}"),
            JsonScalar::Text(text) => text.to_string(),
            JsonScalar::Nested => "{}".into(),
        }
    }

    /// Whether the value is true in Python.
    pub(super) fn truthy(&self) -> bool {
        match self {
            JsonScalar::Null => false,
            JsonScalar::Text(text) => !text.is_empty(),
            other => other.as_number() != Some(0.0),
        }
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = JsonScalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<JsonScalar, E> {
        Ok(JsonScalar::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<JsonScalar, E> {
        Ok(JsonScalar::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<JsonScalar, E> {
        Ok(JsonScalar::Int(v))
    }

    #[expect(clippy::cast_precision_loss, reason = "a number beyond i64 is neither a time nor a count")]
    fn visit_u64<E>(self, v: u64) -> Result<JsonScalar, E> {
        Ok(i64::try_from(v).map_or(JsonScalar::Float(v as f64), JsonScalar::Int))
    }

    fn visit_f64<E>(self, v: f64) -> Result<JsonScalar, E> {
        Ok(JsonScalar::Float(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<JsonScalar, E> {
        Ok(JsonScalar::Text(v.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonScalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonScalar::Nested)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<JsonScalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonScalar::Nested)
    }
}

impl<'de> Deserialize<'de> for JsonScalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}
