//! Logs the chips that appear, vanish or have a fault, and the processes and workloads that begin and cease to use chips:
//! each change once, and at a bounded rate.

use model::{bounded_log::BoundedLog, device::Chip, registry::WorkloadEvent, workload::Owner};
use tokio::time::Instant;
use tracing::{info, warn};

/// The log of the host's changes.
#[derive(Default)]
pub(crate) struct ChangeLog {
    log: BoundedLog,
    /// The chips of the last listing.
    chips: Vec<Chip>,
    /// Why the chips could not be listed, as the log said last.
    chips_unknown: Option<String>,
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
    /// Logs the changes of the chips since the last listing.
    pub(crate) fn chips(&mut self, listed: &[Chip], now: Instant) {
        if self.chips_unknown.take().is_some() {
            self.log.write("chips can be listed again", now, |text| info!("{text}"));
        }
        for change in chip_changes(&self.chips, listed) {
            change.log(&mut self.log, now);
        }
        self.chips = listed.to_vec();
    }

    /// Logs that the chips cannot be listed: once, and again with another reason. None of them has vanished.
    pub(crate) fn chips_unknown(&mut self, why: &str, now: Instant) {
        if self.chips_unknown.as_deref() != Some(why) {
            let why = self.chips_unknown.insert(why.to_owned()).clone();
            self.log.write("chips are unknown", now, move |text| warn!("{text}: {why}"));
        }
    }

    /// Logs the changes of the owners between two scans.
    pub(crate) fn owners(&mut self, before: &[Owner], after: &[Owner], now: Instant) {
        for change in owner_changes(before, after) {
            change.log(&mut self.log, now);
        }
    }

    /// Logs the start or end of a workload.
    pub(crate) fn workload(&mut self, event: &WorkloadEvent, now: Instant) {
        let (text, workload) = match event {
            WorkloadEvent::Started { workload, .. } => ("workload started", workload),
            WorkloadEvent::Ended { workload, .. } => ("workload ended", workload),
        };
        let (id, processes) = (workload.id.clone(), workload.owners.len());
        self.log.write(text, now, move |text| {
            info!(job = id.job.as_str(), kind = id.kind.as_str(), processes, "{text}");
        });
    }

    /// Logs the last changes that were too many at their time.
    pub(crate) fn flush(&mut self, now: Instant) {
        self.log.flush(now);
    }
}

impl ChipChange<'_> {
    fn log(&self, log: &mut BoundedLog, now: Instant) {
        let (Self::Appeared(chip) | Self::Vanished(chip) | Self::Fault(chip, _) | Self::FaultOver(chip, _)) =
            *self;
        let (index, state) = (chip.index.0, chip.state.as_str());
        let (name, pci) = (chip.name.clone(), chip.pci.clone());
        match *self {
            Self::Appeared(_) => {
                log.write("chip appeared", now, move |text| info!(chip = index, %name, %pci, "{text}"));
            }
            Self::Vanished(_) => {
                log.write("chip vanished", now, move |text| warn!(chip = index, %name, %pci, "{text}"));
            }
            Self::Fault(_, fault) => {
                let what = match chip.is_up() {
                    Some(_) => "chip has a fault",
                    None => "health of a chip is unknown",
                };
                let fault = fault.to_owned();
                log.write(what, now, move |text| {
                    warn!(chip = index, %pci, state, fault, "{text}");
                });
            }
            Self::FaultOver(_, fault) => {
                let fault = fault.to_owned();
                log.write("fault of a chip is over", now, move |text| {
                    info!(chip = index, %pci, state, fault, "{text}");
                });
            }
        }
    }
}

impl OwnerChange<'_> {
    fn log(&self, log: &mut BoundedLog, now: Instant) {
        let (owner, text) = match *self {
            Self::Came(owner) if owner.chips.is_empty() => (owner, "process without chips was found"),
            Self::Came(owner) => (owner, "process uses chips"),
            Self::OtherChips(owner) => (owner, "process uses other chips than before"),
            Self::Went(owner) if owner.chips.is_empty() => (owner, "process without chips is gone"),
            Self::Went(owner) => (owner, "process no longer uses chips"),
        };
        let chips = owner.chips.iter().map(|chip| chip.0.to_string()).collect::<Vec<_>>().join(",");
        let (pid, uid, command, job) =
            (owner.process.pid, owner.uid, owner.command.clone(), owner.job.clone());
        log.write(text, now, move |text| {
            let (command, job, kind) = (command.as_str(), job.id.as_str(), job.kind.as_str());
            info!(pid, uid, command, chips, job, kind, "{text}");
        });
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
