//! Real output against the schemas of `docs/schemas`.

use std::{error::Error, fs};

use jsonschema::{Retrieve, Uri, Validator};
use serde_json::Value;

use fakes::harness::workspace;

/// One schema of `docs/schemas`.
#[derive(Debug)]
pub(crate) struct Schema {
    name: String,
    validator: Validator,
}

impl Schema {
    /// `docs/schemas/<name>.schema.json`.
    ///
    /// # Panics
    /// If there is none, or it is no sound schema.
    pub(crate) fn open(name: &str) -> Self {
        let mut schema = load(&format!("{name}.schema.json")).expect("a schema");
        close(&mut schema);
        let validator = jsonschema::options()
            .with_base_uri("docs:///")
            .with_retriever(Neighbours)
            .should_validate_formats(true)
            .build(&schema)
            .expect("a sound schema");
        Self { name: name.to_owned(), validator }
    }

    /// What is wrong with `value`, undescribed fields included; empty if nothing is.
    pub(crate) fn faults(&self, value: &Value) -> Vec<String> {
        let errors = self.validator.iter_errors(value);
        errors.map(|error| format!("{}: {error}", error.instance_path())).collect()
    }

    /// `value` is as the schema says.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn admits(&self, value: &Value) {
        let faults = self.faults(value);
        assert!(faults.is_empty(), "{}:\n{}\nin {value}", self.name, faults.join("\n"));
    }
}

/// Readers ignore fields that they do not know, so the schemas let them pass; but ours are all described.
fn close(schema: &mut Value) {
    let Some(words) = schema.as_object_mut() else { return };
    if words.contains_key("properties") && !words.contains_key("additionalProperties") {
        words.insert("unevaluatedProperties".to_owned(), Value::Bool(false));
    }
    for (word, rule) in words {
        match (word.as_str(), rule) {
            ("properties" | "$defs", Value::Object(named)) => named.values_mut().for_each(close),
            ("oneOf" | "prefixItems", Value::Array(several)) => several.iter_mut().for_each(close),
            ("items" | "additionalProperties", rule) => close(rule),
            _ => {}
        }
    }
}

/// Schemas refer to each other by their file names.
struct Neighbours;

impl Retrieve for Neighbours {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        load(uri.path().as_str().trim_start_matches('/'))
    }
}

fn load(name: &str) -> Result<Value, Box<dyn Error + Send + Sync>> {
    let path = workspace().join("docs/schemas").join(name);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}
