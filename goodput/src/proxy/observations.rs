//! The observations of one host: device opens, duty samples, memory in use, step starts.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::error::Error;

/// An open of a chip's device file: chip, pid, from, until (`None`: still open).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(expecting = "an open: [chip, pid, from, until]")]
pub struct DeviceOpen(pub i64, pub i64, pub f64, pub Option<f64>);

/// Duty samples of a chip: chip, time of the first, one a second in percent (`None`: missing).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(expecting = "duty samples: [chip, time of the first, [percent, …]]")]
pub struct DutySamples(pub i64, pub f64, pub Vec<Option<f64>>);

/// Share of a chip's memory in use from a time on: chip, time, share.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(expecting = "memory in use: [chip, time, share]")]
pub struct Hbm(pub i64, pub f64, pub f64);

/// A step start: number, time.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(expecting = "a step start: [number, time]")]
pub struct StepStart(pub i64, pub f64);

/// The observations of one job on one host. Times are seconds of one clock.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct HostObservations {
    /// The chips that the job requires here; without them, every chip that it opened.
    #[serde(default, deserialize_with = "some_chips")]
    pub chips: Vec<i64>,
    /// When the job was created, where known.
    #[serde(default)]
    pub created_at: Option<f64>,
    /// The time of the query.
    pub now: f64,
    /// Device opens.
    #[serde(default)]
    pub opens: Vec<DeviceOpen>,
    /// Duty samples.
    #[serde(default)]
    pub duty: Vec<DutySamples>,
    /// Memory in use.
    #[serde(default)]
    pub hbm: Vec<Hbm>,
    /// Step starts in the order they were observed, if known.
    #[serde(default)]
    pub steps: Option<Vec<StepStart>>,
    /// Starts of the job's processes, where known.
    #[serde(default)]
    pub process_starts: Vec<f64>,
    /// When the job finished, where it is known to have.
    #[serde(default)]
    pub ended_at: Option<f64>,
}

/// Derived code would also accept a list in the order of the fields.
impl<'de> Deserialize<'de> for HostObservations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = HostObservations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostObservations, A::Error> {
        // The derived implementation, which `remote` makes an inherent function.
        HostObservations::deserialize(MapAccessDeserializer::new(map))
    }
}

impl HostObservations {
    /// Checks that the observations do not contradict each other.
    ///
    /// # Errors
    /// Names the first observation that is invalid.
    pub(super) fn check(&self) -> Result<(), Error> {
        finite("now", self.now)?;
        self.created_at.map_or(Ok(()), |at| finite("created_at", at))?;
        self.ended_at.map_or(Ok(()), |at| finite("ended_at", at))?;
        self.process_starts.iter().try_for_each(|at| finite("process_starts", *at))?;
        self.steps.iter().flatten().try_for_each(|step| finite("steps", step.1))?;
        let chips: BTreeSet<i64> = self.chips.iter().copied().collect();
        if chips.len() < self.chips.len() {
            return Err(invalid("chips: a chip is listed twice"));
        }
        let known = |what: &str, chip: i64| match chips.is_empty() || chips.contains(&chip) {
            true => Ok(()),
            false => Err(invalid(format_args!("{what}: chip {chip} is not among chips"))),
        };
        for DeviceOpen(chip, _, from, until) in &self.opens {
            known("opens", *chip)?;
            finite("opens", *from)?;
            until.map_or(Ok(()), |until| finite("opens", until))?;
            if until.is_some_and(|until| until < *from) {
                return Err(invalid(format_args!(
                    "opens: chip {chip} is closed before it is opened at {from}"
                )));
            }
        }
        for DutySamples(chip, start, values) in &self.duty {
            known("duty", *chip)?;
            finite("duty", *start)?;
            if let Some(value) = values.iter().flatten().find(|value| !(0.0..=100.0).contains(*value)) {
                return Err(invalid(format_args!(
                    "duty: {value} of chip {chip} is not within 0 to 100 percent"
                )));
            }
        }
        for Hbm(chip, at, share) in &self.hbm {
            known("hbm", *chip)?;
            finite("hbm", *at)?;
            if !(0.0..=1.0).contains(share) {
                return Err(invalid(format_args!(
                    "hbm: {share} of chip {chip} is not a share within 0 to 1"
                )));
            }
        }
        Ok(())
    }
}

fn some_chips<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<i64>, D::Error> {
    let chips = Vec::deserialize(from)?;
    if chips.is_empty() {
        Err(D::Error::custom("chips is empty: list the chips, or omit the field"))
    } else {
        Ok(chips)
    }
}

fn finite(what: &str, at: f64) -> Result<(), Error> {
    if at.is_finite() { Ok(()) } else { Err(invalid(format_args!("{what}: a time is not a finite number"))) }
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::Invalid(what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        serde_json::from_str::<HostObservations>(text).expect_err("no observations").to_string()
    }

    #[test]
    fn errors_name_the_fields_of_the_file() {
        assert_eq!(fault("[]"), "invalid type: sequence, expected a JSON object at line 1 column 0");
        assert_eq!(fault("7"), "invalid type: integer `7`, expected a JSON object at line 1 column 1");
        assert_eq!(fault("{}"), "missing field `now` at line 1 column 2");
        for list in ["opens", "duty", "hbm", "steps"] {
            for entry in ["[1]", "{}", "\"x\""] {
                let fault = fault(&format!("{{\"now\": 1, \"{list}\": [{entry}]}}"));
                assert!(!fault.contains("struct") && fault.contains(": ["), "{fault}");
            }
        }
    }
}
