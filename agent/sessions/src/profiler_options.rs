//! The advanced profiler options that are known: their types and values.
//!
//! A profiler ignores an option that it does not know, or refuses to trace its devices. So a name or a value that cannot
//! work is refused here, before any workload is disturbed.
//!
//! Source of the names: the options of libtpu 0.0.21 to 0.0.52, and the guides of JAX and XProf. `docs/capture.md` lists
//! them. Starting continuous profiling is no option of a capture.

use std::fmt;

use proto::tensorflow::profile_options::{AdvancedConfigValue, advanced_config_value::Value};

/// An option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfilerOption {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub takes: OptionType,
}

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionType {
    /// `true` or `false`.
    Bool,
    /// A whole number within these limits.
    Number(i64, i64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
}

/// The trace modes of libtpu. The first four are documented.
const TRACE_MODES: &[&str] = &[
    "TRACE_ONLY_HOST",
    "TRACE_ONLY_XLA",
    "TRACE_COMPUTE",
    "TRACE_COMPUTE_AND_SYNC",
    "TRACE_COMPUTE_AND_DMA",
    "TRACE_COMPUTE_AND_DMA_LITE",
    "TRACE_COMPUTE_AND_SC_TASK",
    "TRACE_INSTRUCTION",
    "TRACE_ONLY_HBM",
    "TRACE_ONLY_ICI",
    "TRACE_ONLY_STEPS",
    "TRACE_XLA_AND_SYNC",
];

/// The numbers of the profilers have 32 bits.
const MOST: i64 = i32::MAX as i64;

const fn option(name: &'static str, takes: OptionType) -> ProfilerOption {
    ProfilerOption { name, takes }
}

/// The known options: those of TPUs, then those of GPUs.
pub const KNOWN: &[ProfilerOption] = &[
    option("tpu_trace_mode", OptionType::Word(TRACE_MODES)),
    option("tpu_num_chips_to_profile_per_task", OptionType::Number(0, MOST)),
    option("tpu_num_sparse_cores_to_trace", OptionType::Number(0, MOST)),
    option("tpu_num_sparse_core_tiles_to_trace", OptionType::Number(0, MOST)),
    option("max_trace_buffers", OptionType::Number(1, MOST)),
    option("tpu_circular_buffer_tracing", OptionType::Bool),
    option("tpu_perf_counters", OptionType::Bool),
    option("tpu_perf_counter_sets", OptionType::Text),
    option("tpu_enable_periodic_counter_sampling", OptionType::Bool),
    option("tpu_tc_perf_counter_sampling_options", OptionType::Text),
    option("tpu_scs_perf_counter_sampling_options", OptionType::Text),
    option("tpu_sctc_perf_counter_sampling_options", OptionType::Text),
    option("tpu_sctd_perf_counter_sampling_options", OptionType::Text),
    option("tpu_cmn_perf_counter_sampling_options", OptionType::Text),
    option("tpu_icr_perf_counter_sampling_options", OptionType::Text),
    option("tpu_cpu_perf_counter_configs", OptionType::Text),
    option("tpu_cpu_perf_counter_profile_events", OptionType::Text),
    option("tpu_cpu_perf_counter_interval_ms", OptionType::Number(1, MOST)),
    option("tpu_power_trace_level", OptionType::Number(0, 2)),
    option("tpu_e2e_enable_fw_throttle_event", OptionType::Bool),
    option("tpu_e2e_enable_fw_power_level_event", OptionType::Bool),
    option("tpu_e2e_enable_fw_thermal_event", OptionType::Bool),
    option("e2e_enable_fw_throttle_event", OptionType::Bool),
    option("e2e_enable_fw_power_level_event", OptionType::Bool),
    option("e2e_enable_fw_thermal_event", OptionType::Bool),
    option("tpu_tracemark_lower", OptionType::Number(0, i64::MAX)),
    option("tpu_tracemark_upper", OptionType::Number(0, i64::MAX)),
    option("tracemark_lower", OptionType::Number(0, i64::MAX)),
    option("tracemark_upper", OptionType::Number(0, i64::MAX)),
    option("tpu_watched_sync_flag_number", OptionType::Number(0, i64::MAX)),
    option("tpu_watched_sync_flag_mask", OptionType::Number(0, i64::MAX)),
    option("tpu_sc_dma", OptionType::Bool),
    option("gpu_max_callback_api_events", OptionType::Number(0, i64::MAX)),
    option("gpu_max_activity_api_events", OptionType::Number(0, i64::MAX)),
    option("gpu_max_annotation_strings", OptionType::Number(0, i64::MAX)),
    option("gpu_enable_nvtx_tracking", OptionType::Bool),
    option("gpu_enable_cupti_activity_graph_trace", OptionType::Bool),
    option("gpu_pm_sample_counters", OptionType::Text),
    option("gpu_pm_sample_interval_us", OptionType::Number(1, MOST)),
    option("gpu_pm_sample_buffer_size_per_gpu_mb", OptionType::Number(1, 4096)),
    option("gpu_num_chips_to_profile_per_task", OptionType::Number(0, MOST)),
    option("gpu_dump_graph_node_mapping", OptionType::Bool),
];

/// The fields of a request that are parameters of a capture, not advanced options.
pub const PARAMETERS: &[&str] =
    &["host_tracer_level", "device_tracer_level", "python_tracer_level", "duration_ms", "start_timestamp_ns"];

impl ProfilerOption {
    /// The known option of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|option| option.name == name)
    }
}

impl OptionType {
    /// The value that `text` stands for. `None` if it does not fit.
    pub fn value(self, text: &str) -> Option<AdvancedConfigValue> {
        let value = match self {
            Self::Bool => Value::BoolValue(text.parse().ok()?),
            Self::Number(lowest, highest) => {
                let number = text.parse().ok().filter(|number| (lowest..=highest).contains(number));
                Value::Int64Value(number?)
            }
            Self::Word(words) => Value::StringValue((*words.iter().find(|&&word| word == text)?).to_owned()),
            Self::Text => Value::StringValue(text.to_owned()),
        };
        Some(AdvancedConfigValue { value: Some(value) })
    }
}

impl fmt::Display for OptionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Number(lowest, i64::MAX) => write!(f, "a whole number, {lowest} or more"),
            Self::Number(lowest, highest) => write!(f, "a whole number from {lowest} to {highest}"),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Text => f.write_str("a text"),
        }
    }
}

/// The value of an option that only the settings name, with its type by its form, as in the client of XProf.
pub fn by_form(text: &str) -> AdvancedConfigValue {
    let value = match (text, text.parse()) {
        ("true", _) => Value::BoolValue(true),
        ("false", _) => Value::BoolValue(false),
        (_, Ok(number)) => Value::Int64Value(number),
        _ => Value::StringValue(text.to_owned()),
    };
    AdvancedConfigValue { value: Some(value) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn values_have_the_type_of_their_option() {
        let value = |name: &str, text: &str| ProfilerOption::named(name)?.takes.value(text)?.value;
        assert_eq!(
            value("tpu_trace_mode", "TRACE_COMPUTE"),
            Some(Value::StringValue("TRACE_COMPUTE".into()))
        );
        assert_eq!(value("tpu_trace_mode", "trace_compute"), None);
        assert_eq!(value("tpu_power_trace_level", "2"), Some(Value::Int64Value(2)));
        assert_eq!(value("tpu_power_trace_level", "3"), None);
        assert_eq!(value("tpu_num_sparse_cores_to_trace", "-1"), None);
        assert_eq!(value("tpu_num_sparse_cores_to_trace", "1.5"), None);
        assert_eq!(value("tpu_perf_counters", "false"), Some(Value::BoolValue(false)));
        assert_eq!(value("tpu_perf_counters", "1"), None);
        assert_eq!(
            value("tpu_perf_counter_sets", "7"),
            Some(Value::StringValue("7".into())),
            "a text stays one"
        );
    }

    #[test]
    fn the_docs_list_every_option_with_what_it_takes() {
        let names: BTreeSet<&str> = KNOWN.iter().map(|option| option.name).collect();
        assert_eq!(names.len(), KNOWN.len(), "each name once");
        let docs = include_str!("../../../docs/capture.md");
        let (_, docs) = docs.split_once("## Advanced profiler options").unwrap();
        let docs = docs.split("\n## ").next().unwrap();
        let listed: Vec<&str> = docs.lines().filter(|line| line.starts_with("| `")).collect();
        let wanted: Vec<String> = KNOWN
            .iter()
            .map(|ProfilerOption { name, takes }| match takes {
                OptionType::Word(words) => format!("| `{name}` | one of `{}` |", words.join("`, `")),
                takes => format!("| `{name}` | {takes} |"),
            })
            .collect();
        for (listed, wanted) in listed.iter().zip(&wanted) {
            assert!(listed.starts_with(wanted.as_str()), "{listed}\n{wanted}");
        }
        assert_eq!(listed.len(), wanted.len());
    }
}
