//! What changed between the configurations of two attempts. Pure.
//!
//! Variables that hold flags are compared flag by flag: their order is no difference.

use std::collections::{BTreeMap, BTreeSet};

use model::secrets::REMOVED;
use proto::tpuscope::v1::AttemptStatus;
use serde::Serialize;

/// Variables whose words are flags.
const FLAGS: [&str; 2] = ["variable.LIBTPU_INIT_ARGS", "variable.XLA_FLAGS"];

/// One difference. `None`: it was not there, or not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ConfigurationChange {
    pub(super) what: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

/// What differs, by name, and how much is the same.
pub(super) fn changes(before: &AttemptStatus, after: &AttemptStatus) -> (Vec<ConfigurationChange>, usize) {
    let (before, after) = (facts(before), facts(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let all = names.len();
    let change = |what: &String| {
        let (before, after) = (before.get(what).cloned(), after.get(what).cloned());
        (before != after).then(|| ConfigurationChange { what: what.clone(), before, after })
    };
    let changes: Vec<ConfigurationChange> = names.into_iter().filter_map(change).collect();
    let same = all - changes.len();
    (changes, same)
}

/// All that can be compared: the configuration, and what is known of hosts and chips.
fn facts(attempt: &AttemptStatus) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    for (name, value) in &attempt.configuration {
        if FLAGS.contains(&name.as_str()) {
            facts.extend(
                flags(value).map(|(flag, value)| (format!("{name} {flag}").trim_end().to_owned(), value)),
            );
        } else {
            facts.insert(name.clone(), value.clone());
        }
    }
    let numbers = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    for (name, value) in [("hosts", attempt.hosts.join(",")), ("chips", numbers(&attempt.chips))] {
        if !value.is_empty() {
            facts.insert(name.to_owned(), value);
        }
    }
    facts
}

/// Flags and their values; of two equal flags the last one counts, as for the compiler. A word that was taken out is no
/// flag: it is the value of the variable.
fn flags(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split_whitespace().map(|word| {
        let flag_only = if word == REMOVED { ("", word) } else { (word, "") };
        let (flag, value) = word.split_once('=').unwrap_or(flag_only);
        (flag.to_owned(), value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(configuration: &[(&str, &str)], chips: &[u32]) -> AttemptStatus {
        let pairs = configuration.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        AttemptStatus { configuration: pairs.collect(), chips: chips.to_vec(), ..AttemptStatus::default() }
    }

    #[test]
    fn flags_are_compared_one_by_one() {
        let before = attempt(
            &[
                ("variable.XLA_FLAGS", "--a=1 --b=2 --a=3"),
                ("version.jax", "0.9"),
                ("version.python", "3.11"),
            ],
            &[0, 1],
        );
        let after = attempt(
            &[("variable.XLA_FLAGS", "--c --b=2 --a=3"), ("version.jax", "0.10"), ("version.python", "3.11")],
            &[0],
        );
        let (found, same) = changes(&before, &after);
        let shown: Vec<String> = found
            .iter()
            .map(|change| {
                format!("{}: {:?} {:?}", change.what, change.before.as_deref(), change.after.as_deref())
            })
            .collect();
        let wanted = [
            "chips: Some(\"0,1\") Some(\"0\")",
            "variable.XLA_FLAGS --c: None Some(\"\")",
            "version.jax: Some(\"0.9\") Some(\"0.10\")",
        ];
        assert_eq!((shown.iter().map(String::as_str).collect::<Vec<_>>(), same), (wanted.to_vec(), 3));
        assert_eq!(changes(&before, &before).0, []);
    }

    #[test]
    fn a_word_that_was_taken_out_is_no_flag() {
        let before = attempt(&[("variable.XLA_FLAGS", REMOVED)], &[]);
        let after = attempt(&[("variable.XLA_FLAGS", "--a=1")], &[]);
        let found: Vec<_> = changes(&before, &after)
            .0
            .into_iter()
            .map(|change| (change.what, change.before, change.after))
            .collect();
        let wanted = [
            ("variable.XLA_FLAGS".to_owned(), Some(REMOVED.to_owned()), None),
            ("variable.XLA_FLAGS --a".to_owned(), None, Some("1".to_owned())),
        ];
        assert_eq!(found, wanted);
    }
}
