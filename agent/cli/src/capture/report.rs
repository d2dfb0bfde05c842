//! The result of a capture as text and as JSON (`docs/schemas/capture.schema.json`).

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use cluster::{clock_offset::OffsetEstimate, hosts::HostAddress};
use indicatif::HumanBytes;
use proto::tpuscope::v1::{CaptureFailure, UploadStatus};
use serde::Serialize;
use sessions::{
    FailureKind,
    coordinator::{CapturedHost, HostFault, HostResult, KeptCapture, SessionLocation},
};
use xprof::{
    session::{AtStep, ClockOffset, Manifest, Missing, PartEntry, Window},
    wording::counted,
};

use super::super::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::{NoHostAnswer, report::named},
    output,
    output::one_line,
    remedies::{self, KeptIn},
    sessions::show_text::clock_text,
    uploads::row::{self, UploadRow},
};

/// A session that was kept, whole or not.
#[derive(Debug, Serialize)]
pub(super) struct CaptureReport {
    session: String,
    /// Where it lies.
    folder: PathBuf,
    /// Whether that is the agent's store, whose sessions are read through the agent.
    #[serde(skip)]
    in_store: bool,
    /// Whether every requested part is present.
    complete: bool,
    window: Option<Window>,
    /// Of a capture at a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_step: Option<AtStep>,
    /// Of a capture over several hosts, in the order in which they were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<HostRow>,
    parts: Vec<Part>,
    missing: Vec<Missing>,
    failures: Vec<FailureRow>,
    warnings: Vec<String>,
    /// Where the agent uploads it to.
    uploads: Vec<UploadRow>,
    /// The same for people.
    #[serde(skip)]
    places: Vec<String>,
    /// What a further command needs to call the same agent.
    #[serde(skip)]
    socket: String,
    /// Why it is not uploaded, if that was waited for.
    #[serde(skip)]
    not_uploaded: Option<Failure>,
}

/// A capture that kept nothing.
#[derive(Debug)]
pub(super) struct NothingKept {
    /// The reason.
    failure: Failure,
    /// Of a capture over several hosts, in the order in which they were given.
    hosts: Vec<HostRow>,
}

impl From<Failure> for NothingKept {
    fn from(failure: Failure) -> Self {
        Self { failure, hosts: Vec::new() }
    }
}

impl NothingKept {
    /// Of a capture over several hosts: why it failed, and each host with its fault.
    pub(super) fn of_hosts<'h>(
        failure: Failure,
        hosts: impl Iterator<Item = (&'h HostAddress, &'h HostFault)>,
    ) -> Self {
        let row = |(host, fault): (&HostAddress, &HostFault)| HostRow {
            host: host.to_string(),
            name: None,
            clock: None,
            missing: Some(NoHostAnswer::from(fault)),
        };
        Self { failure, hosts: hosts.map(row).collect() }
    }
}

/// A failed target and its remedy.
#[derive(Debug, Serialize)]
struct FailureRow {
    kind: FailureKind,
    message: String,
    remedy: String,
}

/// A host, and why it is missing.
#[derive(Debug, Serialize)]
struct HostRow {
    /// As it was given.
    host: String,
    /// What it is called in the session.
    name: Option<String>,
    clock: Option<ClockOffset>,
    missing: Option<NoHostAnswer>,
}

#[derive(Debug, Serialize)]
struct Part {
    host: String,
    #[serde(flatten)]
    entry: PartEntry,
}

impl FailureRow {
    fn new(failure: CaptureFailure, kept_in: KeptIn) -> Self {
        let remedy = remedies::of_failure(&failure, kept_in);
        Self { kind: FailureKind::named(&failure.kind), message: failure.message, remedy }
    }
}

impl HostRow {
    /// The host and its clock in one line; none where the host is missing.
    fn line(&self) -> Option<String> {
        let (name, clock) = (self.name.as_ref()?, self.clock?);
        let named = if *name == self.host { String::new() } else { format!(" ({name})") };
        Some(format!("{}{named}: clock {}", self.host, clock_text(clock)))
    }
}

impl CaptureReport {
    /// `kept_in` is where the capture wrote the session.
    pub(super) fn new(
        manifest: Manifest,
        failures: Vec<CaptureFailure>,
        folder: &Path,
        kept_in: KeptIn,
    ) -> Self {
        let failures: Vec<_> =
            failures.into_iter().map(|failure| FailureRow::new(failure, kept_in)).collect();
        let Manifest { session, window, at_step, hosts, missing, warnings, .. } = manifest;
        let parts = hosts.into_iter().flat_map(|host| {
            let name = host.host;
            host.parts.into_iter().map(move |entry| Part { host: name.clone(), entry })
        });
        Self {
            session,
            folder: folder.to_owned(),
            in_store: kept_in == KeptIn::AgentStore,
            complete: missing.is_empty() && failures.is_empty(),
            window,
            at_step,
            hosts: Vec::new(),
            parts: parts.collect(),
            missing,
            failures,
            warnings,
            uploads: Vec::new(),
            places: Vec::new(),
            socket: String::new(),
            not_uploaded: None,
        }
    }

    /// A session over several hosts.
    pub(super) fn of_hosts(kept: KeptCapture) -> Self {
        let (mut hosts, mut failures) = (Vec::with_capacity(kept.hosts.len()), Vec::new());
        for HostResult { host, result } in kept.hosts {
            let host = host.to_string();
            hosts.push(match result {
                Ok(CapturedHost { name, clock, failures: of_host }) => {
                    failures.extend(of_host);
                    let OffsetEstimate { offset_ns, bound_ns } = clock;
                    let clock = Some(ClockOffset { offset_ns, bound_ns });
                    HostRow { host, name: Some(name.to_string()), clock, missing: None }
                }
                Err(fault) => {
                    HostRow { host, name: None, clock: None, missing: Some(NoHostAnswer::from(&fault)) }
                }
            });
        }
        let folder = match kept.location {
            SessionLocation::Folder(folder) => folder,
            SessionLocation::Url(url) => PathBuf::from(url),
        };
        // Disks and folders that fail are those of the agents.
        let report = Self::new(kept.manifest, failures, &folder, KeptIn::AgentStore);
        Self { in_store: false, hosts, ..report }
    }

    /// The same session, which the agent uploads.
    pub(super) fn going_to(self, uploads: &[UploadStatus]) -> Self {
        let place = |upload: &UploadStatus| {
            let name = if upload.name_there.is_empty() { &upload.session } else { &upload.name_there };
            let object = format!("{}/plugins/profile/{name}", upload.url);
            format!("{} ({}): {}", upload.destination, object, row::progress(upload))
        };
        Self { uploads: row::rows(uploads), places: uploads.iter().map(place).collect(), ..self }
    }

    /// The same session, of the agent that these arguments name.
    pub(super) fn of_agent(self, agent: &client::SocketArgs) -> Self {
        Self { socket: agent.repeated(), ..self }
    }

    /// Whether the agent uploads it.
    pub(super) fn is_uploaded_somewhere(&self) -> bool {
        !self.uploads.is_empty()
    }

    /// The same session, after its uploads were waited for.
    pub(super) fn waited(self, waited: Result<Vec<UploadStatus>, Failure>) -> Self {
        match waited {
            Ok(uploads) => self.going_to(&uploads),
            Err(failure) => Self { not_uploaded: Some(failure), ..self },
        }
    }

    /// The same session, copied to `folder`.
    pub(super) fn now_in(self, folder: PathBuf) -> Self {
        Self { folder, in_store: false, ..self }
    }

    /// What to do about something that is missing.
    fn remedy(&self, missing: &Missing) -> Option<&str> {
        let of_host = self.hosts.iter().find(|row| row.host == missing.host && missing.process.is_none());
        let of_host = of_host.and_then(|row| row.missing.as_ref()).map(|missing| missing.remedy.as_str());
        let failure = self.failures.iter().find(|failure| failure.message == missing.why);
        of_host.or(failure.map(|failure| failure.remedy.as_str()))
    }

    /// What is missing. Whole hosts with one reason are one entry: the first of them, and all names.
    fn missing_by_reason(&self) -> Vec<(&Missing, Vec<String>)> {
        let mut entries: Vec<(&Missing, Vec<String>)> = Vec::new();
        for missing in &self.missing {
            let same = |(first, _): &&mut (&Missing, Vec<String>)| {
                let whole = first.process.is_none() && missing.process.is_none();
                whole && first.why == missing.why && self.remedy(first) == self.remedy(missing)
            };
            match entries.iter_mut().find(same) {
                Some((_, hosts)) => hosts.push(missing.host.clone()),
                None => entries.push((missing, vec![missing.host.clone()])),
            }
        }
        entries
    }

    /// The result as text.
    fn page(&self) -> String {
        let mut text = String::new();
        let _ =
            writeln!(text, "session {} in {}", self.session, one_line(&self.folder.display().to_string()));
        for line in self.hosts.iter().filter_map(HostRow::line) {
            let _ = writeln!(text, "  {}", one_line(&line));
        }
        if let Some(at_step) = self.at_step {
            let _ = writeln!(text, "  {}", at_step_text(at_step));
        }
        for Part { entry, .. } in &self.parts {
            let window = entry.window.map(|window| {
                let length = window.stop.duration_since(window.start).as_secs_f64();
                format!(", {length:.3} s from {}", window.start)
            });
            let _ = writeln!(
                text,
                "  {}: {}, {}, {}, {}{}",
                one_line(&entry.file),
                HumanBytes(entry.size),
                counted(entry.planes, "plane"),
                counted(entry.lines, "line"),
                counted(entry.events, "event"),
                window.unwrap_or_default()
            );
            for warning in &entry.warnings {
                let _ = writeln!(text, "    warning: {}", one_line(warning));
            }
        }
        for (missing, hosts) in self.missing_by_reason() {
            let _ = writeln!(text, "  missing: {}", one_line(&missing_text(missing, &hosts)));
            if let Some(remedy) = self.remedy(missing).filter(|remedy| !remedy.is_empty()) {
                let _ = writeln!(text, "    {}", one_line(remedy));
            }
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "  warning: {}", one_line(warning));
        }
        for place in &self.places {
            let _ = writeln!(text, "  uploads to {}", one_line(place));
        }
        let place = match self.in_store {
            true => format!("{}{}", self.session, self.socket),
            false => one_line(&self.folder.display().to_string()),
        };
        let _ = writeln!(text, "next: tpuscope sessions show {place}");
        text
    }
}

/// How far off a capture at a step began.
fn at_step_text(at: AtStep) -> String {
    let AtStep { step, first_step, off_by } = at;
    let Some((first, off_by)) = first_step.zip(off_by) else {
        return format!("at step {step}: the traces show no numbered step");
    };
    let steps = counted(off_by.unsigned_abs(), "step");
    match off_by {
        0 => format!("at step {step}: it is the first whole step"),
        ..0 => format!("at step {step}: the first whole step is {first}, {steps} before it"),
        1.. => format!("at step {step}: the first whole step is {first}, {steps} after it"),
    }
}

/// What is missing on these hosts and why. A reason that begins with the name of the process does not get it twice.
fn missing_text(missing: &Missing, hosts: &[String]) -> String {
    if hosts.len() > 1 {
        return format!("the whole of {}, {}: {}", counted(hosts.len(), "host"), named(hosts), missing.why);
    }
    let process = missing.process.as_deref().unwrap_or("the whole host");
    let why = missing.why.strip_prefix(process).and_then(|why| why.strip_prefix(": "));
    format!("{process} on {}: {}", missing.host, why.unwrap_or(&missing.why))
}

/// Prints the result and returns the exit code.
pub(super) fn print(result: Result<CaptureReport, NothingKept>, json: bool) -> CommandResult {
    match (result, json) {
        (Ok(report), false) => {
            output::print(&report.page())?;
            exit(report)
        }
        (Ok(report), true) => {
            output::json(&report)?;
            exit(report)
        }
        (Err(NothingKept { failure, hosts }), json) => {
            if json {
                let mut answer = failure.as_json();
                (answer["session"], answer["complete"]) = (serde_json::Value::Null, false.into());
                if !hosts.is_empty() {
                    answer["hosts"] = serde_json::json!(hosts);
                }
                // The failure is more important than a failure to print.
                let _ = output::json(&answer);
            }
            Err(failure)
        }
    }
}

fn exit(report: CaptureReport) -> CommandResult {
    if !report.complete {
        let hosts = report.hosts.iter().filter(|host| host.missing.is_some()).count();
        return Err(match report.hosts.len() {
            0 => remedies::missing_parts(report.missing.len()),
            _ => remedies::missing_hosts(hosts, report.missing.len().saturating_sub(hosts)),
        });
    }
    report.not_uploaded.map_or(Ok(Exit::Ok), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_off_a_step_was_is_said() {
        let text = |first: Option<i64>| {
            let off_by = first.map(|first| first - 40);
            at_step_text(AtStep { step: 40, first_step: first, off_by })
        };
        assert_eq!(text(Some(40)), "at step 40: it is the first whole step");
        assert_eq!(text(Some(38)), "at step 40: the first whole step is 38, 2 steps before it");
        assert_eq!(text(Some(41)), "at step 40: the first whole step is 41, 1 step after it");
        assert_eq!(text(None), "at step 40: the traces show no numbered step");
    }

    #[test]
    fn a_missing_process_is_named_once() {
        let text = |process: Option<&str>, why: &str| {
            let process = process.map(str::to_owned);
            missing_text(&Missing { host: "vm".into(), process, why: why.into() }, &["vm".to_owned()])
        };
        let closed = "localhost:9: port 9 is closed";
        assert_eq!(text(Some("localhost:9"), closed), "localhost:9 on vm: port 9 is closed");
        assert_eq!(text(Some("pid 7"), closed), "pid 7 on vm: localhost:9: port 9 is closed");
        assert_eq!(text(None, "no answer"), "the whole host on vm: no answer");
        let missing = Missing { host: "vm-01".into(), process: None, why: "no answer".into() };
        let all = missing_text(&missing, &["vm-01", "vm-02", "x"].map(str::to_owned));
        assert_eq!(all, "the whole of 3 hosts, vm-[01-02], x: no answer");
    }
}
