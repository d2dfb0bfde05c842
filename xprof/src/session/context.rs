//! Whose a session is and how it was recorded: what its manifest says of all parts, brought together.
//!
//! Must never say more than the manifest does: what is not known is absent.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Manifest, PartEntry, PartJob, TracerLevels};

/// The context of a session. Empty for a session without a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionContext {
    /// The jobs of its parts, each once and without a rank. Processes that only their number names are no job.
    pub jobs: Vec<PartJob>,
    /// The commands of its processes, each once.
    pub commands: Vec<String>,
    /// The users of its processes, each once.
    pub users: Vec<SessionUser>,
    /// Length of the window that was asked for, in nanoseconds.
    pub requested_ns: Option<u64>,
    /// Length of the longest window that a part covers, in nanoseconds.
    pub recorded_ns: Option<u64>,
    /// The tracer levels that were asked for.
    pub tracer_levels: Option<TracerLevels>,
    /// The advanced profiler options that were asked for, as text.
    pub options: BTreeMap<String, String>,
    /// The versions of the libraries by name; several where its processes differ.
    pub versions: BTreeMap<String, BTreeSet<String>>,
    /// The parts that lost events, certainly or probably.
    #[serde(default)]
    pub losses: Vec<PartLosses>,
}

/// How many losses a part has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartLosses {
    /// The part's file name.
    pub file: String,
    /// Losses that nothing else explains.
    pub certain: u64,
    /// What may be a loss.
    pub possible: u64,
}

impl PartLosses {
    fn of(part: &PartEntry) -> Option<Self> {
        let certain = part.losses.iter().filter(|loss| loss.certain).count() as u64;
        let possible = part.losses.len() as u64 - certain;
        (!part.losses.is_empty()).then(|| Self { file: part.file.clone(), certain, possible })
    }
}

/// A user of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionUser {
    /// The id.
    pub uid: Option<u32>,
    /// The name on the host of the process.
    pub name: Option<String>,
}

impl SessionContext {
    /// The context of the session that `manifest` describes.
    pub fn of(manifest: &Manifest) -> Self {
        let parts = || manifest.hosts.iter().flat_map(|host| &host.parts);
        let job = |job: &PartJob| PartJob { rank: None, ..job.clone() };
        let user = |uid: Option<u32>, name: &Option<String>| {
            (uid.is_some() || name.is_some()).then(|| SessionUser { uid, name: name.clone() })
        };
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, version) in parts().flat_map(|part| &part.versions) {
            versions.entry(name.clone()).or_default().insert(version.clone());
        }
        Self {
            jobs: each_once(parts().filter_map(|part| part.job.as_deref()).map(job)),
            commands: each_once(parts().filter_map(|part| part.command.clone())),
            users: each_once(parts().filter_map(|part| user(part.uid, &part.user))),
            requested_ns: manifest.window.map(|window| window.length_ns()),
            recorded_ns: parts().filter_map(|part| part.window).map(|window| window.length_ns()).max(),
            tracer_levels: manifest.tracer_levels,
            options: manifest.options.clone(),
            versions,
            losses: parts().filter_map(PartLosses::of).collect(),
        }
    }

    /// The context of several sessions that are read as one. What must be one value and is not is absent.
    pub fn joined(contexts: impl IntoIterator<Item = Self>) -> Self {
        let mut contexts = contexts.into_iter();
        let Some(mut joined) = contexts.next() else { return Self::default() };
        for other in contexts {
            joined.jobs.extend(other.jobs);
            joined.commands.extend(other.commands);
            joined.users.extend(other.users);
            joined.losses.extend(other.losses);
            joined.requested_ns = joined.requested_ns.filter(|own| Some(*own) == other.requested_ns);
            joined.recorded_ns = joined.recorded_ns.max(other.recorded_ns);
            joined.tracer_levels = joined.tracer_levels.filter(|own| Some(*own) == other.tracer_levels);
            joined.options.retain(|name, value| other.options.get(name) == Some(value));
            for (library, versions) in other.versions {
                joined.versions.entry(library).or_default().extend(versions);
            }
        }
        Self {
            jobs: each_once(joined.jobs.into_iter()),
            commands: each_once(joined.commands.into_iter()),
            users: each_once(joined.users.into_iter()),
            ..joined
        }
    }

    /// The losses of all parts: the certain ones, and what may be losses.
    pub fn total_losses(&self) -> (u64, u64) {
        self.losses.iter().fold((0, 0), |(certain, possible), part| {
            (certain.saturating_add(part.certain), possible.saturating_add(part.possible))
        })
    }
}

fn each_once<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.collect::<BTreeSet<T>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parts_share_is_said_once() {
        let part = |file: &str, rank: u32, jaxlib: &str, seconds: u32| {
            format!(
                r#"{{"file": "{file}", "size": 1, "sha256": "a", "planes": 1, "lines": 1, "events": 1, "uid": 7,
                "user": "ada", "command": "python", "versions": {{"jaxlib": "{jaxlib}"}},
                "losses": [{{"kind": "dropped_traces", "certain": true}}, {{"kind": "ends_early", "certain": false}},
                    {{"kind": "of a later build", "certain": true}}],
                "job": {{"kind": "slurm", "id": "77", "rank": {rank}}},
                "window": {{"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:{seconds:02}Z"}}}}"#
            )
        };
        let manifest = format!(
            r#"{{"version": 1, "session": "s", "tool": {{"name": "tpuscope", "version": "0"}},
            "window": {{"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:07Z"}},
            "tracer_levels": {{"host": 2, "device": 1, "python": 0}}, "options": {{"tpu_trace_mode": "TRACE_COMPUTE"}},
            "hosts": [{{"host": "a", "parts": [{}, {}]}}]}}"#,
            part("a_1", 0, "0.10.2", 7),
            part("a_2", 1, "0.10.1", 8)
        );
        let context = SessionContext::of(&serde_json::from_str(&manifest).unwrap());
        let expected = serde_json::json!({
            "jobs": [{"kind": "slurm", "id": "77"}],
            "commands": ["python"],
            "users": [{"uid": 7, "name": "ada"}],
            "requested_ns": 2_000_000_000_u64,
            "recorded_ns": 3_000_000_000_u64,
            "tracer_levels": {"host": 2, "device": 1, "python": 0},
            "options": {"tpu_trace_mode": "TRACE_COMPUTE"},
            "versions": {"jaxlib": ["0.10.1", "0.10.2"]},
            "losses": [{"file": "a_1", "certain": 2, "possible": 1}, {"file": "a_2", "certain": 2, "possible": 1}],
        });
        assert_eq!(context.total_losses(), (4, 2));
        assert_eq!(serde_json::to_value(context).unwrap(), expected);
    }

    #[test]
    fn a_joined_context_has_what_all_agree_on_and_each_of_the_rest() {
        let context = |user: &str, host: u32, jaxlib: &str| -> SessionContext {
            serde_json::from_value(serde_json::json!({
                "jobs": [{"kind": "slurm", "id": "77"}], "commands": ["python"], "users": [{"uid": 7, "name": user}],
                "requested_ns": 5, "recorded_ns": u64::from(host), "options": {"a": "1", "b": user},
                "tracer_levels": {"host": host, "device": 1, "python": 0}, "versions": {"jaxlib": [jaxlib]},
            }))
            .unwrap()
        };
        let joined = SessionContext::joined([context("bob", 2, "0.10.2"), context("ada", 3, "0.10.1")]);
        let expected = serde_json::json!({
            "jobs": [{"kind": "slurm", "id": "77"}], "commands": ["python"],
            "users": [{"uid": 7, "name": "ada"}, {"uid": 7, "name": "bob"}],
            "requested_ns": 5, "recorded_ns": 3, "tracer_levels": null, "options": {"a": "1"},
            "versions": {"jaxlib": ["0.10.1", "0.10.2"]}, "losses": [],
        });
        assert_eq!(serde_json::to_value(joined).unwrap(), expected);
        let one = context("ada", 2, "0.10.2");
        assert_eq!(SessionContext::joined([one.clone()]), one);
    }

    #[test]
    fn a_manifest_of_an_older_build_has_an_empty_context_and_is_written_as_it_was() {
        let old = r#"{"version": 1, "session": "s", "tool": {"name": "tpuscope", "version": "0.1.0"}, "hosts": [
            {"host": "a", "parts": [{"file": "a", "size": 1, "sha256": "a", "planes": 1, "lines": 1, "events": 1,
            "warnings": []}], "warnings": []}], "missing": [], "warnings": []}"#;
        let manifest: Manifest = serde_json::from_str(old).unwrap();
        assert_eq!(SessionContext::of(&manifest), SessionContext::default());
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(serde_json::to_value(&manifest).unwrap(), value(old));
    }
}
