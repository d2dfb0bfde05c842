//! The keys and values of a payload, in the order of the text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::scalar::JsonScalar;

/// The keys and values of one payload in the order of the text. A repeated key keeps its first position and
/// has its last value, as in Python; [`PayloadFields::get`] therefore searches from the end.
#[derive(Debug, Default)]
pub(super) struct PayloadFields(Vec<(Box<str>, JsonScalar)>);

impl PayloadFields {
    pub(super) fn get(&self, key: &str) -> Option<&JsonScalar> {
        self.0.iter().rfind(|(k, _)| &**k == key).map(|(_, value)| value)
    }

    /// The first of `keys` that the payload has.
    pub(super) fn any(&self, keys: &[&'static str]) -> Option<(&'static str, &JsonScalar)> {
        keys.iter().find_map(|key| self.get(key).map(|value| (*key, value)))
    }

    /// The job that the payload belongs to.
    pub(super) fn job(&self) -> Option<&str> {
        match self.get("job_name") {
            Some(JsonScalar::Text(name)) => Some(name),
            _ => None,
        }
    }

    /// The value of the first key whose name contains `part`.
    pub(super) fn first_containing(&self, part: &str) -> Option<&JsonScalar> {
        let (key, _) = self.0.iter().find(|(key, _)| key.contains(part))?;
        self.get(key)
    }
}

/// A payload that may be of any JSON type; only an object can be an entry.
#[derive(Debug)]
pub(super) enum JsonPayload {
    Fields(PayloadFields),
    Other,
}

struct PayloadVisitor;

impl<'de> Visitor<'de> for PayloadVisitor {
    type Value = JsonPayload;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a payload")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonPayload, A::Error> {
        let mut fields = PayloadFields::default();
        while let Some((key, value)) = map.next_entry::<String, JsonScalar>()? {
            fields.0.push((key.into_boxed_str(), value));
        }
        Ok(JsonPayload::Fields(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<JsonPayload, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonPayload::Other)
    }

    fn visit_unit<E>(self) -> Result<JsonPayload, E> {
        Ok(JsonPayload::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<JsonPayload, E> {
        Ok(JsonPayload::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<JsonPayload, E> {
        Ok(JsonPayload::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<JsonPayload, E> {
        Ok(JsonPayload::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<JsonPayload, E> {
        Ok(JsonPayload::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<JsonPayload, E> {
        Ok(JsonPayload::Other)
    }
}

impl<'de> Deserialize<'de> for JsonPayload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PayloadVisitor)
    }
}
