//! The one manifest of a session over several hosts, from those of the hosts. Pure.
//!
//! Must never take a part from a host that is named after another one.

use cluster::hosts::HostAddress;
use jiff::Timestamp;
use xprof::session::{
    AtStep, ClockOffset, HostEntry, HostName, MANIFEST_VERSION, Manifest, Missing, PART_SUFFIX, PartName,
    SessionId, SessionName, Tool, Window,
};

use crate::fetch::HostPart;

/// What a host recorded, as it will stand in the joined manifest.
#[derive(Debug, Clone)]
pub struct RecordedHost {
    /// What the host is called in the session.
    pub label: HostName,
    /// The manifest of the host.
    pub manifest: Manifest,
    /// Its entry.
    pub entry: HostEntry,
    /// Its parts.
    pub parts: Vec<HostPart>,
}

/// The manifest of a host cannot be that of its part of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its agent sent {0}")]
pub struct BadHostManifest(pub &'static str);

/// Checks that a manifest is of this session: by its name, and by its id where that is given.
///
/// # Errors
/// If it is of another one.
pub fn check_session(
    manifest: &Manifest,
    name: &SessionName,
    id: Option<&SessionId>,
) -> Result<(), BadHostManifest> {
    let is_other = id.is_some_and(|id| manifest.id.as_ref() != Some(id));
    if manifest.session != name.as_str() || is_other {
        return Err(BadHostManifest("the manifest of another session"));
    }
    Ok(())
}

impl RecordedHost {
    /// Checks the manifest of a host that its agent calls `own`, and names its parts after `label`. `clock` is what was
    /// measured of its clock since; else the manifest says what is known of it.
    ///
    /// # Errors
    /// If it is not the manifest of this one host, or has parts that are not of it.
    pub fn checked(
        manifest: Manifest,
        own: &HostName,
        label: &HostName,
        clock: Option<ClockOffset>,
    ) -> Result<Self, BadHostManifest> {
        let bad = BadHostManifest;
        let [host] = &manifest.hosts[..] else { return Err(bad("a manifest that is not of one host")) };
        if host.host != own.as_str() {
            return Err(bad("the manifest of another host"));
        }
        let mut entry = host.clone();
        let mut parts: Vec<HostPart> = Vec::with_capacity(entry.parts.len());
        for part in &mut entry.parts {
            let there: Option<PartName> =
                part.file.strip_suffix(PART_SUFFIX).and_then(|name| name.parse().ok());
            let there = there.ok_or(bad("a part with a name that is none"))?;
            let here = there.renamed(own, label).ok_or(bad("a part with the name of another host"))?;
            if parts.iter().any(|known| known.there == there) {
                return Err(bad("a part twice"));
            }
            part.file = here.file_name();
            parts.push(HostPart { there, here, size: part.size, sha256: part.sha256.clone() });
        }
        if parts.is_empty() {
            return Err(bad("a session without a part"));
        }
        entry.host = label.to_string();
        entry.clock = clock.or(entry.clock);
        if label != own {
            entry.warnings.push(format!(
                "its agent calls this host {own}, as that of another host: its parts are named after the host as it was given"
            ));
        }
        Ok(Self { label: label.clone(), manifest, entry, parts })
    }
}

/// The manifest of all hosts: each as it was given, with its trace or the reason why it has none. At least one has a trace.
pub fn joined(
    name: &SessionName,
    id: Option<SessionId>,
    window: Option<Window>,
    created: Timestamp,
    hosts: &[(&HostAddress, Result<&RecordedHost, String>)],
    mut warnings: Vec<String>,
) -> Manifest {
    let mut missing = Vec::new();
    let mut traces = Vec::new();
    for (given, trace) in hosts {
        let given = given.to_string();
        match trace {
            Err(why) => missing.push(Missing { host: given, process: None, why: why.clone() }),
            Ok(trace) => {
                let of_process = |part: &Missing| Missing { host: given.clone(), ..part.clone() };
                missing.extend(trace.manifest.missing.iter().map(of_process));
                let label = &trace.label;
                warnings.extend(trace.manifest.warnings.iter().map(|warning| format!("{label}: {warning}")));
                traces.push(*trace);
            }
        }
    }
    let first = traces.first().map(|trace| &trace.manifest);
    let mut entries: Vec<HostEntry> = traces.iter().map(|trace| trace.entry.clone()).collect();
    entries.sort_by(|a, b| a.host.cmp(&b.host));
    Manifest {
        version: MANIFEST_VERSION,
        session: name.to_string(),
        id,
        tool: Tool::this(),
        created: Some(created),
        window,
        tracer_levels: first.and_then(|manifest| manifest.tracer_levels),
        options: first.map(|manifest| manifest.options.clone()).unwrap_or_default(),
        at_step: first.and_then(|manifest| manifest.at_step).map(|at| AtStep::of(at.step, &entries)),
        hosts: entries,
        missing,
        warnings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn name() -> SessionName {
        "s".parse().unwrap()
    }

    fn id() -> SessionId {
        ID.parse().unwrap()
    }

    fn manifest(host: &str, files: &[&str]) -> Manifest {
        let part = |file: &&str| {
            serde_json::json!({"file": file, "size": 3, "sha256": "ab", "planes": 1, "lines": 1, "events": 1,
            "steps": {"count": 1, "median_ns": 5, "first": 38 + host.len(), "last": 50}})
        };
        let value = serde_json::json!({
            "version": 1, "session": "s", "id": ID, "tool": {"name": "tpuscope", "version": "0.1.0"},
            "tracer_levels": {"host": 2, "device": 1, "python": 0},
            "hosts": [{"host": host, "parts": files.iter().map(part).collect::<Vec<_>>()}],
            "missing": [{"host": host, "process": "pid 7", "why": "closed"}],
            "warnings": ["w"], "at_step": {"step": 40, "first_step": 41, "off_by": 1},
        });
        serde_json::from_value(value).unwrap()
    }

    fn taken(manifest: Manifest, own: &str, label: &str) -> Result<RecordedHost, String> {
        let clock = Some(ClockOffset { offset_ns: -5, bound_ns: 7 });
        let (own, label) = (own.parse().unwrap(), label.parse().unwrap());
        check_session(&manifest, &name(), Some(&id()))
            .and_then(|()| RecordedHost::checked(manifest, &own, &label, clock))
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_host_claims_no_parts_of_others() {
        // The second process of the host.
        assert!(taken(manifest("w", &["w-2.xplane.pb"]), "w", "w").is_ok());
        let refused = |manifest| taken(manifest, "w", "w").unwrap_err();
        assert_eq!(
            refused(manifest("w", &["v.xplane.pb"])),
            "its agent sent a part with the name of another host"
        );
        for file in ["../w.xplane.pb", "w", "manifest.json"] {
            assert_eq!(refused(manifest("w", &[file])), "its agent sent a part with a name that is none");
        }
        assert_eq!(refused(manifest("v", &["w.xplane.pb"])), "its agent sent the manifest of another host");
        assert_eq!(refused(manifest("w", &[])), "its agent sent a session without a part");
        assert_eq!(refused(manifest("w", &["w.xplane.pb", "w.xplane.pb"])), "its agent sent a part twice");
        let good = manifest("w", &["w.xplane.pb"]);
        let other = "its agent sent the manifest of another session";
        assert_eq!(refused(Manifest { session: "t".into(), ..good.clone() }), other);
        assert_eq!(refused(Manifest { id: None, ..good.clone() }), other);
        // Without an id any session of the name is meant, and what its manifest says of the clock stays.
        let measured = ClockOffset { offset_ns: 1, bound_ns: 2 };
        let mut known = good.clone();
        known.hosts[0].clock = Some(measured);
        assert!(check_session(&Manifest { id: None, ..known.clone() }, &name(), None).is_ok());
        let own = "w".parse().unwrap();
        assert_eq!(RecordedHost::checked(known, &own, &own, None).unwrap().entry.clock, Some(measured));
        let two = Manifest { hosts: [good.hosts.clone(), good.hosts.clone()].concat(), ..good };
        assert_eq!(refused(two), "its agent sent a manifest that is not of one host");
    }

    #[test]
    fn the_manifest_has_all_hosts_and_says_what_is_missing() {
        let a = taken(manifest("vm", &["vm.xplane.pb"]), "vm", "vm").unwrap();
        let b = taken(manifest("vm", &["vm_1.xplane.pb", "vm_2.xplane.pb"]), "vm", "b").unwrap();
        let [first, second, third]: [HostAddress; 3] = ["a", "b", "c:1"].map(|host| host.parse().unwrap());
        let hosts = [(&first, Ok(&a)), (&second, Ok(&b)), (&third, Err("it is gone".to_owned()))];
        let joined = joined(&name(), Some(id()), None, Timestamp::UNIX_EPOCH, &hosts, vec!["late".into()]);
        assert_eq!(joined.id, Some(ID.parse().unwrap()));
        let entries: Vec<_> =
            joined.hosts.iter().map(|host| (host.host.as_str(), host.parts.len())).collect();
        assert_eq!(entries, [("b", 2), ("vm", 1)]);
        assert_eq!(joined.hosts[0].parts[1].file, "b_2.xplane.pb");
        assert_eq!(joined.hosts[0].clock, Some(ClockOffset { offset_ns: -5, bound_ns: 7 }));
        assert!(joined.hosts[0].warnings[0].starts_with("its agent calls this host vm"));
        let missing: Vec<_> =
            joined.missing.iter().map(|missing| (missing.host.as_str(), missing.why.as_str())).collect();
        assert_eq!(missing, [("a", "closed"), ("b", "closed"), ("c:1", "it is gone")]);
        assert_eq!(joined.warnings, ["late", "vm: w", "b: w"]);
        assert_eq!(joined.tracer_levels, a.manifest.tracer_levels);
        let at_step = AtStep { step: 40, first_step: Some(40), off_by: Some(0) };
        assert_eq!(joined.at_step, Some(at_step), "of the parts of all hosts");
    }
}
