//! Logs the chips that appear, vanish or have a fault, and the processes that begin and cease to use chips.

use std::time::Instant;

use model::{
    device::Chip,
    log_budget::{LogBudget, LogPermit},
    registry::WorkloadEvent,
    workload::Owner,
};
use tracing::{info, warn};

/// The log of the host's changes.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    budget: LogBudget,
}

/// A change of a chip.
#[derive(Debug, PartialEq, Eq)]
enum ChipChange<'a> {
    Appeared(&'a Chip),
    Vanished(&'a Chip),
    Fault(&'a Chip, &'a str),
    FaultOver(&'a Chip, &'a str),
}

impl ChangeLog {
    /// Logs the changes of the chips between two scans.
    pub(crate) fn chips(&mut self, before: &[Chip], after: &[Chip]) {
        for change in chip_changes(before, after) {
            let Some(suffix) = self.suffix() else { return };
            match change {
                ChipChange::Appeared(chip) => {
                    let Chip { index, name, pci, .. } = chip;
                    info!(chip = index.0, %name, %pci, "a chip appeared{suffix}");
                }
                ChipChange::Vanished(chip) => {
                    let Chip { index, name, pci, .. } = chip;
                    warn!(chip = index.0, %name, %pci, "a chip vanished{suffix}");
                }
                ChipChange::Fault(chip, fault) => {
                    warn!(chip = chip.index.0, pci = %chip.pci, fault, "a chip has a fault{suffix}");
                }
                ChipChange::FaultOver(chip, fault) => {
                    info!(chip = chip.index.0, pci = %chip.pci, fault, "the fault of a chip is over{suffix}");
                }
            }
        }
    }

    /// Logs the changes of the owners between two scans.
    pub(crate) fn owners(&mut self, before: &[Owner], after: &[Owner]) {
        let is_in = |owners: &[Owner], owner: &Owner| owners.iter().any(|it| it.process == owner.process);
        let came = after.iter().filter(|owner| !is_in(before, owner)).map(|owner| (owner, "begins"));
        let went = before.iter().filter(|owner| !is_in(after, owner)).map(|owner| (owner, "ceases"));
        for (owner, what) in came.chain(went) {
            let Some(suffix) = self.suffix() else { return };
            let chips: Vec<String> = owner.chips.iter().map(|chip| chip.0.to_string()).collect();
            let (pid, uid, command) = (owner.process.pid, owner.uid, &owner.command);
            info!(pid, uid, %command, chips = chips.join(","), "a process {what} to use chips{suffix}");
        }
    }

    /// Logs the start or end of a workload.
    pub(crate) fn workload(&mut self, event: &WorkloadEvent) {
        let Some(suffix) = self.suffix() else { return };
        let (what, workload) = match event {
            WorkloadEvent::Started { workload, .. } => ("started", workload),
            WorkloadEvent::Ended { workload, .. } => ("ended", workload),
        };
        let (job, kind) = (workload.id.job.as_str(), workload.id.kind.as_str());
        info!(job, kind, processes = workload.owners.len(), "workload {what}{suffix}");
    }

    fn suffix(&mut self) -> Option<&'static str> {
        LogPermit::suffix(self.budget.take(Instant::now()))
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

#[cfg(test)]
mod tests {
    use model::device::{ChipIndex, Generation};

    use super::*;

    fn chip(pci: &str, faults: &[&str]) -> Chip {
        Chip {
            index: ChipIndex(0),
            generation: Generation::V6e,
            name: "v6e".into(),
            pci: pci.into(),
            nodes: Vec::new(),
            cores: None,
            hbm_bytes: None,
            peak: None,
            duty_cycle_per: None,
            numa_node: None,
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
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
}
