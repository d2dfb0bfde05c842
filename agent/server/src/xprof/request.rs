//! What a client of XProf asks for, checked: the parameters of a capture, and how the answer carries the trace.
//!
//! A client that names a folder of its own (`repository_root`) expects a trace there. The workload's own server would write
//! it, with the workload's rights. The agent never does: it answers with a file, and the client writes that where it keeps
//! its sessions, with its own rights. Must never let a name through that leads out of a folder.

use std::{collections::BTreeMap, time::Duration};

use ::sessions::spec::{CaptureParams, Levels};
use model::time::Timestamp;
use proto::tensorflow::{ProfileOptions, ProfileRequest, profile_options::advanced_config_value::Value};
use tonic::Status;
use xprof::{
    service::TraceCarrier,
    session::{HostName, SessionName},
};

/// The longest path.
const MAX_PATH: usize = 4096;
/// Options that a client adds for the names of its files.
const HOST_OPTIONS: [&str; 3] = ["override_hostname", "override_hostnames", "use_system_hostname"];

/// A request, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedRequest {
    pub(super) params: CaptureParams,
    pub(super) carrier: TraceCarrier,
    /// The name by which the client may end it early.
    pub(super) session_id: String,
}

impl CheckedRequest {
    /// Checks the names. The limits of captures are checked when it begins.
    ///
    /// # Errors
    /// Which name cannot be one.
    pub(super) fn new(request: ProfileRequest, now: Timestamp) -> Result<Self, Status> {
        let options = request.opts.unwrap_or_default();
        check_root(&request.repository_root)?;
        check_root(&options.repository_path)?;
        for (field, name) in [("session_id", &request.session_id), ("opts.session_id", &options.session_id)] {
            check_name::<SessionName>(field, name)?;
        }
        check_host("host_name", &request.host_name)?;
        check_host("opts.override_hostname", &options.override_hostname)?;
        let wants_file = !request.emit_xspace && !request.repository_root.is_empty();
        Ok(Self {
            params: params(request.duration_ms, options, now)?,
            carrier: if wants_file { TraceCarrier::File } else { TraceCarrier::XSpace },
            session_id: request.session_id,
        })
    }
}

fn params(duration_ms: u64, options: ProfileOptions, now: Timestamp) -> Result<CaptureParams, Status> {
    let mut advanced = BTreeMap::new();
    for (name, value) in options.advanced_configuration {
        let text = match value.value {
            None => continue,
            Some(Value::StringValue(text)) => text,
            Some(Value::BoolValue(value)) => value.to_string(),
            Some(Value::Int64Value(value)) => value.to_string(),
        };
        if HOST_OPTIONS.contains(&name.as_str()) {
            text.split(',').try_for_each(|host| check_host(&name, host))?;
        } else {
            advanced.insert(name, text);
        }
    }
    // Below version 1 a server takes its defaults, as for what is left out here.
    let level = |level: u32| (options.version > 0).then_some(level);
    let start = i64::try_from(options.start_timestamp_ns).unwrap_or(i64::MAX);
    Ok(CaptureParams {
        duration: Duration::from_millis(match options.duration_ms {
            0 => duration_ms,
            ms => ms,
        }),
        levels: Levels {
            host: level(options.host_tracer_level),
            device: level(options.device_tracer_level),
            python: level(options.python_tracer_level),
        },
        advanced,
        // A start that is over means at once.
        start: Some(Timestamp(start)).filter(|start| *start > now),
        ..CaptureParams::default()
    })
}

/// A folder of the client. It is not used; one that cannot be right is refused all the same.
fn check_root(root: &str) -> Result<(), Status> {
    let steps_up = root.split('/').any(|part| part == "..");
    if steps_up || root.len() > MAX_PATH || root.contains('\0') {
        let root: String = root.chars().take(80).flat_map(char::escape_debug).collect();
        return Err(Status::invalid_argument(format!(
            "repository_root: expected a path of at most {MAX_PATH} bytes without `..`, got `{root}`"
        )));
    }
    Ok(())
}

fn check_name<T: std::str::FromStr<Err: std::fmt::Display>>(field: &str, name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    let parsed = name.parse::<T>().map(drop);
    parsed.map_err(|error| Status::invalid_argument(format!("{field}: {error}")))
}

/// The name of a host: a client takes the address that it called, `localhost:4392` or `[::1]:4392`.
fn check_host(field: &str, name: &str) -> Result<(), Status> {
    let name: String = name.chars().filter(|c| !matches!(c, '[' | ']')).collect();
    check_name::<HostName>(field, &name.replace(':', "_"))
}

#[cfg(test)]
mod tests {
    use proto::tensorflow::profile_options::AdvancedConfigValue;
    use tonic::Code;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);

    /// As the client of xprof 2.24 sends it.
    fn request() -> ProfileRequest {
        ProfileRequest {
            duration_ms: 1000,
            max_events: 1_000_000,
            tools: vec!["xplane.pb".to_owned()],
            opts: Some(ProfileOptions {
                version: 1,
                host_tracer_level: 2,
                device_tracer_level: 1,
                duration_ms: 1000,
                start_timestamp_ns: u64::try_from(NOW.0).unwrap() - 1_000_000,
                ..ProfileOptions::default()
            }),
            repository_root: "/tmp/logs/plugins/profile".to_owned(),
            session_id: "2026_11_30_12_00_00".to_owned(),
            host_name: "127.0.0.1:4392".to_owned(),
            ..ProfileRequest::default()
        }
    }

    fn changed(change: impl FnOnce(&mut ProfileRequest)) -> Result<CheckedRequest, Status> {
        let mut request = request();
        change(&mut request);
        CheckedRequest::new(request, NOW)
    }

    #[test]
    fn a_client_that_names_a_folder_gets_a_file_and_any_other_the_trace() {
        let asked = changed(|_| {}).unwrap();
        assert_eq!((asked.carrier, asked.params.start), (TraceCarrier::File, None));
        assert_eq!(asked.params.duration, Duration::from_secs(1));
        let levels = Levels { host: Some(2), device: Some(1), python: Some(0) };
        assert_eq!(asked.params.levels, levels);
        assert_eq!(changed(|r| r.emit_xspace = true).unwrap().carrier, TraceCarrier::XSpace);
        assert_eq!(changed(|r| r.repository_root.clear()).unwrap().carrier, TraceCarrier::XSpace);
    }

    #[test]
    fn what_is_left_out_has_the_servers_defaults() {
        let asked = changed(|r| r.opts = None).unwrap();
        assert_eq!(asked.params.levels, Levels::default());
        assert_eq!(asked.params.duration, Duration::from_secs(1));
        let later = u64::try_from(NOW.0).unwrap() + 5;
        let asked = changed(|r| r.opts.as_mut().unwrap().start_timestamp_ns = later).unwrap();
        assert_eq!(asked.params.start, Some(NOW.plus(Duration::from_nanos(5))));
    }

    #[test]
    fn options_are_text_and_names_of_hosts_are_none_of_them() {
        let value = |value| AdvancedConfigValue { value: Some(value) };
        let asked = changed(|r| {
            let options = &mut r.opts.as_mut().unwrap().advanced_configuration;
            options
                .insert("tpu_trace_mode".to_owned(), value(Value::StringValue("TRACE_COMPUTE".to_owned())));
            options.insert("tpu_power_trace_level".to_owned(), value(Value::Int64Value(2)));
            options.insert("override_hostname".to_owned(), value(Value::StringValue("host-7".to_owned())));
        })
        .unwrap();
        let wanted = [("tpu_power_trace_level", "2"), ("tpu_trace_mode", "TRACE_COMPUTE")];
        let wanted: BTreeMap<_, _> = wanted.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        assert_eq!(asked.params.advanced, wanted);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let refused = |change: fn(&mut ProfileRequest)| {
            let error = changed(change).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            error.message().to_owned()
        };
        assert!(refused(|r| r.session_id = "../x".to_owned()).starts_with("session_id: "));
        assert!(refused(|r| r.host_name = "../../etc/cron.d/x".to_owned()).starts_with("host_name: "));
        assert!(refused(|r| r.host_name = "a\nb".to_owned()).starts_with("host_name: "));
        assert!(refused(|r| r.repository_root = "/logs/../etc".to_owned()).starts_with("repository_root: "));
        assert!(
            refused(|r| r.opts.as_mut().unwrap().override_hostname = "a/b".to_owned())
                .starts_with("opts.override_hostname: ")
        );
        for host in ["localhost:4392", "[::1]:4392", "10.0.0.1", ""] {
            changed(|r| r.host_name = host.to_owned()).unwrap();
        }
    }

    #[test]
    fn no_number_is_too_large_to_be_read() {
        let asked = changed(|r| {
            r.duration_ms = 1 << 63;
            let options = r.opts.as_mut().unwrap();
            (options.duration_ms, options.start_timestamp_ns) = (u64::MAX, u64::MAX);
        })
        .unwrap();
        assert_eq!(asked.params.duration, Duration::from_millis(u64::MAX));
        assert_eq!(asked.params.start, Some(Timestamp(i64::MAX)));
    }
}
