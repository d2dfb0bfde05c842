//! The host's service names a chip by tray and number, such as `1-0`, where it speaks of throttling, and in the names of
//! links, such as `tray1.chip0.ici0.int`. Which chip of this host that is, is known from the entry of the reply in which
//! the name stands.
//!
//! No I/O. Must never guess: a name that no entry or several entries of known chips have is of an unknown chip.

use std::collections::BTreeMap;

use model::{
    label::{CHIP, LabelValue, Labels},
    untrusted::clean_label,
};

const TRAY_CHIP: &str = "tray_chip";
/// The value of a label where the mapping is not known.
const UNKNOWN: &str = "unknown";
/// Maximum number of digits of a tray or a chip in the name of a link.
const MAX_DIGITS: usize = 9;
/// Maximum number of names that are taken from one reply: more than any host has chips.
const MAX_NAMES: usize = 256;

/// The name `1-0` of a chip.
pub(super) fn name(tray: impl std::fmt::Display, chip: impl std::fmt::Display) -> String {
    format!("{tray}-{chip}")
}

/// The chip at whose side a link is, by the link's name; `None` where the name has another form.
pub(super) fn of_link(link: &str) -> Option<String> {
    let (tray, rest) = link.strip_prefix("tray")?.split_once('.')?;
    let (chip, _) = rest.strip_prefix("chip")?.split_once('.')?;
    let is_number =
        |text: &str| (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(tray) && is_number(chip)).then(|| name(tray, chip))
}

/// The labels of a chip that is named so.
pub(super) fn labels(name: &str) -> Labels {
    Labels::one(TRAY_CHIP, clean_label(name))
}

/// The labels of a link: its name, and its chip's.
pub(super) fn link_labels(link: &str) -> Labels {
    let tray_chip = of_link(link).unwrap_or_else(|| UNKNOWN.to_owned());
    Labels::one("link", clean_label(link)).with(TRAY_CHIP, tray_chip)
}

/// The names in one reply, each with the index of its chip where that is known.
#[derive(Debug, Default)]
pub(super) struct TrayChips(BTreeMap<String, Option<u32>>);

impl TrayChips {
    /// The entry of `chip` has this name.
    pub(super) fn add(&mut self, name: String, chip: Option<u32>) {
        if self.0.len() >= MAX_NAMES && !self.0.contains_key(&name) {
            return;
        }
        let known = self.0.entry(name).or_insert(chip);
        if *known != chip {
            *known = None;
        }
    }

    /// The labels of each name, with its chip.
    pub(super) fn series(&self) -> impl Iterator<Item = Labels> {
        self.0.iter().map(|(name, chip)| {
            // Two names of one chip: one of them is not its own.
            let is_alone = self.0.values().filter(|other| *other == chip).count() == 1;
            let chip = chip.filter(|_| is_alone).map_or(UNKNOWN.into(), LabelValue::from);
            labels(name).with(CHIP, chip)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(labels: &Labels) -> String {
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        labels.join(",")
    }

    #[test]
    fn a_link_is_at_the_side_of_its_chip() {
        assert_eq!(shown(&link_labels("tray1.chip0.ici0.int")), "link=tray1.chip0.ici0.int,tray_chip=1-0");
        assert_eq!(of_link("tray12.chip3.ici1.ext").as_deref(), Some("12-3"));
        for other in [
            "",
            "ici0",
            "tray.chip0.x",
            "tray1.chip.x",
            "tray1.chip0",
            "tray-1.chip0.x",
            "tray1.chip0000000000.x",
        ] {
            assert_eq!(of_link(other), None, "{other}");
        }
        assert_eq!(shown(&link_labels("port 7\n")), "link=port 7\u{fffd},tray_chip=unknown");
    }

    #[test]
    fn a_name_has_a_chip_only_where_the_entries_agree() {
        let of = |entries: &[(&str, Option<u32>)]| {
            let mut names = TrayChips::default();
            entries.iter().for_each(|(name, chip)| names.add((*name).to_owned(), *chip));
            names.series().map(|labels| shown(&labels)).collect::<Vec<_>>()
        };
        // A link of the entry repeats the name.
        assert_eq!(
            of(&[("0-0", Some(0)), ("0-0", Some(0)), ("0-1", Some(1))]),
            ["tray_chip=0-0,chip=0", "tray_chip=0-1,chip=1"]
        );
        assert_eq!(
            of(&[("0-0", None), ("0-1", Some(1))]),
            ["tray_chip=0-0,chip=unknown", "tray_chip=0-1,chip=1"]
        );
        let names: Vec<_> = (0..2 * MAX_NAMES).map(|at| format!("0-{at}")).collect();
        assert_eq!(of(&names.iter().map(|name| (name.as_str(), None)).collect::<Vec<_>>()).len(), MAX_NAMES);
        // Two chips with one name, and two names of one chip.
        assert_eq!(
            of(&[("0-0", Some(0)), ("0-0", Some(1)), ("0-0", Some(0))]),
            ["tray_chip=0-0,chip=unknown"]
        );
        assert_eq!(
            of(&[("0-0", Some(0)), ("0-1", Some(0))]),
            ["tray_chip=0-0,chip=unknown", "tray_chip=0-1,chip=unknown"]
        );
    }
}
