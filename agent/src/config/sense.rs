//! Settings that are well formed each, and cannot work.
//!
//! Must never look at the host: what only it can say is not this module's.

use super::{Config, ConfigError, api::Listen};

/// Invented chips are for demonstrations, and cost as real ones do.
const MOST_SIM_CHIPS: u32 = 1024;
/// Bytes of history, which are kept in memory.
const MOST_HISTORY: u64 = 1 << 30;

/// Refuses what cannot work.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let (api, sampler) = (&config.api, &config.sampler);
    let one_address = matches!((api.http, api.grpc), (Listen::On(http), Listen::On(grpc)) if http == grpc && http.port() != 0);
    let rules = [
        (one_address, "api.http and api.grpc are one address: they need one each"),
        (api.max_connections == 0, "api.max_connections is 0: nobody could ask the agent anything"),
        (config.capture.max_captures == 0, "capture.max_captures is 0: no capture could begin"),
        (sampler.sim_chips > MOST_SIM_CHIPS, "sampler.sim_chips is over 1024"),
        (sampler.history.get() > MOST_HISTORY, "sampler.history is over 1GiB: it is kept in memory"),
    ];
    match rules.into_iter().find(|(broken, _)| *broken) {
        Some((_, why)) => Err(ConfigError::Senseless(why)),
        None => Ok(()),
    }
}
