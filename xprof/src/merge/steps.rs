//! Which step numbers came by, so that each missing one can be explained by the gaps around it.

use std::collections::BTreeMap;

use super::report::{MOST_GAPS, MergedSteps, MissingSteps};

/// How many markers (a name on a line) are followed, and how many stretches of numbers of each.
const MOST_MARKERS: usize = 64;
const MOST_STRETCHES: usize = 1 << 16;

/// Consecutive numbers seen in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stretch {
    first: i64,
    last: i64,
    segment: usize,
}

#[derive(Debug, Default)]
struct Marker {
    name: String,
    line: String,
    stretches: Vec<Stretch>,
    count: u64,
    cut: bool,
}

/// All markers, by merged line and event metadata id.
#[derive(Debug, Default)]
pub(super) struct Steps {
    markers: BTreeMap<(u64, i64), Marker>,
}

impl Steps {
    /// Notes step `number` of the marker `id` on merged line `line`. Whether the marker is new and wants a name.
    pub(super) fn note(&mut self, line: u64, id: i64, segment: usize, number: i64) -> bool {
        let known = self.markers.contains_key(&(line, id));
        if !known && self.markers.len() == MOST_MARKERS {
            return false;
        }
        let marker = self.markers.entry((line, id)).or_default();
        marker.count += 1;
        let full = marker.stretches.len() == MOST_STRETCHES;
        match marker.stretches.last_mut() {
            Some(last) if last.segment == segment && last.last.checked_add(1) == Some(number) => {
                last.last = number;
            }
            _ if full => marker.cut = true,
            _ => marker.stretches.push(Stretch { first: number, last: number, segment }),
        }
        !known
    }

    /// Names a marker.
    pub(super) fn name(&mut self, line: u64, id: i64, name: String, line_name: &str) {
        if let Some(marker) = self.markers.get_mut(&(line, id)) {
            marker.name = name;
            line_name.clone_into(&mut marker.line);
        }
    }

    pub(super) fn finish(self, gaps: usize) -> Vec<MergedSteps> {
        self.markers.into_values().filter_map(|marker| marker.finish(gaps)).collect()
    }
}

impl Marker {
    fn finish(mut self, gaps: usize) -> Option<MergedSteps> {
        self.stretches.sort_unstable();
        let mut missing = Vec::new();
        let mut repeated = 0u64;
        let first = self.stretches.first()?;
        let (first, mut before) = (first.first, *first);
        for &next in &self.stretches[1..] {
            if next.first <= before.last {
                let shared = next.last.min(before.last).abs_diff(next.first);
                repeated = repeated.saturating_add(shared).saturating_add(1);
            } else if next.first > before.last + 1 {
                let (from, to) = (before.segment.min(next.segment), before.segment.max(next.segment));
                let between = from..to.min(gaps);
                missing.push(MissingSteps {
                    first: before.last + 1,
                    last: next.first - 1,
                    gaps: between.clone().take(MOST_GAPS).collect(),
                    more_gaps: between.len().saturating_sub(MOST_GAPS),
                });
            }
            if next.last > before.last {
                before = next;
            }
        }
        Some(MergedSteps {
            name: self.name,
            line: self.line,
            first,
            last: before.last,
            count: self.count,
            repeated,
            missing,
            cut: self.cut,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(numbers: &[(usize, i64)]) -> MergedSteps {
        let mut steps = Steps::default();
        for (i, &(segment, number)) in numbers.iter().enumerate() {
            assert_eq!(steps.note(3, 7, segment, number), i == 0);
        }
        steps.name(3, 7, "train".to_owned(), "python");
        steps.finish(999).remove(0)
    }

    fn missing(first: i64, last: i64, gaps: &[usize]) -> MissingSteps {
        MissingSteps { first, last, gaps: gaps.to_vec(), more_gaps: 0 }
    }

    #[test]
    fn missing_numbers_name_the_gaps_around_them() {
        let steps = finished(&[(0, 5), (0, 6), (1, 8), (1, 9), (4, 12), (4, 14)]);
        assert_eq!((steps.first, steps.last, steps.count, steps.repeated), (5, 14, 6, 0));
        assert_eq!(steps.missing, [missing(7, 7, &[0]), missing(10, 11, &[1, 2, 3]), missing(13, 13, &[])]);
    }

    #[test]
    fn each_missing_number_lists_a_few_gaps_however_many_lie_around_it() {
        // The first and the last of many segments have every other number.
        let numbers: Vec<_> = (0..1000).map(|number| (999 * (number % 2) as usize, 2 * number)).collect();
        let steps = finished(&numbers);
        assert_eq!(steps.missing.len(), 999);
        for missing in &steps.missing {
            assert_eq!(missing.gaps, [0, 1, 2, 3, 4, 5, 6, 7]);
            assert_eq!((missing.more_gaps, missing.cut_by()), (991, Some((0, 998))));
        }
    }

    #[test]
    fn repeated_numbers_are_counted() {
        let steps = finished(&[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (1, 4), (2, i64::MAX)]);
        assert_eq!((steps.count, steps.repeated), (7, 2));
        assert_eq!(steps.missing, [missing(5, i64::MAX - 1, &[1])]);
    }
}
