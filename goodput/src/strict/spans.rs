//! Unions of spans and their length between two times.

/// Disjoint spans in order, with the length before each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpanUnion {
    spans: Vec<(i64, i64)>,
    before: Vec<i64>,
}

impl SpanUnion {
    /// The union of spans. Empty and reversed spans are ignored.
    pub(super) fn new(spans: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut sorted: Vec<_> = spans.into_iter().filter(|(start, end)| start < end).collect();
        sorted.sort_unstable();
        let mut spans: Vec<(i64, i64)> = Vec::with_capacity(sorted.len());
        for (start, end) in sorted {
            match spans.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => spans.push((start, end)),
            }
        }
        let mut sum = 0;
        let before = spans
            .iter()
            .map(|(start, end)| {
                let before = sum;
                sum += end - start;
                before
            })
            .collect();
        Self { spans, before }
    }

    /// The length before `at`.
    fn up_to(&self, at: i64) -> i64 {
        let next = self.spans.partition_point(|(start, _)| *start < at);
        match next.checked_sub(1) {
            Some(last) => self.before[last] + (at.min(self.spans[last].1) - self.spans[last].0),
            None => 0,
        }
    }

    /// The length between two times.
    pub(super) fn measure(&self, start: i64, end: i64) -> i64 {
        if start < end { self.up_to(end) - self.up_to(start) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::SpanUnion;

    #[test]
    fn measures_overlaps() {
        let union = SpanUnion::new([(0, 10), (5, 20), (30, 40), (7, 7), (50, 45)]);
        assert_eq!(union.measure(0, 100), 30);
        assert_eq!(union.measure(15, 35), 10);
        assert_eq!(union.measure(20, 30), 0);
        assert_eq!(union.measure(35, 15), 0);
    }
}
