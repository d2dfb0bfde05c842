//! The progress of a capture over several hosts, on standard error.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

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
    /// The start that was asked for.
    wanted: Option<Timestamp>,
    reached: usize,
    missing: usize,
    /// The processes of each host that is ready.
    ready: BTreeMap<usize, usize>,
    /// Those whose profilers are in use.
    busy: BTreeSet<usize>,
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
    pub(super) fn new(
        duration: Option<Duration>,
        hosts: Vec<String>,
        uploads: bool,
        wanted: Option<Timestamp>,
    ) -> Self {
        Self(StatusLine::new(HostsPhase { duration, hosts, uploads, wanted, ..HostsPhase::default() }))
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
            HostProgress::Missing { host } => {
                self.missing += 1;
                self.ready.remove(&host);
                self.busy.remove(&host);
            }
            HostProgress::Ready { host, processes } => {
                self.ready.insert(host, processes);
                self.busy.remove(&host);
            }
            HostProgress::Busy { host } => {
                self.ready.remove(&host);
                self.busy.insert(host);
            }
            HostProgress::Released { host } => drop(self.ready.remove(&host)),
            HostProgress::Starts(begin) => self.begin = Some(begin),
            HostProgress::BeginsAgain => {
                self.begin = None;
                self.ready.clear();
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

impl HostsPhase {
    /// While no start is given yet.
    fn before_the_start(&self, now: Timestamp, hosts: &str) -> String {
        let ready = self.ready.len();
        if let Some(first) = self.busy.first() {
            let first = self.hosts.get(*first).map(String::as_str).unwrap_or_default();
            let more = match self.busy.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return format!(
                "waiting for profilers that are in use on {first}{more}: {ready} of {hosts} ready"
            );
        }
        let all_reached = self.reached + self.missing >= self.hosts.len();
        let ahead = self.wanted.filter(|wanted| *wanted > now).map(|wanted| now.age(wanted).as_secs_f64());
        match (ready, ahead) {
            (0, Some(ahead)) if all_reached => {
                format!("{} of {hosts} reached; the recording starts in {ahead:.0} s", self.reached)
            }
            (0, _) => format!("reaching {hosts}: {} reached", self.reached),
            _ => format!("reserving {hosts}: {ready} ready"),
        }
    }
}

impl Shown for HostsPhase {
    fn text(&self, now: Timestamp) -> String {
        let (hosts, missing) = (counted(self.hosts.len(), "host"), self.missing);
        let without = if missing > 0 { format!(", {missing} missing") } else { String::new() };
        let Some(begin) = self.begin else {
            return self.before_the_start(now, &hosts) + &without;
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
        let processes = counted(self.ready.values().sum::<usize>(), "process");
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
        let ready = |host, processes| HostProgress::Ready { host, processes };
        let first = [HostProgress::Missing { host: 1 }, HostProgress::Reached, ready(0, 2)];
        assert_eq!(says(&first, 0), "reserving 3 hosts: 1 ready, 1 missing");
        let starts = [ready(2, 1), HostProgress::Starts(second(10))];
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
        let ready = |host| HostProgress::Ready { host, processes: 1 };
        let begins = [ready(0), ready(1), HostProgress::Starts(Timestamp(0))];
        let making = HostProgress::Received { host: 1, target: 0, bytes: 1 << 20 };
        begins.into_iter().chain([making, HostProgress::Recorded]).for_each(|event| phase.take(event));
        let text = phase.text(Timestamp(60_000_000_000));
        assert_eq!(text, "making the session: 1.00 MiB unpacked, 1 of 2 hosts done");
        phase.take(HostProgress::Recorded);
        assert_eq!(phase.text(Timestamp(0)), "copying: 0 B, 0 of 2 hosts done");
    }

    #[test]
    fn a_start_that_is_far_ahead_is_said_once_all_are_reached() {
        let hosts = ["a", "b"].map(str::to_owned).to_vec();
        let wanted = Some(Timestamp(60_000_000_000));
        let mut phase = HostsPhase { hosts, wanted, ..HostsPhase::default() };
        phase.take(HostProgress::Reached);
        assert_eq!(phase.text(Timestamp(0)), "reaching 2 hosts: 1 reached");
        phase.take(HostProgress::Missing { host: 1 });
        let says = "1 of 2 hosts reached; the recording starts in 60 s, 1 missing";
        assert_eq!(phase.text(Timestamp(0)), says);
    }

    #[test]
    fn what_is_waited_for_is_said() {
        let hosts = ["a", "b"].map(str::to_owned).to_vec();
        let mut phase = HostsPhase { hosts, uploads: true, ..HostsPhase::default() };
        let ready = |host| HostProgress::Ready { host, processes: 1 };
        let begins = [ready(0), ready(1), HostProgress::Starts(Timestamp(0))];
        let again = [HostProgress::BeginsAgain, HostProgress::Busy { host: 1 }];
        begins.into_iter().chain(again).for_each(|event| phase.take(event));
        let waits =
            |ready: usize| format!("waiting for profilers that are in use on b: {ready} of 2 hosts ready");
        assert_eq!(phase.text(Timestamp(0)), waits(0));
        phase.take(ready(0));
        assert_eq!(phase.text(Timestamp(0)), waits(1));
        phase.take(HostProgress::Released { host: 0 });
        assert_eq!(phase.text(Timestamp(0)), waits(0));
        phase.take(ready(1));
        assert_eq!(phase.text(Timestamp(0)), "reserving 2 hosts: 1 ready");
        phase.take(ready(0));
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
