//! The progress of a capture over several hosts, on standard error.

use std::{collections::BTreeMap, time::Duration};

use indicatif::HumanBytes;
use model::time::Timestamp;
use sessions::coordinator::HostProgress;
use xprof::wording::counted;

use super::{
    progress::AHEAD,
    status_line::{Shown, StatusLine},
};

/// The progress; nothing is shown after it is dropped.
#[derive(Debug)]
pub(super) struct HostsProgressLine(StatusLine<HostsPhase>);

/// How far the capture is.
#[derive(Debug, Default)]
struct HostsPhase {
    /// Length of the window; none: a snapshot of the past.
    duration: Option<Duration>,
    /// As they were given.
    hosts: Vec<String>,
    /// Whether the agents upload what they recorded.
    uploads: bool,
    /// Whether a profiler was in use, and all hosts are reserved again.
    again: bool,
    reached: usize,
    missing: usize,
    ready: usize,
    processes: usize,
    begin: Option<Timestamp>,
    recorded: usize,
    stored: usize,
    /// Of each process, by its host and its number there.
    received: BTreeMap<(usize, u32), u64>,
    /// Of each host.
    copied: BTreeMap<usize, u64>,
    /// Why uploads wait.
    waits: BTreeMap<usize, String>,
}

impl HostsProgressLine {
    /// Shows the progress of a capture of these hosts with a window of this length, or of a snapshot.
    pub(super) fn new(duration: Option<Duration>, hosts: Vec<String>, uploads: bool) -> Self {
        Self(StatusLine::new(HostsPhase { duration, hosts, uploads, ..HostsPhase::default() }))
    }

    /// Takes an event of the capture.
    pub(super) fn show(&self, event: HostProgress) {
        self.0.state().take(event);
    }

    /// Removes the line. Nothing is shown any more.
    pub(super) fn finish(&self) {
        self.0.finish();
    }
}

impl HostsPhase {
    fn take(&mut self, event: HostProgress) {
        match event {
            HostProgress::Reached => self.reached += 1,
            HostProgress::Missing => self.missing += 1,
            HostProgress::Ready(processes) => {
                self.ready += 1;
                self.processes += processes;
            }
            HostProgress::Starts(begin) => self.begin = Some(begin),
            HostProgress::BeginsAgain => {
                (self.begin, self.ready, self.processes, self.again) = (None, 0, 0, true);
                self.received.clear();
            }
            HostProgress::Received { host, target, bytes } => {
                self.received.insert((host, target), bytes);
            }
            HostProgress::Recorded => self.recorded += 1,
            HostProgress::Copied { host, bytes } => {
                if self.copied.insert(host, bytes) != Some(bytes) {
                    self.waits.remove(&host);
                }
            }
            HostProgress::UploadWaits { host, why } => {
                self.waits.insert(host, why);
            }
            HostProgress::Stored => self.stored += 1,
        }
    }
}

impl Shown for HostsPhase {
    fn text(&self, now: Timestamp) -> String {
        let (hosts, missing) = (counted(self.hosts.len(), "host"), self.missing);
        let without = if missing > 0 { format!(", {missing} missing") } else { String::new() };
        let Some(begin) = self.begin else {
            return match self.ready {
                0 if self.again => format!("waiting for a profiler that another program uses{without}"),
                0 => format!("reaching {hosts}: {} reached{without}", self.reached),
                ready => format!("reserving {hosts}: {ready} ready{without}"),
            };
        };
        let ahead = now.age(begin);
        if self.duration.is_some() && ahead > AHEAD {
            return format!("the recording of {hosts} starts in {:.0} s{without}", ahead.as_secs_f64());
        }
        let copied: u64 = self.copied.values().sum();
        if self.recorded > 0 && self.recorded + missing >= self.hosts.len() {
            let doing = if self.uploads { "uploading" } else { "copying" };
            let waits =
                self.waits.first_key_value().and_then(|(host, why)| Some((self.hosts.get(*host)?, why)));
            let waits = waits.map(|(host, why)| format!("; {host} waits: {why}")).unwrap_or_default();
            return format!(
                "{doing}: {}, {} of {hosts} done{without}{waits}",
                HumanBytes(copied),
                self.stored
            );
        }
        let received: u64 = self.received.values().sum();
        let Some(duration) = self.duration else {
            let done = self.recorded;
            return format!(
                "making the session: {} unpacked, {done} of {hosts} done{without}",
                HumanBytes(received)
            );
        };
        if received > 0 || self.recorded > 0 {
            return format!(
                "receiving: {}, {} of {hosts} done{without}",
                HumanBytes(received),
                self.recorded
            );
        }
        let processes = counted(self.processes, "process");
        let end = begin.plus(duration);
        if now < end {
            let (window, left) = (duration.as_secs_f64(), now.age(end).as_secs_f64());
            return format!("recording {window:.1} s of {processes} on {hosts}, {left:.0} s left{without}");
        }
        let since = end.age(now).as_secs_f64();
        format!(
            "waiting for the traces of {processes} on {hosts}, {since:.0} s since the end of the recording{without}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_words() {
        let second = |seconds: u64| Timestamp(0).plus(Duration::from_secs(seconds));
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut phase = HostsPhase { duration: Some(Duration::from_secs(2)), hosts, ..HostsPhase::default() };
        let mut says = |events: &[HostProgress], at: u64| {
            events.iter().for_each(|event| phase.take(event.clone()));
            phase.text(second(at))
        };
        assert_eq!(says(&[HostProgress::Reached], 0), "reaching 3 hosts: 1 reached");
        let ready = [HostProgress::Missing, HostProgress::Reached, HostProgress::Ready(2)];
        assert_eq!(says(&ready, 0), "reserving 3 hosts: 1 ready, 1 missing");
        let starts = [HostProgress::Ready(1), HostProgress::Starts(second(10))];
        assert_eq!(says(&starts, 4), "the recording of 3 hosts starts in 6 s, 1 missing");
        assert_eq!(says(&[], 10), "recording 2.0 s of 3 processes on 3 hosts, 2 s left, 1 missing");
        let waiting =
            "waiting for the traces of 3 processes on 3 hosts, 1 s since the end of the recording, 1 missing";
        assert_eq!(says(&[], 13), waiting);
        let received = HostProgress::Received { host: 0, target: 1, bytes: 1 << 20 };
        assert_eq!(says(&[received], 13), "receiving: 1.00 MiB, 0 of 3 hosts done, 1 missing");
        let copied = [HostProgress::Recorded, HostProgress::Copied { host: 2, bytes: 1 << 20 }];
        assert_eq!(says(&copied, 13), "receiving: 1.00 MiB, 1 of 3 hosts done, 1 missing");
        assert_eq!(says(&copied, 13), "copying: 1.00 MiB, 0 of 3 hosts done, 1 missing");
    }

    #[test]
    fn a_snapshot_has_words_of_its_own() {
        let hosts = ["a", "b"].map(str::to_owned).to_vec();
        let mut phase = HostsPhase { hosts, ..HostsPhase::default() };
        let begins = [HostProgress::Ready(1), HostProgress::Ready(1), HostProgress::Starts(Timestamp(0))];
        let making = HostProgress::Received { host: 1, target: 0, bytes: 1 << 20 };
        begins.into_iter().chain([making, HostProgress::Recorded]).for_each(|event| phase.take(event));
        let text = phase.text(Timestamp(60_000_000_000));
        assert_eq!(text, "making the session: 1.00 MiB unpacked, 1 of 2 hosts done");
        phase.take(HostProgress::Recorded);
        assert_eq!(phase.text(Timestamp(0)), "copying: 0 B, 0 of 2 hosts done");
    }

    #[test]
    fn what_is_waited_for_is_said() {
        let hosts = ["a", "b"].map(str::to_owned).to_vec();
        let mut phase = HostsPhase { hosts, uploads: true, ..HostsPhase::default() };
        let begins = [HostProgress::Ready(1), HostProgress::Ready(1), HostProgress::Starts(Timestamp(0))];
        begins.into_iter().chain([HostProgress::BeginsAgain]).for_each(|event| phase.take(event));
        assert_eq!(phase.text(Timestamp(0)), "waiting for a profiler that another program uses");
        phase.take(HostProgress::Ready(1));
        assert_eq!(phase.text(Timestamp(0)), "reserving 2 hosts: 1 ready");
        let recorded = [HostProgress::Starts(Timestamp(0)), HostProgress::Recorded, HostProgress::Recorded];
        recorded.into_iter().for_each(|event| phase.take(event));
        phase.take(HostProgress::Copied { host: 1, bytes: 0 });
        phase.take(HostProgress::UploadWaits { host: 1, why: "denied".into() });
        phase.take(HostProgress::Copied { host: 1, bytes: 0 });
        assert_eq!(phase.text(Timestamp(0)), "uploading: 0 B, 0 of 2 hosts done; b waits: denied");
        phase.take(HostProgress::Copied { host: 1, bytes: 1 << 20 });
        assert_eq!(phase.text(Timestamp(0)), "uploading: 1.00 MiB, 0 of 2 hosts done");
    }
}
