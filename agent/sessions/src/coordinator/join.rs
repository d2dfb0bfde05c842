//! The one manifest of a session over several hosts, from those of the hosts. Pure.
//!
//! Must never take a part from a host that is named after another one.

use cluster::{clock_offset::OffsetEstimate, hosts::HostAddress};
use jiff::Timestamp;
use xprof::session::{
    ClockOffset, HostEntry, HostName, MANIFEST_VERSION, Manifest, Missing, PART_SUFFIX, PartName, SessionId,
    SessionName, Tool, Window,
};

use super::fault::HostFault;

/// What identifies the session on all hosts.
#[derive(Debug, Clone)]
pub(super) struct SessionIdentity {
    pub(super) name: SessionName,
    pub(super) id: SessionId,
}

/// What a host recorded, as it will stand in the joined manifest.
#[derive(Debug, Clone)]
pub(super) struct RecordedHost {
    /// What the host is called in the session.
    pub(super) label: HostName,
    /// The manifest of the host.
    pub(super) manifest: Manifest,
    /// Its entry.
    pub(super) entry: HostEntry,
    /// Its parts.
    pub(super) parts: Vec<HostPart>,
}

/// A part as it is called over there and here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPart {
    pub(super) there: PartName,
    pub(super) here: PartName,
    pub(super) size: u64,
    pub(super) sha256: String,
}

/// Checks the manifest of a host that its agent calls `own`, and names its parts after `label`.
pub(super) fn checked(
    manifest: Manifest,
    identity: &SessionIdentity,
    own: &HostName,
    label: &HostName,
    clock: OffsetEstimate,
) -> Result<RecordedHost, HostFault> {
    let bad = HostFault::BadAnswer;
    if manifest.session != identity.name.as_str() || manifest.id.as_ref() != Some(&identity.id) {
        return Err(bad("the manifest of another session"));
    }
    let [host] = &manifest.hosts[..] else { return Err(bad("a manifest that is not of one host")) };
    if host.host != own.as_str() {
        return Err(bad("the manifest of another host"));
    }
    let mut entry = host.clone();
    let mut parts: Vec<HostPart> = Vec::with_capacity(entry.parts.len());
    for part in &mut entry.parts {
        let there: Option<PartName> = part.file.strip_suffix(PART_SUFFIX).and_then(|name| name.parse().ok());
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
    entry.clock = Some(ClockOffset { offset_ns: clock.offset_ns, bound_ns: clock.bound_ns });
    if label != own {
        entry.warnings.push(format!(
            "its agent calls this host {own}, as that of another host: its parts are named after the host as it was given"
        ));
    }
    Ok(RecordedHost { label: label.clone(), manifest, entry, parts })
}

/// The manifest of all hosts: each as it was given, with its trace or the reason why it has none. At least one has a trace.
pub(super) fn joined(
    identity: &SessionIdentity,
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
        session: identity.name.to_string(),
        id: Some(identity.id.clone()),
        tool: Tool::this(),
        created: Some(created),
        window,
        tracer_levels: first.and_then(|manifest| manifest.tracer_levels),
        options: first.map(|manifest| manifest.options.clone()).unwrap_or_default(),
        hosts: entries,
        missing,
        warnings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn identity() -> SessionIdentity {
        SessionIdentity { name: "s".parse().unwrap(), id: ID.parse().unwrap() }
    }

    fn manifest(host: &str, files: &[&str]) -> Manifest {
        let part = |file: &&str| serde_json::json!({"file": file, "size": 3, "sha256": "ab", "planes": 1, "lines": 1, "events": 1});
        let value = serde_json::json!({
            "version": 1, "session": "s", "id": ID, "tool": {"name": "tpuscope", "version": "0.1.0"},
            "tracer_levels": {"host": 2, "device": 1, "python": 0},
            "hosts": [{"host": host, "parts": files.iter().map(part).collect::<Vec<_>>()}],
            "missing": [{"host": host, "process": "pid 7", "why": "closed"}],
            "warnings": ["w"],
        });
        serde_json::from_value(value).unwrap()
    }

    fn taken(manifest: Manifest, own: &str, label: &str) -> Result<RecordedHost, String> {
        let clock = OffsetEstimate { offset_ns: -5, bound_ns: 7 };
        let (own, label) = (own.parse().unwrap(), label.parse().unwrap());
        checked(manifest, &identity(), &own, &label, clock).map_err(|fault| fault.to_string())
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
        let two = Manifest { hosts: [good.hosts.clone(), good.hosts.clone()].concat(), ..good };
        assert_eq!(refused(two), "its agent sent a manifest that is not of one host");
    }

    #[test]
    fn the_manifest_has_all_hosts_and_says_what_is_missing() {
        let a = taken(manifest("vm", &["vm.xplane.pb"]), "vm", "vm").unwrap();
        let b = taken(manifest("vm", &["vm_1.xplane.pb", "vm_2.xplane.pb"]), "vm", "b").unwrap();
        let [first, second, third]: [HostAddress; 3] = ["a", "b", "c:1"].map(|host| host.parse().unwrap());
        let hosts = [(&first, Ok(&a)), (&second, Ok(&b)), (&third, Err("it is gone".to_owned()))];
        let joined = joined(&identity(), None, Timestamp::UNIX_EPOCH, &hosts, vec!["late".into()]);
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
    }
}
