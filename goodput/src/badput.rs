//! The kinds of lost time, and ordered maps from them to seconds or percent.

use std::fmt;

use serde::{
    de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor},
    ser::{Serialize, SerializeMap, Serializer},
};

/// A cause of lost time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum BadputType {
    /// Devices starting up.
    TpuInitialization = 1,
    /// Preparation of training, before the first step.
    TrainingPrep = 2,
    /// The time of the first step above the others: compilation.
    ProgramStartup = 3,
    /// Data loading that training waits for.
    DataLoadingSync = 4,
    /// Data loading during training; not lost time.
    DataLoadingAsync = 5,
    /// Training blocked by a checkpoint save.
    CheckpointSave = 6,
    /// Reading a checkpoint back.
    CheckpointRestore = 7,
    /// Steps repeated after a restart.
    WastedProgress = 8,
    /// The time from the last step to the next job start.
    InfrastructureRecovery = 9,
    /// Custom events.
    CustomEvents = 10,
    /// Time without a recorded cause.
    Other = 11,
    /// Waiting with fewer slices.
    ElasticSliceDown = 12,
    /// Waiting for slices to come back.
    ElasticScaleUp = 13,
    /// Starting again on another number of slices.
    ElasticReinitialization = 14,
}

use BadputType as B;

impl BadputType {
    /// The order in which a breakdown lists the standard types.
    pub const STANDARD: [BadputType; 11] = [
        B::TpuInitialization,
        B::TrainingPrep,
        B::DataLoadingSync,
        B::DataLoadingAsync,
        B::CheckpointSave,
        B::CheckpointRestore,
        B::ProgramStartup,
        B::WastedProgress,
        B::InfrastructureRecovery,
        B::CustomEvents,
        B::Other,
    ];

    /// The types that only elastic jobs have.
    pub const ELASTIC: [BadputType; 3] = [B::ElasticSliceDown, B::ElasticScaleUp, B::ElasticReinitialization];

    /// The library's name.
    pub fn name(self) -> &'static str {
        match self {
            B::TpuInitialization => "TPU_INITIALIZATION",
            B::TrainingPrep => "TRAINING_PREP",
            B::ProgramStartup => "PROGRAM_STARTUP",
            B::DataLoadingSync => "DATA_LOADING_SYNC",
            B::DataLoadingAsync => "DATA_LOADING_ASYNC",
            B::CheckpointSave => "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
            B::CheckpointRestore => "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
            B::WastedProgress => "WASTED_PROGRESS_FROM_DISRUPTION",
            B::InfrastructureRecovery => "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
            B::CustomEvents => "CUSTOM_BADPUT_EVENTS",
            B::Other => "OTHER",
            B::ElasticSliceDown => "ELASTIC_SLICE_DOWN",
            B::ElasticScaleUp => "ELASTIC_SCALE_UP",
            B::ElasticReinitialization => "ELASTIC_REINITIALIZATION",
        }
    }

    /// The type with this library's name.
    pub fn named(name: &str) -> Option<Self> {
        Self::STANDARD.into_iter().chain(Self::ELASTIC).find(|kind| kind.name() == name)
    }

    /// The name on the dashboards of the newer API; the library's own where that has none.
    pub fn dashboard(self) -> &'static str {
        match self {
            B::TpuInitialization => "ACCELERATOR_INITIALIZATION",
            B::CheckpointSave => "CHECKPOINT_SAVE",
            B::CheckpointRestore => "CHECKPOINT_RESTORE",
            B::WastedProgress => "WASTED_PROGRESS",
            B::InfrastructureRecovery => "INFRASTRUCTURE_RECOVERY",
            other => other.name(),
        }
    }
}

/// The content of a bucket.
#[derive(Debug, Clone, PartialEq)]
pub enum Amount {
    /// A plain bucket.
    Flat(f64),
    /// Custom events by upper-cased type, in the order they were first counted.
    Custom(Vec<(String, f64)>),
}

impl Amount {
    /// The content as one number.
    pub fn sum(&self) -> f64 {
        match self {
            Amount::Flat(value) => *value,
            Amount::Custom(kinds) => kinds.iter().map(|(_, value)| value).sum(),
        }
    }
}

/// An ordered map from type to amount: the order of first creation, which the exported series follow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets(Vec<(BadputType, Amount)>);

impl Buckets {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// The buckets in order.
    pub fn iter(&self) -> impl Iterator<Item = &(BadputType, Amount)> {
        self.0.iter()
    }

    /// A bucket's content.
    pub fn get(&self, kind: BadputType) -> Option<&Amount> {
        self.0.iter().find(|(k, _)| *k == kind).map(|(_, amount)| amount)
    }

    /// A bucket as one number; 0 if it does not exist.
    pub fn seconds(&self, kind: BadputType) -> f64 {
        self.get(kind).map_or(0.0, Amount::sum)
    }

    /// Sets a bucket, in its old position if it exists.
    pub fn set(&mut self, kind: BadputType, amount: Amount) {
        match self.0.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, old)) => *old = amount,
            None => self.0.push((kind, amount)),
        }
    }

    /// Adds seconds to a plain bucket.
    pub fn add(&mut self, kind: BadputType, seconds: f64) {
        let sum = self.seconds(kind) + seconds;
        self.set(kind, Amount::Flat(sum));
    }

    /// Creates the bucket of custom events, if it is not there.
    pub fn create_custom(&mut self) {
        if self.get(B::CustomEvents).is_none() {
            self.set(B::CustomEvents, Amount::Custom(Vec::new()));
        }
    }

    /// Sets values below 0 or above `total` to 0, as the library does.
    pub fn sanitize(&mut self, total: f64) {
        let zero = |value: &mut f64| {
            if *value < 0.0 || *value > total {
                *value = 0.0;
            }
        };
        for (_, amount) in &mut self.0 {
            match amount {
                Amount::Flat(value) => zero(value),
                Amount::Custom(kinds) => kinds.iter_mut().for_each(|(_, value)| zero(value)),
            }
        }
    }

    /// The rest of `total`, at least 0.
    pub fn other(&self, total: f64, productive: f64) -> f64 {
        let known: f64 = self
            .iter()
            .filter(|(kind, _)| !matches!(kind, B::DataLoadingAsync | B::Other))
            .map(|(_, amount)| amount.sum())
            .sum();
        (total - productive - known).max(0.0)
    }

    /// Every standard type as percent of `total`, and the elastic ones if `elastic`.
    pub fn breakdown(&self, total: f64, elastic: bool) -> Buckets {
        let percent = |value: f64| if 0.0 < value && value < total { value / total * 100.0 } else { 0.0 };
        let types = B::STANDARD.iter().chain(if elastic { &B::ELASTIC[..] } else { &[] });
        Buckets(
            types
                .map(|&kind| {
                    let amount = match self.get(kind) {
                        Some(Amount::Custom(kinds)) => Amount::Custom(
                            kinds.iter().map(|(name, v)| (name.clone(), percent(*v))).collect(),
                        ),
                        Some(Amount::Flat(value)) => Amount::Flat(percent(*value)),
                        None if kind == B::CustomEvents => Amount::Custom(Vec::new()),
                        None => Amount::Flat(0.0),
                    };
                    (kind, amount)
                })
                .collect(),
        )
    }

    /// Label and value of every bucket, custom events one by one as `CUSTOM_BADPUT_EVENTS.<TYPE>`.
    pub fn flat(&self) -> Vec<(String, f64)> {
        let mut flat = Vec::with_capacity(self.0.len());
        for (kind, amount) in &self.0 {
            match amount {
                Amount::Flat(value) => flat.push((kind.name().to_owned(), *value)),
                Amount::Custom(kinds) => flat.extend(
                    kinds.iter().map(|(name, v)| (format!("{}.{}", kind.name(), name.to_uppercase()), *v)),
                ),
            }
        }
        flat
    }
}

impl FromIterator<(BadputType, Amount)> for Buckets {
    fn from_iter<T: IntoIterator<Item = (BadputType, Amount)>>(iter: T) -> Self {
        Self(iter.into_iter().collect())
    }
}

/// `{TYPE: value}` with `CUSTOM_BADPUT_EVENTS` as a map of its own.
impl Serialize for Buckets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (kind, amount) in &self.0 {
            match amount {
                Amount::Flat(value) => map.serialize_entry(kind.name(), value)?,
                Amount::Custom(kinds) => map.serialize_entry(kind.name(), &Custom(kinds))?,
            }
        }
        map.end()
    }
}

struct Custom<'a>(&'a [(String, f64)]);

impl Serialize for Custom<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Reads what [`Serialize`] writes, in the same order.
impl<'de> Deserialize<'de> for Buckets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BucketsVisitor)
    }
}

struct BucketsVisitor;

impl<'de> Visitor<'de> for BucketsVisitor {
    type Value = Buckets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from types of lost time to numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Buckets, A::Error> {
        let mut buckets = Buckets::new();
        while let Some(name) = map.next_key::<String>()? {
            let kind = BadputType::named(&name)
                .ok_or_else(|| A::Error::custom(format_args!("{name} is no type of lost time")))?;
            let amount = match kind {
                B::CustomEvents => Amount::Custom(map.next_value::<OrderedNumbers>()?.0),
                _ => Amount::Flat(map.next_value()?),
            };
            buckets.set(kind, amount);
        }
        Ok(buckets)
    }
}

/// Names and numbers in the order of the text.
struct OrderedNumbers(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for OrderedNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OrderedNumbersVisitor)
    }
}

struct OrderedNumbersVisitor;

impl<'de> Visitor<'de> for OrderedNumbersVisitor {
    type Value = OrderedNumbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from names to numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedNumbers, A::Error> {
        let mut numbers = Vec::new();
        while let Some(entry) = map.next_entry()? {
            numbers.push(entry);
        }
        Ok(OrderedNumbers(numbers))
    }
}
