//! Host names as a short list in Slurm's syntax: `tpu-[001-028],b`.
//!
//! Must never name a host that is not among them.

use std::{fmt::Write, ops::RangeInclusive};

/// Names that differ in one number.
#[derive(Debug)]
struct Series<'n> {
    /// The first name.
    name: &'n str,
    /// Where the number is in it.
    number: Option<RangeInclusive<usize>>,
    /// The digits of the numbers; none: they differ, and no number begins with 0.
    width: Option<usize>,
    ranges: Vec<[u64; 2]>,
}

/// Where the digits of a name are.
fn digits(name: &str) -> Vec<RangeInclusive<usize>> {
    let mut runs: Vec<RangeInclusive<usize>> = Vec::new();
    for (at, _) in name.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit()) {
        match runs.last_mut().filter(|run| *run.end() + 1 == at) {
            Some(run) => *run = *run.start()..=at,
            None => runs.push(at..=at),
        }
    }
    runs
}

fn is_plain(digits: &str) -> bool {
    digits.len() == 1 || !digits.starts_with('0')
}

impl<'n> Series<'n> {
    fn of(name: &'n str) -> Self {
        Self { name, number: None, width: None, ranges: Vec::new() }
    }

    /// Takes a name in that differs from the others in the number alone. Returns whether it does.
    fn take(&mut self, name: &str) -> bool {
        // Brackets are those of an address of IPv6.
        if self.name.contains('[') {
            return false;
        }
        let of_first = digits(self.name);
        let candidates =
            of_first.iter().filter(|run| self.number.as_ref().is_none_or(|number| number == *run));
        for run in candidates {
            let (before, after) = (&self.name[..*run.start()], &self.name[*run.end() + 1..]);
            let middle = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            let Some(middle) = middle.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit())) else {
                continue;
            };
            let first = &self.name[run.clone()];
            let width = self.width.unwrap_or(first.len());
            let same_width = middle.len() == width && (self.ranges.is_empty() || self.width.is_some());
            let plain = is_plain(first) && is_plain(middle);
            let (Ok(from), Ok(number)) = (first.parse::<u64>(), middle.parse::<u64>()) else { continue };
            if !(same_width || plain && self.all_plain()) || self.number.is_none() && from == number {
                continue;
            }
            if self.ranges.is_empty() {
                self.ranges.push([from; 2]);
            }
            self.width = same_width.then_some(width);
            self.number = Some(run.clone());
            match self.ranges.last_mut().filter(|[_, last]| last.checked_add(1) == Some(number)) {
                Some([_, last]) => *last = number,
                None => self.ranges.push([number; 2]),
            }
            return true;
        }
        false
    }

    /// Whether no number begins with 0.
    fn all_plain(&self) -> bool {
        let least = |width: usize| u32::try_from(width - 1).ok().and_then(|power| 10_u64.checked_pow(power));
        match self.width {
            None => true,
            Some(width) => {
                let least = least(width).unwrap_or(u64::MAX);
                width == 1 || self.ranges.iter().all(|[from, _]| *from >= least)
            }
        }
    }

    fn text(&self) -> String {
        let Some(number) = &self.number else { return self.name.to_owned() };
        let mut text = format!("{}[", &self.name[..*number.start()]);
        let width = self.width.unwrap_or_default();
        for (place, [from, to]) in self.ranges.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = match from == to {
                true => write!(text, "{comma}{from:0width$}"),
                false => write!(text, "{comma}{from:0width$}-{to:0width$}"),
            };
        }
        text + "]" + &self.name[*number.end() + 1..]
    }
}

/// Names in their order. Neighbours that differ in one number are one entry.
pub fn folded<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let mut all: Vec<Series<'n>> = Vec::new();
    for name in names {
        if !all.last_mut().is_some_and(|last| last.take(name)) {
            all.push(Series::of(name));
        }
    }
    all.iter().map(Series::text).collect()
}

#[cfg(test)]
mod tests {
    use model::host_list::expand;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_with_numbers_are_short() {
        let short = |names: &[&str]| folded(names.iter().copied()).join(",");
        let many: Vec<String> = (1..=28).map(|number| format!("tpu-{number:03}")).collect();
        assert_eq!(folded(many.iter().map(String::as_str)), ["tpu-[001-028]"]);
        assert_eq!(short(&["a"]), "a");
        assert_eq!(short(&["tpu-1", "tpu-2", "tpu-4", "b", "c"]), "tpu-[1-2,4],b,c");
        assert_eq!(short(&["n9", "n10", "n011"]), "n[9-10],n011");
        assert_eq!(short(&["r1n3.x:4393", "r1n4.x:4393", "r2n4.x:4393"]), "r1n[3-4].x:4393,r2n4.x:4393");
        assert_eq!(short(&["10.0.0.7", "10.0.0.8"]), "10.0.0.[7-8]");
        assert_eq!(short(&["[fd00::7]:1", "[fd00::8]:1"]), "[fd00::7]:1,[fd00::8]:1");
    }

    proptest! {
        #[test]
        fn a_short_list_has_the_same_hosts(names in prop::collection::vec("[ab]{1,2}[0-9]{0,3}(\\.[0-9]{1,2})?", 0..20)) {
            let short = folded(names.iter().map(String::as_str)).join(",");
            let long = if short.is_empty() { Vec::new() } else { expand(&short).unwrap() };
            prop_assert_eq!(long, names);
        }
    }
}
