//! When sessions were recorded, and whether they can be of one window.

use std::fmt;

use jiff::Timestamp;
use xprof::{
    analysis::HostTrace,
    session::{HostEntry, Manifest, PartEntry},
};

/// Sessions that are further apart are not of one window: the clocks of hosts are seconds apart at most, and a caller
/// that starts one host after the other takes seconds too.
const MOST_APART_NS: i64 = 60_000_000_000;

/// When the parts of a session were recorded, in nanoseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TracedWindow {
    source: String,
    start_ns: i64,
    end_ns: i64,
}

/// A time in which none of the sessions was recorded, between two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionGap {
    before: String,
    after: String,
    length_ns: i64,
}

impl TracedWindow {
    /// Of all parts; none where the time of one is not known. By the coordinator's clock where that was measured.
    pub(super) fn of<'t>(source: String, traces: impl Iterator<Item = &'t HostTrace>) -> Option<Self> {
        let window = |trace: &HostTrace| {
            let ahead = trace.clock.map_or(0, |clock| clock.offset.offset_ns);
            let start = trace.profile_start_ns?.checked_sub(ahead)?;
            Some((start, start.checked_add(trace.window_ps / 1000)?))
        };
        Self::around(source, traces.map(window))
    }

    /// Of all parts of a manifest; none where it does not say the time of one.
    pub(super) fn recorded(source: String, manifest: &Manifest) -> Option<Self> {
        let of_host = |host: &HostEntry| {
            let ahead = host.clock.map_or(0, |clock| clock.offset_ns);
            let at = move |time: Timestamp| i64::try_from(time.as_nanosecond()).ok()?.checked_sub(ahead);
            let window = move |part: &PartEntry| {
                let window = part.window?;
                Some((at(window.start)?, at(window.stop)?))
            };
            host.parts.iter().map(window).collect::<Vec<_>>()
        };
        Self::around(source, manifest.hosts.iter().flat_map(of_host))
    }

    fn around(source: String, windows: impl Iterator<Item = Option<(i64, i64)>>) -> Option<Self> {
        let windows: Vec<(i64, i64)> = windows.collect::<Option<_>>()?;
        let start_ns = windows.iter().map(|window| window.0).min()?;
        let end_ns = windows.iter().map(|window| window.1).max()?;
        Some(Self { source, start_ns, end_ns })
    }
}

/// The longest time between two of the windows in which there is none of them.
pub(super) fn largest_gap(mut windows: Vec<TracedWindow>) -> Option<SessionGap> {
    windows.sort_by_key(|window| window.start_ns);
    let mut windows = windows.into_iter();
    let mut last = windows.next()?;
    let mut largest: Option<SessionGap> = None;
    for next in windows {
        let length_ns = next.start_ns.saturating_sub(last.end_ns);
        if length_ns > largest.as_ref().map_or(0, |gap| gap.length_ns) {
            let (before, after) = (last.source.clone(), next.source.clone());
            largest = Some(SessionGap { before, after, length_ns });
        }
        if next.end_ns > last.end_ns {
            last = next;
        }
    }
    largest
}

impl SessionGap {
    /// Whether the sessions around it cannot be of one window.
    pub(super) fn is_too_long(&self) -> bool {
        self.length_ns > MOST_APART_NS
    }
}

impl fmt::Display for SessionGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, after, length_ns } = self;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let seconds = *length_ns as f64 / 1e9;
        write!(
            f,
            "the sessions do not overlap in time: {after} begins {seconds:.3} s after the end of {before}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(source: &str, start: i64, end: i64) -> TracedWindow {
        let ns = |seconds: i64| seconds * 1_000_000_000;
        TracedWindow { source: source.to_owned(), start_ns: ns(start), end_ns: ns(end) }
    }

    #[test]
    fn a_gap_is_time_without_any_session() {
        let text = |windows: &[TracedWindow]| largest_gap(windows.to_vec()).map(|gap| gap.to_string());
        assert_eq!(text(&[]), None);
        assert_eq!(text(&[window("a", 0, 10), window("b", 10, 11), window("c", 2, 4)]), None);
        // The second ends before the first does.
        assert_eq!(text(&[window("a", 0, 10), window("b", 1, 2), window("c", 9, 12)]), None);
        let gaps = [window("late", 20, 21), window("a", 0, 10), window("b", 13, 15)];
        let said = "the sessions do not overlap in time: late begins 5.000 s after the end of b";
        assert_eq!(text(&gaps).as_deref(), Some(said));
        assert!(!largest_gap(gaps.to_vec()).unwrap().is_too_long());
        assert!(largest_gap(vec![window("a", 0, 1), window("b", 62, 63)]).unwrap().is_too_long());
    }
}
