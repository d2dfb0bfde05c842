//! The software and the system of an attempt, as far as discovery may look. Pure.
//!
//! Must never keep a variable that is not on the list of discovery; discovery takes out words that look like secrets.

use std::collections::BTreeMap;

use host::workloads::CONFIGURATION_VARIABLES;
use model::{device::ChipIndex, snapshot::HostSnapshot, untrusted::clean, workload::Owner};

use crate::attempt::Configuration;

/// The longest value that is kept.
const LONGEST_VALUE: usize = 4096;

/// What is the same for all jobs of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemFacts {
    /// The release of the kernel.
    pub kernel: String,
    /// The version of the agent.
    pub agent: String,
}

/// The configuration of the processes of one job, the first of them first. `chips` are theirs.
pub(crate) fn of(
    owners: &[&Owner],
    chips: &[ChipIndex],
    snapshot: &HostSnapshot,
    system: &SystemFacts,
) -> Configuration {
    let mut all = Configuration::new();
    let mut add = |name: String, value: &str| {
        if !value.is_empty() {
            all.entry(name).or_insert_with(|| clean(value, LONGEST_VALUE));
        }
    };
    for owner in owners {
        for (package, version) in &owner.versions {
            add(format!("version.{package}"), version);
        }
        for variable in CONFIGURATION_VARIABLES {
            if let Some(value) = owner.environment.get(*variable) {
                add(format!("variable.{variable}"), value);
            }
        }
    }
    add("system.chips".to_owned(), &chips_in_words(chips, snapshot));
    add("system.kernel".to_owned(), &system.kernel);
    add("system.agent".to_owned(), &system.agent);
    all
}

/// How many chips of which kind: `4 x v5e`.
fn chips_in_words(chips: &[ChipIndex], snapshot: &HostSnapshot) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for chip in snapshot.chips.iter().filter(|chip| chips.contains(&chip.index)) {
        *counts.entry(&chip.name).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_variables_and_system_of_the_first_process_that_knows_them() {
        let owner = |versions: &[(&str, &str)], variables: &[(&str, &str)]| {
            let map = |pairs: &[(&str, &str)]| {
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
            };
            Owner { versions: map(versions), environment: map(variables), ..Owner::default() }
        };
        let first = owner(&[("jax", "0.10.2")], &[("XLA_FLAGS", "--a=1"), ("TPU_WORKER_HOSTNAMES", "t0,t1")]);
        let second = owner(&[("jax", "0.9"), ("python", "3.11")], &[("XLA_FLAGS", "")]);
        let system = SystemFacts { kernel: "6.1".into(), agent: "0.2.0".into() };
        let all = of(&[&first, &second], &[], &HostSnapshot::default(), &system);
        let shown: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let wanted = [
            "system.agent=0.2.0",
            "system.kernel=6.1",
            "variable.XLA_FLAGS=--a=1",
            "version.jax=0.10.2",
            "version.python=3.11",
        ];
        assert_eq!(shown, wanted);
        let long = owner(&[], &[("XLA_FLAGS", &"x".repeat(9000))]);
        assert_eq!(
            of(&[&long], &[], &HostSnapshot::default(), &system)["variable.XLA_FLAGS"].chars().count(),
            4097
        );
    }
}
