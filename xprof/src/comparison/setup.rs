//! How two sessions were recorded, and what is not the same. What one of them does not say is no difference.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Pair, SessionFigures};
use crate::{session::TracerLevels, wording::counted};

/// How many names are listed.
const NAMED: usize = 4;

/// Something that is not the same in both sessions, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetupDifference {
    /// What it is: `hosts`, `jaxlib`, `option tpu_trace_mode`.
    pub what: String,
    /// In the first session.
    pub a: String,
    /// In the second one.
    pub b: String,
}

/// What is not the same.
pub(super) fn differences(sessions: &Pair<SessionFigures>) -> Vec<SetupDifference> {
    let mut found = Differences(Vec::new());
    found.add("hosts", sessions.map(|session| Some(hosts(session))));
    found.add("processes", sessions.map(|session| Some(session.processes.to_string())));
    found.add("cores", sessions.map(|session| Some(session.cores.to_string())));
    found.add("chips", sessions.map(|session| names(session.chips.iter().map(String::as_str))));
    let contexts = sessions.map(|session| session.context.clone());
    found.add(
        "job",
        contexts.map(|context| {
            let jobs: Vec<String> =
                context.jobs.iter().map(|job| format!("{} {}", job.kind, job.id)).collect();
            names(jobs.iter().map(String::as_str))
        }),
    );
    found.add("command", contexts.map(|context| names(context.commands.iter().map(String::as_str))));
    found.add("tracers", contexts.map(|context| context.tracer_levels.map(levels)));
    let options = contexts.map(|context| {
        // A session whose levels are known says all its options.
        context.tracer_levels.map(|_| context.options.clone())
    });
    if let Some(options) = options.both() {
        found.options(&options);
    }
    let libraries: BTreeSet<&String> = contexts.a.versions.keys().chain(contexts.b.versions.keys()).collect();
    for library in libraries {
        let versions = contexts.map(|context| {
            let versions = context.versions.get(library)?;
            names(versions.iter().map(String::as_str))
        });
        found.add(library, versions);
    }
    found.add(
        "program",
        sessions.map(|session| {
            let programs: BTreeSet<&str> = session.program_runs.keys().map(String::as_str).collect();
            names(programs.into_iter())
        }),
    );
    found.0
}

struct Differences(Vec<SetupDifference>);

impl Differences {
    fn add(&mut self, what: &str, values: Pair<Option<String>>) {
        if let Some(Pair { a, b }) = values.both().filter(|values| values.a != values.b) {
            self.0.push(SetupDifference { what: what.to_owned(), a, b });
        }
    }

    fn options(&mut self, options: &Pair<BTreeMap<String, String>>) {
        let all: BTreeSet<&String> = options.a.keys().chain(options.b.keys()).collect();
        for name in all {
            let value = options
                .map(|options| Some(options.get(name).cloned().unwrap_or_else(|| "not set".to_owned())));
            self.add(&format!("option {name}"), value);
        }
    }
}

fn hosts(session: &SessionFigures) -> String {
    let hosts = names(session.hosts.iter().map(String::as_str)).unwrap_or_default();
    match session.hosts.len() {
        ..=NAMED => hosts,
        many => format!("{}: {hosts}", counted(many, "host")),
    }
}

/// Names in one text, the first of many; none for no name.
fn names<'n>(all: impl Iterator<Item = &'n str>) -> Option<String> {
    let all: Vec<&str> = all.collect();
    let shown = all.get(..NAMED).unwrap_or(&all).join(", ");
    match all.len() {
        0 => None,
        many if many > NAMED => Some(format!("{shown} and {} more", many - NAMED)),
        _ => Some(shown),
    }
}

fn levels(levels: TracerLevels) -> String {
    let TracerLevels { host, device, python } = levels;
    format!("host {host}, device {device}, python {python}")
}
