//! Checks of settings that are valid one by one but cannot work together.
//!
//! Must never depend on the host.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{Config, ranges};
use sampling::settings::libtpu::Enabled;

/// The largest number of simulated chips. They cost as much as real ones.
const MAX_SIM_CHIPS: u32 = 1024;
/// The largest history in bytes. It is kept in memory.
const MAX_HISTORY: u64 = 1 << 30;
/// The length of a capture is in whole milliseconds.
const MIN_CAPTURE: Duration = Duration::from_millis(1);

/// A broken rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct BrokenRule {
    /// The settings that it is about.
    pub(super) settings: &'static [&'static str],
    /// The message.
    pub(super) message: &'static str,
}

/// Whether two listeners want one port of one address. All addresses of a host include each of them.
fn overlap(one: Option<SocketAddr>, other: Option<SocketAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    // The IPv6 address for all has those of IPv4 too.
    let includes = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    one.port() != 0 && one.port() == other.port() && (a == b || includes(a, b) || includes(b, a))
}

/// The broken rules.
pub(super) fn broken_rules(config: &Config) -> Vec<BrokenRule> {
    let (api, sampler) = (&config.api, &config.sampler);
    let (http, grpc, metrics) = (api.http.address(), api.grpc.address(), api.metrics.address());
    let remote = config.api_remote.listen.address();
    let asked = sampler.runtime || sampler.host_service || sampler.orbax_grain || sampler.host;
    let nothing = !asked && sampler.sim_chips == 0 && config.libtpu.enabled == Enabled::Off;
    let rules: [(bool, &[&str], &str); _] = [
        (
            nothing,
            &["sampler.host", "sampler.runtime", "libtpu.enabled"],
            "every source in [sampler] is off, and libtpu.enabled is off: expected at least one source",
        ),
        (
            overlap(http, grpc),
            &["api.grpc", "api.http"],
            "api.http and api.grpc have the same address: expected different ones",
        ),
        (
            overlap(http, metrics),
            &["api.metrics", "api.http"],
            "api.metrics and api.http have the same address and port: expected another port for one of them",
        ),
        (
            overlap(grpc, metrics),
            &["api.metrics", "api.grpc"],
            "api.metrics and api.grpc have the same address and port: expected another port for one of them",
        ),
        (
            [http, grpc, metrics].into_iter().any(|other| overlap(remote, other)),
            &["api.remote.listen", "api.metrics", "api.http", "api.grpc"],
            "api.remote.listen has the same address and port as another listener: expected another port",
        ),
        (
            remote.is_some() && config.api_remote.files().is_none(),
            &["api.remote.listen", "api.remote.cert", "api.remote.key", "api.remote.client_ca"],
            "api.remote.listen is set, but not all of api.remote.cert, api.remote.key and api.remote.client_ca: expected \
             the files that `tpuscope certs issue --agent` makes",
        ),
        (api.max_connections == 0, &["api.max_connections"], "api.max_connections is 0: expected 1 or more"),
        (
            config.capture.max_captures == 0,
            &["capture.max_captures"],
            "capture.max_captures is 0: expected 1 or more",
        ),
        (
            config.capture.max_duration.get() < MIN_CAPTURE,
            &["capture.max_duration"],
            "capture.max_duration is under 1ms: expected 1ms or more",
        ),
        (
            config.capture.timeout.get().is_zero(),
            &["capture.timeout"],
            "capture.timeout is 0: expected more than 0s",
        ),
        (
            sampler.sim_chips > MAX_SIM_CHIPS,
            &["sampler.sim_chips"],
            "sampler.sim_chips is over 1024: expected 1024 or less",
        ),
        (
            sampler.history.get() > MAX_HISTORY,
            &["sampler.history"],
            "sampler.history is over 1GiB: expected 1GiB or less",
        ),
    ];
    let broken = rules.into_iter().filter(|(broken, ..)| *broken);
    let broken = broken.map(|(_, settings, message)| BrokenRule { settings, message });
    let otlp = config.export_otlp.broken_rules().map(|(settings, message)| BrokenRule { settings, message });
    broken.chain(ranges::out_of_range(config)).chain(otlp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_listeners_do_not_want_one_port_of_one_address() {
        let overlaps = |one: &str, other: &str| {
            let (one, other) = (one.parse().ok(), other.parse().ok());
            assert_eq!(overlap(one, other), overlap(other, one));
            overlap(one, other)
        };
        for (one, other) in [
            ("127.0.0.1:4390", "127.0.0.1:4390"),
            ("127.0.0.1:4390", "[::ffff:127.0.0.1]:4390"),
            ("127.0.0.1:4390", "0.0.0.0:4390"),
            ("127.0.0.1:4390", "[::]:4390"),
            ("[::1]:4390", "[::]:4390"),
        ] {
            assert!(overlaps(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:4390", "127.0.0.1:4391"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:4390", "10.0.0.7:4390"),
            ("[::1]:4390", "0.0.0.0:4390"),
            ("127.0.0.1:4390", "off"),
        ] {
            assert!(!overlaps(one, other), "{one} {other}");
        }
    }
}
