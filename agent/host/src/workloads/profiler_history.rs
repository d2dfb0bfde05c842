//! The profilers that an owner has had: one that is gone stays listed, with when it closed.
//!
//! Must never call a profiler closed that was not seen.

use std::{collections::BTreeMap, time::Duration};

use model::workload::{Address, Endpoint, EndpointKind, EndpointOrigin};

/// Maximum number of addresses of one owner that are kept.
const MAX_ADDRESSES: usize = 16;

/// The profilers of one owner, by address.
#[derive(Debug, Default)]
pub(super) struct ProfilerHistory(BTreeMap<Address, SeenProfiler>);

/// A profiler that listened once.
#[derive(Debug)]
struct SeenProfiler {
    origin: EndpointOrigin,
    /// Age of the process when it was last seen to listen; `None` where no clock tells.
    seen: Option<Duration>,
    /// Set when it did not listen any more.
    closed: Option<String>,
}

impl ProfilerHistory {
    /// Takes the endpoints of a scan, at this age of the process, and adds to them what has closed.
    pub(super) fn observe(&mut self, endpoints: &mut Vec<Endpoint>, age: Option<Duration>) {
        let profilers = endpoints.iter().filter(|endpoint| endpoint.kind == EndpointKind::Profiler);
        for endpoint in profilers.filter(|endpoint| !endpoint.listeners.is_empty()) {
            if self.0.len() < MAX_ADDRESSES || self.0.contains_key(&endpoint.address) {
                let seen = SeenProfiler { origin: endpoint.origin.clone(), seen: age, closed: None };
                self.0.insert(endpoint.address.clone(), seen);
            }
        }
        for (address, profiler) in &mut self.0 {
            let is_it =
                |known: &&mut Endpoint| known.kind == EndpointKind::Profiler && known.address == *address;
            let endpoint = endpoints.iter_mut().find(is_it);
            if endpoint.as_ref().is_some_and(|endpoint| !endpoint.listeners.is_empty()) {
                continue;
            }
            let closed = profiler.closed.get_or_insert_with(|| closed(address, profiler.seen, age)).clone();
            match endpoint {
                Some(endpoint) => {
                    if let Some(why) = &mut endpoint.unreachable {
                        *why = format!("{closed}; {why}");
                    }
                }
                None => endpoints.push(Endpoint {
                    kind: EndpointKind::Profiler,
                    address: address.clone(),
                    origin: profiler.origin.clone(),
                    listeners: Vec::new(),
                    unreachable: Some(closed),
                }),
            }
        }
    }
}

/// When it closed: between two scans.
fn closed(address: &Address, seen: Option<Duration>, now: Option<Duration>) -> String {
    let Some(now) = now.map(|now| now.as_secs()) else {
        return format!("the profiler on {address} was seen, and has closed");
    };
    let when = match seen.map(|seen| seen.as_secs()) {
        Some(seen) if seen + 2 < now => format!("{seen} to {now}"),
        _ => now.to_string(),
    };
    format!("the profiler on {address} closed {when} s after the process started")
}

#[cfg(test)]
mod tests {
    use model::workload::ProcessKey;

    use super::*;

    fn profiler(listens: bool) -> Endpoint {
        Endpoint {
            kind: EndpointKind::Profiler,
            address: "127.0.0.1:9012".parse().unwrap(),
            origin: EndpointOrigin::KnownDefault,
            listeners: if listens { vec![ProcessKey { pid: 7, start_ticks: 1 }] } else { Vec::new() },
            unreachable: (!listens).then(|| "nothing listens there".to_owned()),
        }
    }

    fn observe(
        history: &mut ProfilerHistory,
        mut endpoints: Vec<Endpoint>,
        age: Option<u64>,
    ) -> Vec<Endpoint> {
        history.observe(&mut endpoints, age.map(Duration::from_secs));
        endpoints
    }

    fn whys(endpoints: &[Endpoint]) -> Vec<&str> {
        endpoints.iter().map(|endpoint| endpoint.unreachable.as_deref().unwrap_or("reachable")).collect()
    }

    #[test]
    fn a_profiler_that_closed_stays_listed_with_when() {
        let mut history = ProfilerHistory::default();
        // One that never listened did not close.
        assert_eq!(whys(&observe(&mut history, vec![profiler(false)], Some(1))), ["nothing listens there"]);
        assert!(observe(&mut history, Vec::new(), Some(2)).is_empty());
        assert_eq!(whys(&observe(&mut history, vec![profiler(true)], Some(7))), ["reachable"]);
        let closed = "the profiler on 127.0.0.1:9012 closed 8 s after the process started";
        assert_eq!(whys(&observe(&mut history, Vec::new(), Some(8))), [closed]);
        // The time is that of the first scan that missed it.
        assert_eq!(whys(&observe(&mut history, Vec::new(), Some(60))), [closed]);
        let named = observe(&mut history, vec![profiler(false)], Some(61));
        assert_eq!(whys(&named), [format!("{closed}; nothing listens there")]);
        // It opens again.
        assert_eq!(whys(&observe(&mut history, vec![profiler(true)], Some(70))), ["reachable"]);
        let again = observe(&mut history, Vec::new(), Some(80));
        assert_eq!(
            whys(&again),
            ["the profiler on 127.0.0.1:9012 closed 70 to 80 s after the process started"]
        );
    }

    #[test]
    fn without_a_clock_no_time_is_said() {
        let mut history = ProfilerHistory::default();
        observe(&mut history, vec![profiler(true)], None);
        let closed = observe(&mut history, Vec::new(), None);
        assert_eq!(whys(&closed), ["the profiler on 127.0.0.1:9012 was seen, and has closed"]);
    }
}
