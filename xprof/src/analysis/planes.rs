//! Which plane is what, by name.

use crate::reader::{OwnedValue, PlaneIndex};
use crate::wire::{FieldValue, Fields};

/// What a plane stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaneKind {
    /// `/device:TPU:<ordinal>`: a TensorCore.
    TensorCore { ordinal: i64 },
    /// `/device:TPU:<ordinal> SparseCore <k>`.
    SparseCore { ordinal: i64 },
    /// `/host:CPU`: the host's threads.
    Host,
    /// Anything else.
    Other,
}

/// Planes of devices of any kind.
pub(super) const DEVICES: &str = "/device:";
const DEVICE: &str = "/device:TPU:";
/// Planes of devices that stand for others.
const VIRTUAL_DEVICES: &str = "/virtualdevice:";

/// A device's plane with events that this build does not read, such as a GPU's: its operations are in no figure.
pub(super) fn is_unread_device(plane: &PlaneIndex) -> bool {
    let is_device = plane.name.starts_with(DEVICES) || plane.name.starts_with(VIRTUAL_DEVICES);
    is_device && kind(&plane.name, true) == PlaneKind::Other && plane.lines.iter().any(|line| line.events > 0)
}

/// The kind of a plane. With `subprocesses`, a name that ends in ` [pid]` counts as the name before it.
pub(super) fn kind(name: &str, subprocesses: bool) -> PlaneKind {
    let name = if subprocesses { without_pid(name) } else { name };
    if name == "/host:CPU" {
        return PlaneKind::Host;
    }
    let Some(rest) = name.strip_prefix(DEVICE) else { return PlaneKind::Other };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let Ok(ordinal) = rest[..digits].parse() else { return PlaneKind::Other };
    match &rest[digits..] {
        "" => PlaneKind::TensorCore { ordinal },
        rest if is_sparse_core(rest) => PlaneKind::SparseCore { ordinal },
        _ => PlaneKind::Other,
    }
}

/// ` SparseCore <k>`, with at most one word before the number.
fn is_sparse_core(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix(" SparseCore ") else { return false };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match rest.split_once(' ') {
        None => number(rest),
        Some((word, last)) => {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic()) && number(last)
        }
    }
}

fn without_pid(name: &str) -> &str {
    let Some((before, pid)) = name.strip_suffix(']').and_then(|name| name.rsplit_once(" [")) else {
        return name;
    };
    if !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) { before } else { name }
}

/// The chip that a core belongs to, where the plane tells.
pub(super) fn local_chip(plane: &PlaneIndex) -> Option<i64> {
    let details = plane.stat("core_details").and_then(OwnedValue::bytes)?;
    let mut fields = Fields::new(details, 0);
    // The details are there: a field that is missing has its default, 0.
    let mut chip = 0;
    while let Ok(Some(field)) = fields.next_field() {
        if let (4, FieldValue::Varint(value)) = (field.number, field.value) {
            chip = value as i64;
        }
    }
    Some(chip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(kind("/device:TPU:3", false), PlaneKind::TensorCore { ordinal: 3 });
        assert_eq!(kind("/device:TPU:3 SparseCore 1", false), PlaneKind::SparseCore { ordinal: 3 });
        assert_eq!(kind("/device:TPU:3 SparseCore tile 1", false), PlaneKind::SparseCore { ordinal: 3 });
        assert_eq!(kind("/device:TPU:3 SparseCore", false), PlaneKind::Other);
        assert_eq!(kind("/device:TPU:", false), PlaneKind::Other);
        assert_eq!(kind("/device:GPU:0", false), PlaneKind::Other);
        assert_eq!(kind("#Chip0 TPU HBM", false), PlaneKind::Other);
        assert_eq!(kind("/device:TPU:12 [77]", true), PlaneKind::TensorCore { ordinal: 12 });
        assert_eq!(kind("/device:TPU:12 [77]", false), PlaneKind::Other);
        assert_eq!(kind("/host:CPU", false), PlaneKind::Host);
    }
}
