//! Logs the chips that appear, vanish or have a fault, and the processes and workloads that begin and cease to use chips:
//! each change once, and at a bounded rate.

use model::{
    device::Chip,
    log_budget::{LogBudget, LogPermit},
    registry::WorkloadEvent,
    workload::Owner,
};
use tokio::time::Instant;
use tracing::{info, warn};

/// The log of the host's changes. A job that starts again and again must not hide a chip that vanishes.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    chips: LogBudget,
    workloads: LogBudget,
}

/// A change of a chip.
#[derive(Debug, PartialEq, Eq)]
enum ChipChange<'a> {
    Appeared(&'a Chip),
    Vanished(&'a Chip),
    Fault(&'a Chip, &'a str),
    FaultOver(&'a Chip, &'a str),
}

/// A change of a process that uses chips.
#[derive(Debug, PartialEq, Eq)]
enum OwnerChange<'a> {
    Came(&'a Owner),
    OtherChips(&'a Owner),
    Went(&'a Owner),
}

impl ChangeLog {
    /// Logs the changes of the chips between two scans.
    pub(crate) fn chips(&mut self, before: &[Chip], after: &[Chip], now: Instant) {
        for change in chip_changes(before, after) {
            if let Some(permit) = self.chips.take(now) {
                change.log(permit);
            }
        }
    }

    /// Logs the changes of the owners between two scans.
    pub(crate) fn owners(&mut self, before: &[Owner], after: &[Owner], now: Instant) {
        for change in owner_changes(before, after) {
            if let Some(permit) = self.workloads.take(now) {
                change.log(permit);
            }
        }
    }

    /// Logs the start or end of a workload.
    pub(crate) fn workload(&mut self, event: &WorkloadEvent, now: Instant) {
        let Some(permit) = self.workloads.take(now) else { return };
        let (what, workload) = match event {
            WorkloadEvent::Started { workload, .. } => ("started", workload),
            WorkloadEvent::Ended { workload, .. } => ("ended", workload),
        };
        let (job, kind) = (workload.id.job.as_str(), workload.id.kind.as_str());
        info!(job, kind, processes = workload.owners.len(), "workload {what}{permit}");
    }
}

impl ChipChange<'_> {
    fn log(&self, permit: LogPermit) {
        match *self {
            Self::Appeared(Chip { index, name, pci, .. }) => {
                info!(chip = index.0, %name, %pci, "chip appeared{permit}");
            }
            Self::Vanished(Chip { index, name, pci, .. }) => {
                warn!(chip = index.0, %name, %pci, "chip vanished{permit}");
            }
            Self::Fault(chip @ Chip { index, pci, state, .. }, fault) => {
                let what = match chip.is_up() {
                    Some(_) => "chip has a fault",
                    None => "health of a chip is unknown",
                };
                warn!(chip = index.0, %pci, state = state.as_str(), fault, "{what}{permit}");
            }
            Self::FaultOver(Chip { index, pci, state, .. }, fault) => {
                info!(chip = index.0, %pci, state = state.as_str(), fault, "fault of a chip is over{permit}");
            }
        }
    }
}

impl OwnerChange<'_> {
    fn log(&self, permit: LogPermit) {
        let (owner, what) = match *self {
            Self::Came(owner) if owner.chips.is_empty() => (owner, "process without chips was found"),
            Self::Came(owner) => (owner, "process uses chips"),
            Self::OtherChips(owner) => (owner, "process uses other chips than before"),
            Self::Went(owner) if owner.chips.is_empty() => (owner, "process without chips is gone"),
            Self::Went(owner) => (owner, "process no longer uses chips"),
        };
        let chips: Vec<String> = owner.chips.iter().map(|chip| chip.0.to_string()).collect();
        let (pid, uid, command) = (owner.process.pid, owner.uid, owner.command.as_str());
        let (job, kind) = (owner.job.id.as_str(), owner.job.kind.as_str());
        info!(pid, uid, command, chips = chips.join(","), job, kind, "{what}{permit}");
    }
}

/// The changes between two scans. A chip is the same if its PCI address is.
fn chip_changes<'a>(before: &'a [Chip], after: &'a [Chip]) -> Vec<ChipChange<'a>> {
    let find = |chips: &'a [Chip], chip: &Chip| chips.iter().find(|it| it.pci == chip.pci);
    let mut changes = Vec::new();
    for chip in after {
        let known = find(before, chip);
        if known.is_none() {
            changes.push(ChipChange::Appeared(chip));
        }
        let faults = known.map_or(&[][..], |known| &known.faults);
        let new = chip.faults.iter().filter(|fault| !faults.contains(fault));
        changes.extend(new.map(|fault| ChipChange::Fault(chip, fault)));
        let over = faults.iter().filter(|fault| !chip.faults.contains(fault));
        changes.extend(over.map(|fault| ChipChange::FaultOver(chip, fault)));
    }
    let gone = before.iter().filter(|chip| find(after, chip).is_none());
    changes.extend(gone.map(ChipChange::Vanished));
    changes
}

/// The changes between two scans. A process opens its chips one after the other.
fn owner_changes<'a>(before: &'a [Owner], after: &'a [Owner]) -> Vec<OwnerChange<'a>> {
    let find = |owners: &'a [Owner], owner: &Owner| owners.iter().find(|it| it.process == owner.process);
    let now = after.iter().filter_map(|owner| match find(before, owner) {
        None => Some(OwnerChange::Came(owner)),
        Some(known) if known.chips != owner.chips => Some(OwnerChange::OtherChips(owner)),
        Some(_) => None,
    });
    let gone = before.iter().filter(|owner| find(after, owner).is_none());
    now.chain(gone.map(OwnerChange::Went)).collect()
}

#[cfg(test)]
mod tests {
    use model::{device::ChipIndex, workload::ProcessKey};

    use super::*;

    fn chip(pci: &str, faults: &[&str]) -> Chip {
        Chip {
            pci: pci.into(),
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            ..Chip::default()
        }
    }

    #[test]
    fn each_change_of_a_chip_is_found_once() {
        let (a, b, faulty) = (chip("a", &[]), chip("b", &[]), chip("a", &["no node"]));
        let (only_a, both, only_faulty) = ([a.clone()], [a.clone(), b.clone()], [faulty.clone()]);
        assert_eq!(chip_changes(&[], &only_a), [ChipChange::Appeared(&a)]);
        assert_eq!(chip_changes(&only_a, &only_a), []);
        assert_eq!(chip_changes(&only_a, &only_faulty), [ChipChange::Fault(&faulty, "no node")]);
        assert_eq!(chip_changes(&only_faulty, &only_a), [ChipChange::FaultOver(&a, "no node")]);
        assert_eq!(chip_changes(&only_faulty, &only_faulty), []);
        assert_eq!(chip_changes(&both, &only_a), [ChipChange::Vanished(&b)]);
        let found = chip_changes(&[], &only_faulty);
        assert_eq!(found, [ChipChange::Appeared(&faulty), ChipChange::Fault(&faulty, "no node")]);
    }

    #[test]
    fn an_owner_comes_opens_further_chips_and_goes() {
        let owner = |pid, start_ticks, chips: &[u32]| Owner {
            process: ProcessKey { pid, start_ticks },
            chips: chips.iter().map(|chip| ChipIndex(*chip)).collect(),
            ..Owner::default()
        };
        let (first, both, successor) = (owner(7, 1, &[0]), owner(7, 1, &[0, 1]), owner(7, 9, &[0]));
        let slice = std::slice::from_ref;
        assert_eq!(owner_changes(&[], slice(&first)), [OwnerChange::Came(&first)]);
        assert_eq!(owner_changes(slice(&first), slice(&both)), [OwnerChange::OtherChips(&both)]);
        assert_eq!(owner_changes(slice(&both), slice(&both)), []);
        // The same pid, another process.
        let changes = [OwnerChange::Came(&successor), OwnerChange::Went(&both)];
        assert_eq!(owner_changes(slice(&both), slice(&successor)), changes);
        assert_eq!(owner_changes(slice(&successor), &[]), [OwnerChange::Went(&successor)]);
    }
}
