//! Checks of settings that are valid one by one but cannot work together.
//!
//! Must never depend on the host.

use std::time::Duration;

use sampling::settings::libtpu::Enabled;
use server::settings::Listen;

use super::{Config, ranges};

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

/// The broken rules.
pub(super) fn broken_rules(config: &Config) -> Vec<BrokenRule> {
    let (api, sampler) = (&config.api, &config.sampler);
    let one_address = matches!((api.http, api.grpc), (Listen::On(http), Listen::On(grpc)) if http == grpc && http.port() != 0);
    let asked = sampler.runtime || sampler.host_service || sampler.orbax_grain || sampler.host;
    let nothing = !asked && sampler.sim_chips == 0 && config.libtpu.enabled == Enabled::Off;
    let rules: [(bool, &[&str], &str); _] = [
        (
            nothing,
            &["sampler.host", "sampler.runtime", "libtpu.enabled"],
            "every source in [sampler] is off, and libtpu.enabled is off: expected at least one source",
        ),
        (
            one_address,
            &["api.grpc", "api.http"],
            "api.http and api.grpc have the same address: expected different ones",
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
    broken.chain(ranges::out_of_range(config)).collect()
}
