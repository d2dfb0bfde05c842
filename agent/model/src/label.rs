//! Labels: what a series is about, as a short ordered list of names and values.

use serde::{Serialize, Serializer};
use smallvec::SmallVec;
pub use smol_str::SmolStr;

use crate::device::ChipIndex;

/// The label of a chip's position on its host.
pub const CHIP: &str = "chip";
/// The label of a core: the JAX device id.
pub const CORE: &str = "core";

/// Names that only tpuscope gives: a workload's own label of such a name is shown as `exported_NAME`.
/// (`job` and `instance` are those of the scrape.)
pub const RESERVED: [&str; 9] =
    [CHIP, CORE, "source", "workload", "workload_kind", "job", "instance", "quantile", "le"];

/// The value of a label. Short texts and numbers need no memory of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LabelValue {
    /// A number, shown in decimal.
    Number(u32),
    /// A text, bounded and without control characters.
    Text(SmolStr),
}

impl From<u32> for LabelValue {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for LabelValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for LabelValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<SmolStr> for LabelValue {
    fn from(text: SmolStr) -> Self {
        Self::Text(text)
    }
}

impl std::fmt::Display for LabelValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The labels of a series, in the order in which they are shown. No more than three need memory of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Labels(SmallVec<[(SmolStr, LabelValue); 3]>);

impl Labels {
    /// No label.
    pub fn none() -> Self {
        Self::default()
    }

    /// One label.
    pub fn one(name: &'static str, value: impl Into<LabelValue>) -> Self {
        Self::none().with(name, value)
    }

    /// Of one chip.
    pub fn chip(chip: ChipIndex) -> Self {
        Self::one(CHIP, chip.0)
    }

    /// These and one more at the end.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<LabelValue>) -> Self {
        self.push(SmolStr::new_static(name), value);
        self
    }

    /// Adds a label at the end.
    pub fn push(&mut self, name: SmolStr, value: impl Into<LabelValue>) {
        self.0.push((name, value.into()));
    }

    /// The value of a label.
    pub fn get(&self, name: &str) -> Option<&LabelValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The value of a label that is a number.
    pub fn number(&self, name: &str) -> Option<u32> {
        match self.get(name)? {
            LabelValue::Number(number) => Some(*number),
            LabelValue::Text(_) => None,
        }
    }

    /// All labels in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &LabelValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// These without one.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        Self(self.0.iter().filter(|(known, _)| known != name).cloned().collect())
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, value)| (name, value.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_order_and_usual_ones_need_no_memory() {
        let labels = Labels::one(CHIP, 1).with(CORE, 3).with("core_type", "tensorcore");
        let shown: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(shown, ["chip=1", "core=3", "core_type=tensorcore"]);
        assert!(!labels.0.spilled());
        assert_eq!(
            (labels.number(CORE), labels.number("core_type"), labels.number("x")),
            (Some(3), None, None)
        );
        assert_eq!(labels.without(CHIP), Labels::one(CORE, 3).with("core_type", "tensorcore"));
    }
}
