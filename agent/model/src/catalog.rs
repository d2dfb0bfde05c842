//! The one table of metric names: what we call a series, what it means, and what its origins call it.
//!
//! `docs/metrics.md` shows the same table and a test keeps the two equal. Must never hold a name that no source yields.

use crate::sample::{Origin, Unit};

/// What a series does over time; decides how it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A level.
    Gauge,
    /// A rising total; the name ends in `_total`.
    Counter,
    /// A distribution over the window since the read before.
    Window,
}

/// What an origin calls the metric, and what its number must be multiplied by to be in our unit.
#[derive(Debug, Clone, Copy)]
pub struct Wire {
    /// Who.
    pub origin: Origin,
    /// Its name there.
    pub name: &'static str,
    /// Theirs times this is ours.
    pub scale: f64,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Our name, with the unit as suffix.
    pub name: &'static str,
    /// One sentence for HELP.
    pub help: &'static str,
    /// The unit of our value.
    pub unit: Unit,
    /// Gauge, counter or window.
    pub kind: Kind,
    /// The labels that it may carry beside `source` and the job's.
    pub labels: &'static [&'static str],
    /// Its names elsewhere.
    pub wires: &'static [Wire],
}

impl Metric {
    /// The name of a window's mean: `tpu_x_mean_seconds` for `tpu_x_seconds`.
    pub fn mean_name(&self) -> String {
        let suffix = suffix(self.unit);
        format!("{}_mean{suffix}", self.name.strip_suffix(suffix).unwrap_or(self.name))
    }

    /// The name of a figure of all values since the start of the workload, which is what the SDK has of a window:
    /// `tpu_x_lifetime_p95_seconds` for `tpu_x_seconds`.
    pub fn lifetime_name(&self, figure: &str) -> String {
        let suffix = suffix(self.unit);
        format!("{}_lifetime_{figure}{suffix}", self.name.strip_suffix(suffix).unwrap_or(self.name))
    }

    /// The name of the number of values in a window: `tpu_x_samples` for `tpu_x_seconds`.
    pub fn samples_name(&self) -> String {
        format!("{}_samples", self.name.strip_suffix(suffix(self.unit)).unwrap_or(self.name))
    }
}

/// What names of this unit end in.
pub fn suffix(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "_bytes",
        Unit::Seconds => "_seconds",
        Unit::Ratio => "_ratio",
        Unit::BytesPerSecond => "_bytes_per_second",
        Unit::Count | Unit::Score => "",
    }
}

/// The metric of this name.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The metric that `origin` calls `name`, and what it is there.
pub fn by_wire(origin: Origin, name: &str) -> Option<(&'static Metric, &'static Wire)> {
    METRICS.iter().find_map(|metric| {
        let wire = metric.wires.iter().find(|wire| wire.origin == origin && wire.name == name)?;
        Some((metric, wire))
    })
}

const fn runtime(name: &'static str, scale: f64) -> Wire {
    Wire { origin: Origin::Runtime, name, scale }
}
const fn sdk(name: &'static str, scale: f64) -> Wire {
    Wire { origin: Origin::Libtpu, name, scale }
}
const fn vbar(name: &'static str, scale: f64) -> Wire {
    Wire { origin: Origin::HostService, name, scale }
}
const fn text(name: &'static str, scale: f64) -> Wire {
    Wire { origin: Origin::OrbaxGrain, name, scale }
}

const fn gauge(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
    wires: &'static [Wire],
) -> Metric {
    Metric { name, help, unit, kind: Kind::Gauge, labels, wires }
}
const fn counter(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, help, unit, kind: Kind::Counter, labels, wires: &[] }
}
const fn window(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
    wires: &'static [Wire],
) -> Metric {
    Metric { name, help, unit, kind: Kind::Window, labels, wires }
}

const PERCENT: f64 = 0.01;
const MICROSECOND: f64 = 1e-6;
const NANOSECOND: f64 = 1e-9;
const GIGABYTE: f64 = 1e9;
/// 10^6 bits per second, in bytes per second.
const MBPS: f64 = 125_000.0;

const CORE: &[&str] = &["chip", "core"];
const CORE_TYPE: &[&str] = &["chip", "core", "core_type"];
const BUFFER: &[&str] = &["buffer_size"];
const CHIP: &[&str] = &["chip", "chip_id"];

/// Every metric, in the order of the docs.
pub const METRICS: &[Metric] = &[
    // The chips, as the workload's runtime sees them.
    gauge(
        "tpu_hbm_total_bytes",
        Unit::Bytes,
        CORE,
        "HBM that the runtime can allocate.",
        &[runtime("tpu.runtime.hbm.memory.total.bytes", 1.0), sdk("hbm_capacity_total", 1.0)],
    ),
    gauge(
        "tpu_hbm_used_bytes",
        Unit::Bytes,
        CORE,
        "HBM that the runtime has allocated.",
        &[runtime("tpu.runtime.hbm.memory.usage.bytes", 1.0), sdk("hbm_capacity_usage", 1.0)],
    ),
    gauge(
        "tpu_tensorcore_duty_cycle_ratio",
        Unit::Ratio,
        CORE,
        "Share of the runtime's last sample period in which the TensorCore was busy; per chip on v2 and v3.",
        &[runtime("tpu.runtime.tensorcore.dutycycle.percent", PERCENT), sdk("duty_cycle_pct", PERCENT)],
    ),
    gauge(
        "tpu_hbm_bandwidth_utilization_ratio",
        Unit::Ratio,
        CORE,
        "Share of the HBM bandwidth in use, as the runtime measures it.",
        &[runtime("tpu.runtime.hbm.utilization.percent", PERCENT), sdk("runtime_hbm_utilization", PERCENT)],
    ),
    gauge(
        "tpu_tensorcore_idle_seconds",
        Unit::Seconds,
        CORE,
        "Time since the TensorCore was last active; 0 while it is busy.",
        &[runtime("tpu.runtime.tensorcore.idle_duration.seconds", 1.0), sdk("idle_duration", 1.0)],
    ),
    gauge(
        "tpu_hlo_queue_size",
        Unit::Count,
        CORE_TYPE,
        "Programs enqueued and not yet dequeued.",
        &[runtime("hlo.queue.size.gauge", 1.0), sdk("hlo_queue_size", 1.0)],
    ),
    window(
        "tpu_hlo_execution_seconds",
        Unit::Seconds,
        CORE_TYPE,
        "Time of a program from enqueueing to dequeueing.",
        &[
            runtime("hlo.execution.timing.distribution.microseconds", MICROSECOND),
            sdk("hlo_execution_timing", MICROSECOND),
        ],
    ),
    // Megascale: traffic between slices.
    window(
        "tpu_dcn_transfer_seconds",
        Unit::Seconds,
        BUFFER,
        "Time of a buffer transfer over the data centre network.",
        &[
            runtime("megascale.dcn_transfer_latencies.microsecond.cumulative.distribution", MICROSECOND),
            sdk("buffer_transfer_latency", MICROSECOND),
        ],
    ),
    window(
        "tpu_dcn_inbound_transfer_seconds",
        Unit::Seconds,
        BUFFER,
        "Time of an inbound buffer transfer over the data centre network.",
        &[
            runtime(
                "megascale.dcn_inbound_transfer_latencies.microsecond.cumulative.distribution",
                MICROSECOND,
            ),
            sdk("inbound_buffer_transfer_latency", MICROSECOND),
        ],
    ),
    window(
        "tpu_host_to_device_transfer_seconds",
        Unit::Seconds,
        BUFFER,
        "Time of a transfer from host to device for a cross-slice collective.",
        &[
            runtime(
                "megascale.host_to_device_transfer_latencies.microsecond.cumulative.distribution",
                MICROSECOND,
            ),
            sdk("host_to_device_transfer_latency", MICROSECOND),
        ],
    ),
    window(
        "tpu_device_to_host_transfer_seconds",
        Unit::Seconds,
        BUFFER,
        "Time of a transfer from device to host for a cross-slice collective.",
        &[
            runtime(
                "megascale.device_to_host_transfer_latencies.microsecond.cumulative.distribution",
                MICROSECOND,
            ),
            sdk("device_to_host_transfer_latency", MICROSECOND),
        ],
    ),
    window(
        "tpu_collective_end_to_end_seconds",
        Unit::Seconds,
        BUFFER,
        "Time of a cross-slice collective from end to end.",
        &[
            runtime(
                "megascale.collective_end_to_end_latencies.microsecond.cumulative.distribution",
                MICROSECOND,
            ),
            sdk("collective_e2e_latency", MICROSECOND),
        ],
    ),
    window(
        "tpu_host_compute_seconds",
        Unit::Seconds,
        BUFFER,
        "Time of a reduction on the host for a cross-slice collective.",
        &[
            runtime("megascale.mxla_compute_latencies.microsecond.cumulative.distribution", MICROSECOND),
            sdk("host_compute_latency", MICROSECOND),
        ],
    ),
    window(
        "tpu_dcn_tcp_min_rtt_seconds",
        Unit::Seconds,
        &[],
        "Least round-trip time of the cross-slice TCP connections.",
        &[
            runtime("megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution", MICROSECOND),
            sdk("tcp_min_rtt", MICROSECOND),
        ],
    ),
    window(
        "tpu_dcn_tcp_delivery_rate_bytes_per_second",
        Unit::BytesPerSecond,
        &[],
        "Delivery rate of the cross-slice TCP connections.",
        &[
            runtime("megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution", MBPS),
            sdk("tcp_delivery_rate", MBPS),
        ],
    ),
    // The chips, as the host's own service sees them.
    gauge(
        "tpu_chip_tensorcore_utilization_ratio",
        Unit::Ratio,
        CHIP,
        "TensorCore utilization as the host's service measures it.",
        &[vbar("METRIC_TYPE_TENSORCORE", PERCENT), sdk("tensorcore_util", PERCENT)],
    ),
    gauge(
        "tpu_chip_hbm_bandwidth_utilization_ratio",
        Unit::Ratio,
        CHIP,
        "Share of the HBM bandwidth in use, as the host's service measures it.",
        &[vbar("METRIC_TYPE_HBM", PERCENT), sdk("hbm_util", PERCENT)],
    ),
    gauge(
        "tpu_chip_ici_utilization_ratio",
        Unit::Ratio,
        CHIP,
        "Utilization of the inter-chip links, as the host's service measures it.",
        &[vbar("METRIC_TYPE_ICI", PERCENT)],
    ),
    gauge(
        "tpu_chip_sparsecore_utilization_ratio",
        Unit::Ratio,
        CHIP,
        "SparseCore utilization as the host's service measures it.",
        &[vbar("METRIC_TYPE_SPARSECORE", PERCENT)],
    ),
    gauge(
        "tpu_chip_throttle_score",
        Unit::Score,
        &["tray_chip"],
        "0: not throttled; 1 to 10: throttled by 10 to 100 percent.",
        &[vbar("throttling_score", 1.0), sdk("tpu_throttle_score", 1.0)],
    ),
    gauge(
        "tpu_ici_link_health_score",
        Unit::Score,
        &["link"],
        "0: healthy; 1 to 5: transient problems; 6 to 9: persistent minor problems; 10: unusable.",
        &[vbar("link_health", 1.0), sdk("ici_link_health", 1.0)],
    ),
    // Checkpoints and input, from Orbax and Grain. Their other series get their names by rule.
    gauge(
        "jax_orbax_write_bytes",
        Unit::Bytes,
        &[],
        "Bytes of the last checkpoint written.",
        &[text("jax_orbax_write_gbytes", GIGABYTE), sdk("orbax_write_size", GIGABYTE)],
    ),
    gauge(
        "jax_orbax_write_bytes_per_second",
        Unit::BytesPerSecond,
        &[],
        "Throughput of the last checkpoint write.",
        &[text("jax_orbax_write_gbytes_per_sec", GIGABYTE), sdk("orbax_write_throughput", GIGABYTE)],
    ),
    gauge(
        "jax_checkpoint_write_async_blocking_duration_seconds",
        Unit::Seconds,
        &[],
        "Time that an asynchronous checkpoint write kept the training waiting.",
        &[
            text("jax_checkpoint_write_async_blocking_duration_secs", 1.0),
            sdk("checkpoint_write_async_blocking_duration", 1.0),
        ],
    ),
    gauge(
        "jax_checkpoint_write_async_total_duration_seconds",
        Unit::Seconds,
        &[],
        "Time of an asynchronous checkpoint write, background part included.",
        &[
            text("jax_checkpoint_write_async_total_duration_secs", 1.0),
            sdk("checkpoint_write_async_total_duration", 1.0),
        ],
    ),
    gauge(
        "jax_orbax_read_total_duration_seconds",
        Unit::Seconds,
        &[],
        "Time of a checkpoint read.",
        &[text("jax_orbax_read_total_duration_secs", 1.0), sdk("orbax_read_total_duration", 1.0)],
    ),
    gauge(
        "jax_orbax_read_blocking_duration_seconds",
        Unit::Seconds,
        &[],
        "Time that a checkpoint read kept the training waiting.",
        &[text("jax_orbax_read_blocking_duration_secs", 1.0), sdk("orbax_read_blocking_duration", 1.0)],
    ),
    gauge(
        "jax_orbax_write_async_start",
        Unit::Count,
        &[],
        "Asynchronous checkpoint writes started.",
        &[text("jax_orbax_write_async_start", 1.0), sdk("orbax_write_async_start_count", 1.0)],
    ),
    gauge(
        "jax_orbax_read_async_start",
        Unit::Count,
        &[],
        "Asynchronous checkpoint reads started.",
        &[text("jax_orbax_read_async_start", 1.0), sdk("orbax_read_async_start_count", 1.0)],
    ),
    gauge(
        "grain_python_data_sources_bytes_read",
        Unit::Bytes,
        &[],
        "Bytes that Grain's data sources have read.",
        &[text("grain_python_data_sources_bytes_read", 1.0), sdk("pygrain_data_sources_read_size", 1.0)],
    ),
    gauge(
        "grain_python_dataset_source_read_seconds",
        Unit::Seconds,
        &[],
        "Time of a read from a Grain data source.",
        &[
            text("grain_python_dataset_source_read_time_ns", NANOSECOND),
            sdk("pygrain_dataset_source_read_duration", NANOSECOND),
        ],
    ),
    gauge(
        "grain_python_dataset_next_duration_seconds",
        Unit::Seconds,
        &[],
        "Time that the training waited for the next element of a Grain dataset.",
        &[
            text("grain_python_dataset_next_duration_ns", NANOSECOND),
            sdk("pygrain_dataset_next_duration", NANOSECOND),
        ],
    ),
    gauge(
        "grain_python_dataset_prefetch_buffer_ready_elements",
        Unit::Count,
        &[],
        "Elements ready in Grain's prefetch buffer.",
        &[
            text("grain_python_dataset_prefetch_buffer_ready_count", 1.0),
            sdk("pygrain_dataset_prefetch_buffer_ready_count", 1.0),
        ],
    ),
    gauge(
        "grain_python_data_loader_iterator_get_next",
        Unit::Count,
        &[],
        "Grain's own figure for the iterator's next element, in Grain's unit.",
        &[
            text("grain_python_data_loader_iterator_get_next", 1.0),
            sdk("pygrain_dataloader_iterator_get_next_duration", 1.0),
        ],
    ),
    // The host.
    counter("host_cpu_seconds_total", Unit::Seconds, &["mode"], "CPU time of all processors by mode."),
    gauge("host_cpus", Unit::Count, &[], "Processors that are online.", &[]),
    gauge("host_load1", Unit::Count, &[], "Load average over one minute.", &[]),
    gauge("host_memory_total_bytes", Unit::Bytes, &[], "Memory of the host.", &[]),
    gauge("host_memory_available_bytes", Unit::Bytes, &[], "Memory that can be had without swapping.", &[]),
    gauge("host_swap_used_bytes", Unit::Bytes, &[], "Swap in use.", &[]),
    counter("host_network_receive_bytes_total", Unit::Bytes, &["device"], "Bytes received."),
    counter("host_network_transmit_bytes_total", Unit::Bytes, &["device"], "Bytes sent."),
    counter("host_network_receive_errors_total", Unit::Count, &["device"], "Receive errors."),
    counter("host_network_transmit_errors_total", Unit::Count, &["device"], "Transmit errors."),
    counter("host_network_receive_drops_total", Unit::Count, &["device"], "Packets dropped on receipt."),
    counter("host_network_transmit_drops_total", Unit::Count, &["device"], "Packets dropped on sending."),
    counter("host_disk_read_bytes_total", Unit::Bytes, &["device"], "Bytes read from whole disks."),
    counter("host_disk_written_bytes_total", Unit::Bytes, &["device"], "Bytes written to whole disks."),
    counter("host_disk_io_seconds_total", Unit::Seconds, &["device"], "Time with I/O in flight."),
    counter(
        "host_pressure_waiting_seconds_total",
        Unit::Seconds,
        &["resource"],
        "Time in which at least one task waited for the resource (PSI, some).",
    ),
    counter(
        "host_pressure_stalled_seconds_total",
        Unit::Seconds,
        &["resource"],
        "Time in which all tasks waited for the resource (PSI, full).",
    ),
    // The control groups of the workloads, and ours where there is no workload.
    counter("cgroup_cpu_seconds_total", Unit::Seconds, &["cgroup"], "CPU time of the control group."),
    counter(
        "cgroup_cpu_throttled_seconds_total",
        Unit::Seconds,
        &["cgroup"],
        "Time that the control group was kept from running by its CPU quota.",
    ),
    gauge("cgroup_memory_used_bytes", Unit::Bytes, &["cgroup"], "Memory charged to the control group.", &[]),
    gauge(
        "cgroup_memory_limit_bytes",
        Unit::Bytes,
        &["cgroup"],
        "Memory limit of the control group; absent without one.",
        &[],
    ),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn documented() -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        fs::read_to_string(path).expect("docs/metrics.md is there")
    }

    fn unit_word(unit: Unit) -> &'static str {
        match unit {
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
            Unit::Ratio => "ratio",
            Unit::Count => "count",
            Unit::BytesPerSecond => "bytes/s",
            Unit::Score => "score",
        }
    }

    fn row(metric: &Metric) -> String {
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Window => "window",
        };
        let wires: Vec<_> =
            metric.wires.iter().map(|wire| format!("{} `{}`", wire.origin.as_str(), wire.name)).collect();
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        format!(
            "| `{}` | {kind} | {} | {} | {} | {} |",
            metric.name,
            unit_word(metric.unit),
            labels.join(" "),
            metric.help,
            wires.join(", ")
        )
    }

    #[test]
    fn the_docs_show_this_table() {
        let text = documented();
        let shown: Vec<_> = text
            .lines()
            .filter(|line| {
                ["| `tpu_", "| `jax_", "| `grain_", "| `host_", "| `cgroup_"]
                    .iter()
                    .any(|start| line.starts_with(start))
            })
            .collect();
        let wanted: Vec<_> = METRICS.iter().map(row).collect();
        assert_eq!(shown, wanted, "docs/metrics.md must hold these rows:\n{}", wanted.join("\n"));
    }

    #[test]
    fn names_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            assert!(names.insert(metric.name), "{} stands twice", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
            let stem = metric.name.strip_suffix("_total").unwrap_or(metric.name);
            let foreign = ["grain_python_data_sources_bytes_read"].contains(&stem);
            assert!(foreign || stem.ends_with(suffix(metric.unit)), "{} lacks its unit", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn wire_names_lead_to_one_metric() {
        let mut seen = BTreeSet::new();
        for wire in METRICS.iter().flat_map(|metric| metric.wires) {
            assert!(seen.insert((wire.origin, wire.name)), "{} stands twice", wire.name);
        }
        let (metric, wire) = by_wire(Origin::Libtpu, "duty_cycle_pct").expect("known");
        assert_eq!((metric.name, wire.scale), ("tpu_tensorcore_duty_cycle_ratio", 0.01));
        assert_eq!(metric.mean_name(), "tpu_tensorcore_duty_cycle_mean_ratio");
    }
}
