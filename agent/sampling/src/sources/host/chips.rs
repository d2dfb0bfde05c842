//! The chips of the host's snapshot as series: what they are, whether they are sound, and who holds them.
//!
//! No I/O. Must never say that a chip is sound when its scan found a fault.

use model::{
    catalog,
    device::Chip,
    label::Labels,
    snapshot::HostSnapshot,
    untrusted::{clean, clean_label},
};

use super::HostValue;

/// Longest text of a fault.
const FAULT: usize = 128;

/// The series of all chips.
pub(super) fn collect(host: &HostSnapshot, found: &mut Vec<HostValue>) {
    if let Some(expected) = host.chips_expected {
        found.push(HostValue::plain(&catalog::TPU_CHIPS_EXPECTED, expected.into()));
    }
    for chip in host.chips.iter() {
        found.push(info(chip));
        let up = f64::from(u8::from(chip.faults.is_empty()));
        found.push(HostValue {
            labels: Labels::chip(chip.index),
            ..HostValue::plain(&catalog::TPU_CHIP_UP, up)
        });
        found.extend(chip.faults.iter().map(|fault| {
            // The rest says what to do, for a person.
            let what = fault.split(": ").next().unwrap_or(fault);
            let labels = Labels::chip(chip.index).with("fault", clean(what, FAULT));
            HostValue { labels, ..HostValue::plain(&catalog::TPU_CHIP_FAULT, 1.0) }
        }));
        owners(host, chip, found);
    }
}

fn info(chip: &Chip) -> HostValue {
    let labels =
        Labels::chip(chip.index).with("pci", clean_label(&chip.pci)).with("type", clean_label(&chip.name));
    let labels = match chip.numa_node {
        Some(node) => labels.with("numa_node", node),
        None => labels,
    };
    HostValue { labels, ..HostValue::plain(&catalog::TPU_CHIP_INFO, 1.0) }
}

fn owners(host: &HostSnapshot, chip: &Chip, found: &mut Vec<HostValue>) {
    for owner in host.workloads.owners.iter().filter(|owner| owner.chips.contains(&chip.index)) {
        let mut labels = Labels::chip(chip.index).with("command", clean_label(&owner.command));
        if let Some(user) = &owner.job.user {
            labels = labels.with("user", clean_label(user));
        }
        let workload = host.workload_of(owner.process).cloned();
        found.push(HostValue { labels, workload, ..HostValue::plain(&catalog::TPU_CHIP_OWNER_INFO, 1.0) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        device::ChipIndex,
        workload::{Owner, Workloads},
    };

    use super::*;

    fn shown(host: &HostSnapshot) -> Vec<String> {
        let mut found = Vec::new();
        collect(host, &mut found);
        found
            .iter()
            .map(|value| {
                let labels: Vec<_> = value.labels.iter().map(|(name, of)| format!("{name}={of}")).collect();
                format!("{} {} {}", value.metric.name, labels.join(","), value.value)
            })
            .collect()
    }

    #[test]
    fn chips_keep_their_numbers_and_say_what_is_wrong() {
        let chip = |index, faults: &[&str]| Chip {
            index: ChipIndex(index),
            name: "v6e".into(),
            pci: format!("0000:0{index}:00"),
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            ..Chip::default()
        };
        let faulty = chip(3, &["device node /dev/vfio/3 is absent: the driver is not bound"]);
        let owner = Owner { chips: vec![ChipIndex(0)], command: "python3".into(), ..Owner::default() };
        let host = HostSnapshot {
            chips: [Chip { numa_node: Some(1), ..chip(0, &[]) }, faulty].into(),
            chips_expected: Some(4),
            workloads: Arc::new(Workloads { owners: vec![owner], ..Workloads::default() }),
            ..HostSnapshot::default()
        };
        assert_eq!(
            shown(&host),
            [
                "tpu_chips_expected  4",
                "tpu_chip_info chip=0,pci=0000:00:00,type=v6e,numa_node=1 1",
                "tpu_chip_up chip=0 1",
                "tpu_chip_owner_info chip=0,command=python3 1",
                "tpu_chip_info chip=3,pci=0000:03:00,type=v6e 1",
                "tpu_chip_up chip=3 0",
                "tpu_chip_fault chip=3,fault=device node /dev/vfio/3 is absent 1",
            ]
        );
        assert_eq!(shown(&HostSnapshot::default()), Vec::<String>::new());
    }
}
