//! The chips of the host's snapshot as series: what they are, whether they are sound, and who holds them.
//!
//! No I/O. Must never say that a chip is sound or at fault when its state is not known, or that it is free when a process
//! that cannot be seen may hold it.

use model::{
    catalog,
    device::{Chip, ChipState},
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
        health(chip, found);
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

/// Whether it is up, and its faults. Nothing of a chip of which that is not known: its texts say what the agent cannot read,
/// or which node its container lacks.
fn health(chip: &Chip, found: &mut Vec<HostValue>) {
    let Some(is_up) = chip.is_up() else { return };
    let up = if is_up { 1.0 } else { 0.0 };
    found.push(HostValue { labels: Labels::chip(chip.index), ..HostValue::plain(&catalog::TPU_CHIP_UP, up) });
    found.extend(chip.faults.iter().map(|fault| {
        // The rest says what to do, for a person.
        let what = fault.split(": ").next().unwrap_or(fault);
        let labels = Labels::chip(chip.index).with("fault", clean(what, FAULT));
        HostValue { labels, ..HostValue::plain(&catalog::TPU_CHIP_FAULT, 1.0) }
    }));
}

fn owners(host: &HostSnapshot, chip: &Chip, found: &mut Vec<HostValue>) {
    let of_state = |state| Labels::chip(chip.index).with("state", state);
    let before = found.len();
    for owner in host.workloads.owners.iter().filter(|owner| owner.chips.contains(&chip.index)) {
        let mut labels = of_state("held").with("command", clean_label(&owner.command));
        if let Some(user) = &owner.job.user {
            labels = labels.with("user", clean_label(user));
        }
        let workload = host.workload_of(owner.process).cloned();
        // A fork of the same command is the same series.
        let is_known = |value: &HostValue| value.labels == labels && value.workload == workload;
        if !found[before..].iter().any(is_known) {
            found.push(HostValue {
                labels,
                workload,
                ..HostValue::plain(&catalog::TPU_CHIP_OWNER_INFO, 1.0)
            });
        }
    }
    if found.len() > before {
        return;
    }
    let state = match (host.workloads.owners_unknown(chip), chip.state) {
        (Some(_), _) => "unknown",
        (None, ChipState::Ok) => "free",
        (None, _) => return,
    };
    found.push(HostValue { labels: of_state(state), ..HostValue::plain(&catalog::TPU_CHIP_OWNER_INFO, 1.0) });
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

    fn chip(index: u32, state: ChipState, faults: &[&str]) -> Chip {
        Chip {
            index: ChipIndex(index),
            name: "v6e".into(),
            pci: format!("0000:0{index}:00"),
            nodes: vec![format!("/dev/vfio/{index}").into()],
            state,
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            ..Chip::default()
        }
    }

    fn host(chips: &[Chip], owners: Vec<Owner>, hidden: Option<&str>) -> HostSnapshot {
        let workloads = Workloads { owners, hidden: hidden.map(str::to_owned), ..Workloads::default() };
        HostSnapshot { chips: chips.into(), workloads: Arc::new(workloads), ..HostSnapshot::default() }
    }

    fn owner(command: &str, chips: &[u32]) -> Owner {
        let chips = chips.iter().copied().map(ChipIndex).collect();
        Owner { chips, command: command.into(), ..Owner::default() }
    }

    /// The series of a metric, of many chips.
    fn of(metric: &str, host: &HostSnapshot) -> Vec<String> {
        let all = shown(host);
        all.iter()
            .filter_map(|line| line.strip_prefix(metric)?.strip_prefix(' ').map(str::to_owned))
            .collect()
    }

    #[test]
    fn chips_keep_their_numbers_and_say_what_is_wrong() {
        let absent = "device node /dev/vfio/3 is absent: no driver is bound to PCI function 0000:03:00.0";
        let chips = [
            Chip { numa_node: Some(1), ..chip(0, ChipState::Ok, &[]) },
            chip(3, ChipState::Absent, &[absent]),
        ];
        let host =
            HostSnapshot { chips_expected: Some(4), ..host(&chips, vec![owner("python3", &[0])], None) };
        assert_eq!(
            shown(&host),
            [
                "tpu_chips_expected  4",
                "tpu_chip_info chip=0,pci=0000:00:00,type=v6e,numa_node=1 1",
                "tpu_chip_up chip=0 1",
                "tpu_chip_owner_info chip=0,state=held,command=python3 1",
                "tpu_chip_info chip=3,pci=0000:03:00,type=v6e 1",
                "tpu_chip_up chip=3 0",
                "tpu_chip_fault chip=3,fault=device node /dev/vfio/3 is absent 1",
            ]
        );
        assert_eq!(shown(&HostSnapshot::default()), Vec::<String>::new());
    }

    #[test]
    fn up_is_what_the_state_says_and_nothing_where_it_says_nothing() {
        let chips = [
            chip(0, ChipState::Ok, &[]),
            chip(1, ChipState::Absent, &["device node /dev/vfio/1 is absent: no driver is bound"]),
            chip(2, ChipState::Fault, &["no driver is bound to PCI function 0000:02:00.0"]),
            chip(
                3,
                ChipState::Unknown,
                &["device node /dev/vfio/3 cannot be read (denied): its state is unknown"],
            ),
            // The node is not passed into the agent's container.
            Chip {
                absent_here_only: true,
                ..chip(4, ChipState::Absent, &["device node /dev/vfio/4 is absent: driver vfio-pci is bound"])
            },
        ];
        let host = host(&chips, Vec::new(), None);
        assert_eq!(of("tpu_chip_up", &host), ["chip=0 1", "chip=1 0", "chip=2 0"]);
        assert_eq!(
            of("tpu_chip_fault", &host),
            [
                "chip=1,fault=device node /dev/vfio/1 is absent 1",
                "chip=2,fault=no driver is bound to PCI function 0000:02:00.0 1"
            ]
        );
        assert_eq!(of("tpu_chip_info", &host).len(), 5);
    }

    #[test]
    fn a_chip_is_free_only_where_it_can_be_opened_and_all_processes_are_seen() {
        let no_node = Chip { nodes: Vec::new(), ..chip(4, ChipState::Unknown, &["no IOMMU group"]) };
        let chips = [
            chip(0, ChipState::Ok, &[]),
            chip(1, ChipState::Ok, &[]),
            chip(2, ChipState::Absent, &["device node is absent"]),
            chip(3, ChipState::Fault, &["no driver is bound"]),
            no_node,
        ];
        let owners = |hidden| {
            of(
                "tpu_chip_owner_info",
                &host(&chips, vec![owner("a", &[0]), owner("b", &[0]), owner("a", &[0])], hidden),
            )
        };
        let held = ["chip=0,state=held,command=a 1", "chip=0,state=held,command=b 1"];
        let seen = owners(None);
        assert_eq!(seen[..2], held);
        assert_eq!(seen[2..], ["chip=1,state=free 1", "chip=4,state=unknown 1"]);
        let unseen = owners(Some("another pid namespace"));
        assert_eq!(unseen[..2], held);
        let unknown: Vec<_> = (1..5).map(|chip| format!("chip={chip},state=unknown 1")).collect();
        assert_eq!(unseen[2..], unknown);
    }
}
