//! The parameters of a capture, checked once against the limits.

use std::{collections::BTreeMap, time::Duration};

use model::{suggestion::nearest, time::Timestamp};
use proto::tensorflow::{ProfileOptions, ProfileRequest, profile_options::AdvancedConfigValue};
use thiserror::Error;
use xprof::session::TracerLevels;

use crate::{
    profiler_options::{self, KNOWN, OptionType, PARAMETERS, ProfilerOption},
    settings::Settings as Limits,
};

/// How much each tracer records. A level that is left out is the default of JAX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Levels {
    /// Host events: 0 none, 1 those of the user, 2 also costly operations, 3 all.
    pub host: Option<u32>,
    /// Device events: 0 none, 1 all.
    pub device: Option<u32>,
    /// Python calls: 0 none, 1 all.
    pub python: Option<u32>,
}

/// The parameters of a request; see [`CaptureSpec::new`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CaptureParams {
    /// Length of the window.
    pub duration: Duration,
    /// Tracer levels.
    pub levels: Levels,
    /// Advanced options as text: `true`, `7`, or a word.
    pub advanced: BTreeMap<String, String>,
    /// The start of the window; `None`: at once.
    pub start: Option<Timestamp>,
    /// The time limit of the answers after the window; `None`: that of the settings.
    pub timeout: Option<Duration>,
    /// The minimum number of parts. With fewer, none is kept; 0 means 1.
    pub min_parts: u32,
    /// The number of the step at which the window is to begin, for the manifest; `start` says when that is.
    pub at_step: Option<i64>,
}

/// Parameters within the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureSpec {
    /// Length of the window, in whole milliseconds.
    pub duration: Duration,
    /// The start of the window; `None`: at once.
    pub start: Option<Timestamp>,
    /// The time limit of the answers after the window.
    pub timeout: Duration,
    /// The maximum size of the answer of one target in bytes.
    pub max_bytes: u64,
    /// The minimum number of parts. With fewer, none is kept.
    pub min_parts: usize,
    /// The tracer levels.
    pub levels: TracerLevels,
    /// The number of the step at which the window is to begin.
    pub at_step: Option<i64>,
    /// The advanced options as text.
    pub advanced: BTreeMap<String, String>,
    values: BTreeMap<String, AdvancedConfigValue>,
}

/// The source of the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamsSource {
    /// The user, who can call the profiler without tpuscope too: all known options are allowed.
    Direct,
    /// A caller of the agent: only the options of the allow-list.
    Agent,
}

/// The reason why parameters are refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A window of less than a millisecond.
    #[error("a duration of {0:?} is too short: at least 1 ms")]
    TooShort(Duration),
    /// A window with a part of a millisecond, which profilers do not take.
    #[error("a duration of {0:?} is not a whole number of milliseconds")]
    NotWholeMillis(Duration),
    /// A window that is longer than allowed.
    #[error("a duration of {0:?} is too long: at most {1}")]
    TooLong(Duration, model::unit::Duration),
    /// A time limit that is zero or too long.
    #[error("a timeout of {0:?} is out of range: more than 0 s and at most {1:?}")]
    Timeout(Duration, Duration),
    /// A level beyond the highest.
    #[error("{tracer} tracer level {level} is too high: at most {highest}")]
    Level {
        /// The tracer.
        tracer: &'static str,
        /// The level in the request.
        level: u32,
        /// The highest level that is allowed.
        highest: u32,
        /// Whether the settings allow no higher one; otherwise the tracer has none.
        of_settings: bool,
    },
    /// A text that cannot be the name of an option.
    #[error("`{0}` cannot be the name of an option: expected at most 64 lower-case letters, digits and _")]
    OptionName(String),
    /// An option that is not known, and the known one whose name is most like it.
    #[error("`{name}` is no known profiler option{}", nearest_text(*.nearest))]
    UnknownOption {
        /// The name in the request.
        name: String,
        /// The most similar known name.
        nearest: Option<&'static str>,
    },
    /// A parameter of the capture that is given as an option.
    #[error("`{0}` is a parameter of the capture, not an advanced profiler option")]
    OptionIsParameter(&'static str),
    /// A value that the option does not take.
    #[error("`{value}` is no value of the option `{name}`: expected {takes}")]
    OptionValue {
        /// The option.
        name: &'static str,
        /// The value in the request.
        value: String,
        /// What it takes.
        takes: OptionType,
    },
    /// An option that is not on the allow-list, and the list.
    #[error("the option `{0}` is not on the agent's list ({list})", list = list_text(.1))]
    OptionDenied(String, Vec<String>),
    /// A value that is too long.
    #[error("the value of the option `{0}` has more than 256 bytes")]
    OptionTooLong(String),
    /// Too many options.
    #[error("more than 32 advanced options")]
    TooManyOptions,
    /// A start that is too far in the future.
    #[error("the start is more than an hour in the future")]
    StartTooFar,
    /// A start in the past.
    #[error("the start is in the past, {:.1} s ago", .0.as_secs_f64())]
    StartPast(Duration),
}

fn nearest_text(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!("; the nearest is `{nearest}`")).unwrap_or_default()
}

fn list_text(list: &[String]) -> String {
    if list.is_empty() { "it is empty".to_owned() } else { list.join(", ") }
}

/// Longer windows are known to lose events of TPUs.
pub const LONG_WINDOW: Duration = Duration::from_secs(30);
/// The longest time that a start may be in the past: the request takes time to arrive.
const PAST: Duration = Duration::from_secs(1);
/// The longest wait for an answer, or for a start.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

impl CaptureSpec {
    /// Checks the parameters against the limits.
    ///
    /// # Errors
    /// If a parameter is outside its limit.
    pub fn new(
        params: CaptureParams,
        source: ParamsSource,
        limits: &Limits,
        now: Timestamp,
    ) -> Result<Self, SpecError> {
        let ms = params.duration.as_millis();
        if ms == 0 {
            return Err(SpecError::TooShort(params.duration));
        }
        if !params.duration.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(SpecError::NotWholeMillis(params.duration));
        }
        if params.duration > limits.max_duration.get() {
            return Err(SpecError::TooLong(params.duration, limits.max_duration));
        }
        let timeout = params.timeout.unwrap_or(limits.timeout.get());
        if timeout.is_zero() || timeout > HOUR {
            return Err(SpecError::Timeout(timeout, HOUR));
        }
        params.start.map_or(Ok(()), |start| check_start(start, now))?;
        check_levels(params.levels, limits.max_tracer_level)?;
        let values = option_values(&params.advanced, source, &limits.advanced_options)?;
        let Levels { host, device, python } = params.levels;
        Ok(Self {
            duration: Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)),
            start: params.start,
            timeout,
            max_bytes: limits.max_size.get(),
            min_parts: params.min_parts.max(1) as usize,
            // What is left out has the default of JAX.
            levels: TracerLevels {
                host: host.unwrap_or(2),
                device: device.unwrap_or(1),
                python: python.unwrap_or(0),
            },
            at_step: params.at_step,
            advanced: params.advanced,
            values,
        })
    }

    /// The request to one target. The server takes the window from the options and the deadline from the
    /// request, so both have it. Without `emit_xspace` it would write files. Below version 1 it
    /// would replace all options by its defaults, also the start and the advanced options. Options that the caller did
    /// not choose are therefore sent with the defaults of the server.
    pub fn request(&self, session_id: &str, start: Option<Timestamp>) -> ProfileRequest {
        let duration_ms = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX);
        ProfileRequest {
            duration_ms,
            opts: Some(ProfileOptions {
                version: 1,
                host_tracer_level: self.levels.host,
                device_tracer_level: self.levels.device,
                python_tracer_level: self.levels.python,
                enable_hlo_proto: true,
                start_timestamp_ns: start.and_then(|start| u64::try_from(start.0).ok()).unwrap_or(0),
                duration_ms,
                session_id: session_id.to_owned(),
                advanced_configuration: self.values.clone().into_iter().collect(),
                ..ProfileOptions::default()
            }),
            session_id: session_id.to_owned(),
            emit_xspace: true,
            ..ProfileRequest::default()
        }
    }
}

/// Whether a window may begin at `start`.
///
/// # Errors
/// If it is more than an hour ahead, or over.
pub fn check_start(start: Timestamp, now: Timestamp) -> Result<(), SpecError> {
    if start > now.plus(HOUR) {
        return Err(SpecError::StartTooFar);
    }
    let ago = start.age(now);
    if ago > PAST { Err(SpecError::StartPast(ago)) } else { Ok(()) }
}

fn check_levels(levels: Levels, highest: u32) -> Result<(), SpecError> {
    for (tracer, level, known) in
        [("host", levels.host, 3), ("device", levels.device, 1), ("python", levels.python, 1)]
    {
        let of_settings = highest < known;
        let highest = highest.min(known);
        if let Some(level) = level.filter(|&level| level > highest) {
            return Err(SpecError::Level { tracer, level, highest, of_settings });
        }
    }
    Ok(())
}

/// The values of the options with their types. `listed` are the options that callers of the agent may set; one that is
/// not known is sent by its form, so that the settings can add options of later profilers.
fn option_values(
    options: &BTreeMap<String, String>,
    source: ParamsSource,
    listed: &[String],
) -> Result<BTreeMap<String, AdvancedConfigValue>, SpecError> {
    if options.len() > 32 {
        return Err(SpecError::TooManyOptions);
    }
    options.iter().map(|(name, text)| Ok((name.clone(), option_value(name, text, source, listed)?))).collect()
}

fn option_value(
    name: &str,
    text: &str,
    source: ParamsSource,
    listed: &[String],
) -> Result<AdvancedConfigValue, SpecError> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(fits) {
        return Err(SpecError::OptionName(name.chars().take(64).collect()));
    }
    if text.len() > 256 {
        return Err(SpecError::OptionTooLong(name.to_owned()));
    }
    if let Some(parameter) = PARAMETERS.iter().find(|&&parameter| parameter == name) {
        return Err(SpecError::OptionIsParameter(parameter));
    }
    let is_listed = listed.iter().any(|listed| listed == name);
    let Some(known) = ProfilerOption::named(name) else {
        if is_listed {
            return Ok(profiler_options::by_form(text));
        }
        let names = KNOWN.iter().map(|option| option.name);
        return Err(SpecError::UnknownOption { name: name.to_owned(), nearest: nearest(name, names) });
    };
    if source == ParamsSource::Agent && !is_listed {
        return Err(SpecError::OptionDenied(name.to_owned(), listed.to_vec()));
    }
    known.takes.value(text).ok_or_else(|| SpecError::OptionValue {
        name: known.name,
        value: text.to_owned(),
        takes: known.takes,
    })
}

#[cfg(test)]
mod tests {
    use proto::tensorflow::profile_options::advanced_config_value::Value;

    use super::*;
    use crate::{CaptureError, FailureReason};

    fn params() -> CaptureParams {
        CaptureParams { duration: Duration::from_millis(1500), ..CaptureParams::default() }
    }

    fn refused(change: impl FnOnce(&mut CaptureParams), source: ParamsSource) -> String {
        let mut params = params();
        change(&mut params);
        match CaptureSpec::new(params, source, &Limits::default(), Timestamp(0)) {
            Ok(spec) => unreachable!("{spec:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn limits_hold() {
        assert!(
            refused(|w| w.duration = Duration::from_micros(10), ParamsSource::Direct).contains("too short")
        );
        assert_eq!(
            refused(|w| w.duration = Duration::from_micros(1900), ParamsSource::Direct),
            "a duration of 1.9ms is not a whole number of milliseconds"
        );
        assert!(refused(|w| w.duration = HOUR, ParamsSource::Direct).contains("at most 5m"));
        assert!(refused(|w| w.timeout = Some(Duration::ZERO), ParamsSource::Direct).contains("out of range"));
        assert!(
            refused(|w| w.levels.python = Some(2), ParamsSource::Direct)
                .contains("level 2 is too high: at most 1")
        );
        assert!(refused(|w| w.levels.host = Some(4), ParamsSource::Direct).contains("at most 3"));
        assert!(refused(|w| w.start = Some(Timestamp(i64::MAX)), ParamsSource::Direct).contains("an hour"));
        let past = CaptureParams { start: Some(Timestamp(0)), ..params() };
        let late = CaptureSpec::new(past, ParamsSource::Direct, &Limits::default(), Timestamp(2_000_000_000));
        assert_eq!(late, Err(SpecError::StartPast(Duration::from_secs(2))));
        let option = |name: &str| {
            let name = name.to_owned();
            move |w: &mut CaptureParams| {
                w.advanced.insert(name, "1".to_owned());
            }
        };
        assert!(refused(option("../x"), ParamsSource::Direct).contains("cannot be the name of an option"));
    }

    #[test]
    fn only_a_limit_of_the_settings_is_one() {
        let reason = |max_tracer_level: u32, level: u32| {
            let levels = Levels { device: Some(level), ..Levels::default() };
            let limits = Limits { max_tracer_level, ..Limits::default() };
            let params = CaptureParams { levels, ..params() };
            let spec = CaptureSpec::new(params, ParamsSource::Direct, &limits, Timestamp(0));
            spec.map_err(|error| CaptureError::from(error).reason())
        };
        assert_eq!(reason(3, 2), Err(FailureReason::Invalid));
        assert_eq!(reason(0, 1), Err(FailureReason::Limit));
    }

    #[test]
    fn options_are_checked_against_what_is_known() {
        let refused = |name: &str, value: &str, source| {
            let option = |params: &mut CaptureParams| {
                params.advanced.insert(name.to_owned(), value.to_owned());
            };
            refused(option, source)
        };
        for source in [ParamsSource::Agent, ParamsSource::Direct] {
            assert_eq!(
                refused("tpu_trace_mod", "TRACE_COMPUTE", source),
                "`tpu_trace_mod` is no known profiler option; the nearest is `tpu_trace_mode`"
            );
            assert_eq!(refused("zzz", "1", source), "`zzz` is no known profiler option");
            assert!(refused("tpu_trace_mode", "FAST", source).starts_with(
                "`FAST` is no value of the option `tpu_trace_mode`: expected one of TRACE_ONLY_HOST,"
            ));
            assert!(refused("python_tracer_level", "1", source).contains("is a parameter of the capture"));
        }
        assert_eq!(
            refused("tpu_num_sparse_cores_to_trace", "two", ParamsSource::Agent),
            "`two` is no value of the option `tpu_num_sparse_cores_to_trace`: expected a whole number from 0 to 2147483647"
        );
        assert!(refused("max_trace_buffers", "9", ParamsSource::Agent).contains("not on the agent's list"));
    }

    #[test]
    fn the_settings_can_add_an_option_of_a_later_profiler() {
        let limits = Limits { advanced_options: vec!["tpu_new_option".into()], ..Limits::default() };
        let mut params = params();
        params.advanced.insert("tpu_new_option".into(), "7".into());
        let spec = CaptureSpec::new(params, ParamsSource::Agent, &limits, Timestamp(0)).expect("listed");
        let options = spec.request("id", None).opts.expect("set");
        assert_eq!(options.advanced_configuration["tpu_new_option"].value, Some(Value::Int64Value(7)));
    }

    #[test]
    fn the_request_says_the_window_twice_and_names_no_folder() {
        let mut params = params();
        params.advanced.insert("tpu_trace_mode".into(), "TRACE_COMPUTE".into());
        params.advanced.insert("tpu_num_chips_to_profile_per_task".into(), "2".into());
        let spec = CaptureSpec::new(params, ParamsSource::Agent, &Limits::default(), Timestamp(0))
            .expect("within limits");
        let request = spec.request("id", Some(Timestamp(7)));
        let options = request.opts.expect("set");
        assert_eq!((request.duration_ms, options.duration_ms), (1500, 1500));
        assert_eq!((options.version, options.start_timestamp_ns), (1, 7));
        assert!(request.emit_xspace && request.repository_root.is_empty());
        let value = |name: &str| options.advanced_configuration[name].value.clone();
        assert_eq!(value("tpu_trace_mode"), Some(Value::StringValue("TRACE_COMPUTE".into())));
        assert_eq!(value("tpu_num_chips_to_profile_per_task"), Some(Value::Int64Value(2)));
    }

    #[test]
    fn levels_that_are_left_out_are_the_servers_defaults() {
        let mut params = params();
        params.levels.python = Some(1);
        let spec = CaptureSpec::new(params, ParamsSource::Direct, &Limits::default(), Timestamp(0))
            .expect("within limits");
        let options = spec.request("id", None).opts.expect("set");
        assert_eq!(
            (
                options.version,
                options.host_tracer_level,
                options.device_tracer_level,
                options.python_tracer_level
            ),
            (1, 2, 1, 1)
        );
    }
}
