//! What tells the processes of a host apart in one trace: the numbers of their devices, and the names and ids of their
//! threads.
//!
//! Every process counts its devices from 0, and names its threads as the others do. In a joined trace the devices are
//! counted on in the order of the processes' chips, wherever a plane or an event names one, and a thread has its process
//! after its name. Planes of one process stay planes of their own; what is of the host becomes one plane.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::inputs::Member;
use crate::{
    reader::{Index, OwnedValue, PlaneIndex},
    wire::{Error, FieldValue, Fields},
};

/// One process of several whose traces are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLabel {
    /// What is shown after the names of its threads, such as `pid 17`.
    pub name: String,
    /// The first chip that it holds. Processes without a known chip come last.
    pub first_chip: Option<u32>,
}

/// The stat of a device plane that says which core of which chip it is.
pub(super) const CORE_DETAILS: &str = "core_details";
/// Its fields that count within the process.
const ORDINAL: u32 = 2;
const LOCAL_CHIP: u32 = 4;
/// Planes of a device and of a part of a chip, before their number.
const DEVICE: [&str; 2] = ["/device:TPU:", "/device:GPU:"];
const CHIP: &str = "#Chip";

/// The numbers of one process and what they are in the joined trace.
#[derive(Debug, Default)]
pub(super) struct Renumbered {
    pub(super) devices: BTreeMap<i64, i64>,
    chips: BTreeMap<i64, i64>,
}

/// The processes, in the order of the inputs.
#[derive(Debug)]
pub(super) struct Processes {
    labels: Vec<ProcessLabel>,
    numbers: Vec<Renumbered>,
    /// The ids of planes that another plane has too.
    plane_ids: BTreeMap<Member, i64>,
}

impl Processes {
    pub(super) fn new(labels: Vec<ProcessLabel>, indexes: &[Index]) -> Self {
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.sort_by_key(|&input| (labels[input].first_chip.map_or(u64::MAX, u64::from), input));
        let mut numbers: Vec<Renumbered> = labels.iter().map(|_| Renumbered::default()).collect();
        let (mut devices, mut chips) = (0, 0);
        for &input in &order {
            numbers[input] = Renumbered::of(&indexes[input], &mut devices, &mut chips);
        }
        Self { labels, numbers, plane_ids: plane_ids(&order, indexes) }
    }

    /// The numbers of the devices of `input`.
    pub(super) fn devices(&self, input: usize) -> &BTreeMap<i64, i64> {
        &self.numbers[input].devices
    }

    /// The id of a plane in the joined trace.
    pub(super) fn plane_id(&self, member: Member, plane: &PlaneIndex) -> i64 {
        self.plane_ids.get(&member).copied().unwrap_or(plane.id)
    }

    /// The name of a plane of `input` in the joined trace.
    pub(super) fn plane_name<'n>(&self, input: usize, name: &'n str) -> Cow<'n, str> {
        let numbers = &self.numbers[input];
        for (prefix, known) in
            DEVICE.iter().map(|&prefix| (prefix, &numbers.devices)).chain([(CHIP, &numbers.chips)])
        {
            if let Some((number, rest)) = numbered(name, prefix)
                && let Some(new) = known.get(&number)
            {
                return Cow::Owned(format!("{prefix}{new}{rest}"));
            }
        }
        Cow::Borrowed(name)
    }

    /// The name of a line of `input` in a plane of several processes.
    pub(super) fn line_name(&self, input: usize, name: &str) -> String {
        format!("{name} [{}]", self.labels[input].name)
    }

    /// The value of `core_details` with the numbers of the joined trace.
    pub(super) fn core_details(&self, input: usize, raw: &[u8], at: u64) -> Result<Vec<u8>, Error> {
        let numbers = &self.numbers[input];
        let (mut out, mut from) = (Vec::with_capacity(raw.len() + 4), 0);
        let mut fields = Fields::new(raw, at);
        while let Some(field) = fields.next_field()? {
            let to = (fields.position() - at) as usize;
            let new = match (field.number, field.value) {
                (ORDINAL, FieldValue::Varint(old)) => numbers.devices.get(&(old as i64)),
                (LOCAL_CHIP, FieldValue::Varint(old)) => numbers.chips.get(&(old as i64)),
                _ => None,
            };
            match new {
                Some(&new) => prost::encoding::int64::encode(field.number, &new, &mut out),
                None => out.extend_from_slice(&raw[from..to]),
            }
            from = to;
        }
        // A number of 0 is not written, and may be another one here.
        for (number, known) in [(ORDINAL, &numbers.devices), (LOCAL_CHIP, &numbers.chips)] {
            if detail(raw, number).is_none()
                && let Some(&new) = known.get(&0)
                && new != 0
            {
                prost::encoding::int64::encode(number, &new, &mut out);
            }
        }
        Ok(out)
    }
}

impl Renumbered {
    /// The numbers of a process, counted on from `devices` and `chips`.
    fn of(index: &Index, devices: &mut i64, chips: &mut i64) -> Self {
        let (mut of_devices, mut of_chips) = (BTreeSet::new(), BTreeSet::new());
        for plane in &index.planes {
            of_devices
                .extend(DEVICE.iter().filter_map(|prefix| numbered(&plane.name, prefix)).map(|(n, _)| n));
            of_chips.extend(numbered(&plane.name, CHIP).map(|(number, _)| number));
            if let Some(OwnedValue::Bytes(details)) = plane.stat(CORE_DETAILS) {
                of_chips.insert(detail(details, LOCAL_CHIP).unwrap_or(0));
            }
        }
        let count = |numbers: BTreeSet<i64>, next: &mut i64| {
            let first = *next;
            *next += numbers.len() as i64;
            numbers.into_iter().zip(first..).collect()
        };
        Self { devices: count(of_devices, devices), chips: count(of_chips, chips) }
    }
}

/// The number after `prefix`, and the rest of the name.
fn numbered<'n>(name: &'n str, prefix: &str) -> Option<(i64, &'n str)> {
    let rest = name.strip_prefix(prefix)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some((rest[..digits].parse().ok()?, &rest[digits..]))
}

/// A number of `core_details`; `None` if it is not there.
fn detail(details: &[u8], wanted: u32) -> Option<i64> {
    let mut fields = Fields::new(details, 0);
    while let Ok(Some(field)) = fields.next_field() {
        if let (number, FieldValue::Varint(value)) = (field.number, field.value)
            && number == wanted
        {
            return Some(value as i64);
        }
    }
    None
}

/// New ids for the planes whose id another plane has.
fn plane_ids(order: &[usize], indexes: &[Index]) -> BTreeMap<Member, i64> {
    let ids = || indexes.iter().flat_map(|index| index.planes.iter().map(|plane| plane.id));
    let (mut taken, mut new) = (BTreeSet::new(), BTreeMap::new());
    let mut next = ids().max().unwrap_or(0);
    for &input in order {
        for (at, plane) in indexes[input].planes.iter().enumerate() {
            if !taken.insert(plane.id) {
                next = next.saturating_add(1);
                taken.insert(next);
                new.insert((input, at), next);
            }
        }
    }
    new
}

/// The ids of the lines of one plane: those of a process stay unless another process has them.
#[derive(Debug, Default)]
pub(super) struct LineIds {
    taken: BTreeSet<i64>,
    known: BTreeMap<(usize, i64), i64>,
}

impl LineIds {
    /// The id of line `id` of `input`. `reserved` are ids that no new one may have.
    pub(super) fn of(&mut self, input: usize, id: i64, reserved: &BTreeSet<i64>) -> i64 {
        if let Some(known) = self.known.get(&(input, id)) {
            return *known;
        }
        let mut new = id;
        while self.taken.contains(&new) || (new != id && reserved.contains(&new)) {
            new = new.wrapping_add(1 << 32);
        }
        self.taken.insert(new);
        self.known.insert((input, id), new);
        new
    }
}
