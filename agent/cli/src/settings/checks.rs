//! Settings that are well formed each, and cannot work.
//!
//! Must never look at the host: what only it can say is not this module's.

use std::time::Duration;

use sampling::settings::libtpu::Enabled;
use server::settings::Listen;

use super::Config;

/// Invented chips are for demonstrations, and cost as real ones do.
const MOST_SIM_CHIPS: u32 = 1024;
/// Bytes of history, which are kept in memory.
const MOST_HISTORY: u64 = 1 << 30;
/// Windows are whole milliseconds.
const SHORTEST_CAPTURE: Duration = Duration::from_millis(1);

/// Settings that cannot work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nonsense {
    /// Those that it comes of.
    pub(super) settings: &'static [&'static str],
    /// Why.
    pub(super) why: &'static str,
}

/// What cannot work.
pub(super) fn check(config: &Config) -> Option<Nonsense> {
    let (api, sampler) = (&config.api, &config.sampler);
    let one_address = matches!((api.http, api.grpc), (Listen::On(http), Listen::On(grpc)) if http == grpc && http.port() != 0);
    let asked = sampler.runtime || sampler.host_service || sampler.orbax_grain || sampler.host;
    let nothing = !asked && sampler.sim_chips == 0 && config.libtpu.enabled == Enabled::Off;
    let rules: [(bool, &[&str], &str); _] = [
        (
            nothing,
            &["sampler.host", "sampler.runtime", "libtpu.enabled"],
            "every source in [sampler] and libtpu.enabled is off: nothing would be measured",
        ),
        (one_address, &["api.grpc", "api.http"], "api.http and api.grpc are one address: they need one each"),
        (
            api.max_connections == 0,
            &["api.max_connections"],
            "api.max_connections is 0: nobody could ask the agent anything",
        ),
        (
            config.capture.max_captures == 0,
            &["capture.max_captures"],
            "capture.max_captures is 0: no capture could begin",
        ),
        (
            config.capture.max_duration.get() < SHORTEST_CAPTURE,
            &["capture.max_duration"],
            "capture.max_duration is under 1ms: no capture could begin",
        ),
        (
            config.capture.timeout.get().is_zero(),
            &["capture.timeout"],
            "capture.timeout is 0: no trace could arrive",
        ),
        (sampler.sim_chips > MOST_SIM_CHIPS, &["sampler.sim_chips"], "sampler.sim_chips is over 1024"),
        (
            sampler.history.get() > MOST_HISTORY,
            &["sampler.history"],
            "sampler.history is over 1GiB: it is kept in memory",
        ),
    ];
    let broken = rules.into_iter().find(|(broken, ..)| *broken);
    broken.map(|(_, settings, why)| Nonsense { settings, why })
}
