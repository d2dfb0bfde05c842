//! What is asked of a profiler: the request that starts a session, and the one that tells whether a session is open.

use std::{collections::BTreeMap, time::Duration};

use proto::tensorflow::{
    ProfileOptions, ProfileRequest,
    profile_options::{AdvancedConfigValue, advanced_config_value::Value},
};

use super::ownership::ContinuousStrategy;

/// The option that makes the buffers of the devices rings.
const RING_OPTION: &str = "tpu_circular_buffer_tracing";
/// The version of options whose levels count.
const OPTIONS_VERSION: u32 = 1;
/// The shortest window that a profiler takes.
const SHORTEST: Duration = Duration::from_millis(1);

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContinuousLevel {
    /// The user's host events, and the devices.
    HostAndDevices,
    /// The user's host events alone.
    Host,
}

impl ContinuousLevel {
    /// The next lower one, if there is one.
    pub fn lower(self) -> Option<Self> {
        match self {
            Self::HostAndDevices => Some(Self::Host),
            Self::Host => None,
        }
    }

    /// Its levels of host and device tracer, as settings and people name them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostAndDevices => "host 1, device 1, python 0",
            Self::Host => "host 1, device 0, python 0",
        }
    }
}

/// The request that starts a session with this mark. The server writes the options into each snapshot, but gives each one
/// after the first an id of its own; the name of the host, by which it would name files, stays as it is.
pub(super) fn start(strategy: ContinuousStrategy, level: ContinuousLevel, mark: &str) -> ProfileRequest {
    let (host, device, advanced) = match strategy {
        ContinuousStrategy::Drain => {
            (1, u32::from(level == ContinuousLevel::HostAndDevices), BTreeMap::new())
        }
        // Only the rings are bounded: with host events the memory of the workload would grow.
        ContinuousStrategy::Ring => {
            let on = AdvancedConfigValue { value: Some(Value::BoolValue(true)) };
            (0, 1, BTreeMap::from([(RING_OPTION.to_owned(), on)]))
        }
    };
    let options = ProfileOptions {
        host_tracer_level: host,
        device_tracer_level: device,
        advanced_configuration: advanced.into_iter().collect(),
        override_hostname: mark.to_owned(),
        ..options(mark)
    };
    request(mark, Duration::ZERO, options)
}

/// A profile of nothing, without any tracer: the profiler refuses it while a session is open.
pub(super) fn is_a_session_open(id: &str) -> ProfileRequest {
    let options = ProfileOptions { duration_ms: whole_millis(SHORTEST), ..options(id) };
    request(id, SHORTEST, options)
}

fn options(id: &str) -> ProfileOptions {
    ProfileOptions { version: OPTIONS_VERSION, session_id: id.to_owned(), ..ProfileOptions::default() }
}

fn request(id: &str, duration: Duration, options: ProfileOptions) -> ProfileRequest {
    ProfileRequest {
        duration_ms: whole_millis(duration),
        opts: Some(options),
        session_id: id.to_owned(),
        // Without it the workload would write a file.
        emit_xspace: true,
        ..ProfileRequest::default()
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_never_records_what_has_no_limit() {
        let options = start(ContinuousStrategy::Ring, ContinuousLevel::HostAndDevices, "x").opts.unwrap();
        assert_eq!((options.host_tracer_level, options.python_tracer_level), (0, 0));
        assert!(options.advanced_configuration.contains_key(RING_OPTION));
        let options = start(ContinuousStrategy::Drain, ContinuousLevel::Host, "x").opts.unwrap();
        assert_eq!((options.host_tracer_level, options.device_tracer_level), (1, 0));
    }

    #[test]
    fn no_workload_is_made_to_write_a_file() {
        for request in
            [start(ContinuousStrategy::Drain, ContinuousLevel::HostAndDevices, "x"), is_a_session_open("x")]
        {
            assert!(request.emit_xspace && request.repository_root.is_empty());
            let options = request.opts.unwrap();
            assert!(options.repository_path.is_empty() && options.version == 1);
        }
    }
}
