//! The catalog: every metric that tpuscope measures, each written once. (What the agent counts of itself is described
//! in the crate that counts it.)
//!
//! An entry is all that a new metric of the runtime service, the SDK, Orbax or Grain needs in code: its name and help text, unit,
//! kind and labels, and what its origins call it. Sources find it by the origin's name, samples carry it, the exporter renders it.
//! `docs/metrics.md` shows the same table and a test keeps the two equal. Must never hold a name that no source
//! yields.

use std::borrow::Cow;

use crate::{
    metric::{Descriptor, MetricKind, OriginName, Scale, Unit},
    sample::Origin,
};

/// The metric that `origin` calls `name`, and what it is there.
pub fn by_origin(origin: Origin, name: &str) -> Option<(&'static Descriptor, &'static OriginName)> {
    METRICS.iter().find_map(|metric| {
        let named = metric.origins.iter().find(|named| named.origin == origin && named.name == name)?;
        Some((*metric, named))
    })
}

/// Every metric of an origin, with its name there.
pub fn of_origin(origin: Origin) -> impl Iterator<Item = (&'static Descriptor, &'static OriginName)> {
    METRICS.iter().filter_map(move |metric| Some((*metric, metric.at(origin)?)))
}

const fn runtime(name: &'static str, scale: Scale) -> OriginName {
    OriginName { origin: Origin::Runtime, name, scale, since: 0 }
}
/// A name of the SDK, which libtpu has since 0.0.`since`.
const fn sdk(name: &'static str, since: u32, scale: Scale) -> OriginName {
    OriginName { origin: Origin::Libtpu, name, scale, since }
}
const fn host_service(name: &'static str, scale: Scale) -> OriginName {
    OriginName { origin: Origin::HostService, name, scale, since: 0 }
}
const fn orbax_grain(name: &'static str, scale: Scale) -> OriginName {
    OriginName { origin: Origin::OrbaxGrain, name, scale, since: 0 }
}

const PERCENT: Scale = Scale::over(100.0);
const MICROSECOND: Scale = Scale::over(1e6);
const NANOSECOND: Scale = Scale::over(1e9);
const GIGABYTE: Scale = Scale::times(1e9);
/// 10^6 bits per second, in bytes per second.
const MBPS: Scale = Scale::times(125_000.0);

const CORE: &[&str] = &["chip", "core"];
const CORE_TYPE: &[&str] = &["chip", "core", "core_type"];
const BUFFER: &[&str] = &["buffer_size"];
const CHIP: &[&str] = &["chip", "chip_id"];
const HOST_CHIP: &[&str] = &["chip"];
const CHIP_INFO: &[&str] = &["chip", "pci", "type", "numa_node"];
const CHIP_FAULT: &[&str] = &["chip", "fault"];
const CHIP_OWNER: &[&str] = &["chip", "state", "command", "user"];
const TRAY_CHIP: &[&str] = &["tray_chip"];
const LINK: &[&str] = &["link", "tray_chip"];
const JOB_LEDGER: &[&str] = &["ledger"];
const JOB_LOSS: &[&str] = &["ledger", "reason"];
const TRAY_CHIP_OF: &[&str] = &["tray_chip", "chip"];

const fn gauge() -> MetricKind {
    MetricKind::Gauge
}
const fn counter() -> MetricKind {
    MetricKind::Counter
}
const fn histogram() -> MetricKind {
    MetricKind::Histogram
}

/// `CONSTANT = kind(name, unit, labels, help, [names at the origins]);`
macro_rules! catalog {
    ($($constant:ident = $kind:ident(
        $name:literal, $unit:ident, $labels:expr, $help:literal, [$($origin:expr),*]
    );)*) => {
        $(
            #[doc = $help]
            pub static $constant: Descriptor = Descriptor {
                name: Cow::Borrowed($name),
                help: Cow::Borrowed($help),
                unit: Unit::$unit,
                kind: $kind(),
                labels: $labels,
                origins: &[$($origin),*],
            };
        )*

        /// Every metric, in the order of the docs.
        pub static METRICS: &[&Descriptor] = &[$(&$constant),*];
    };
}

catalog! {
    // The chips, as the kernel shows them.
    TPU_CHIP_INFO = gauge(
        "tpu_chip_info", Count, CHIP_INFO,
        "1 for each chip, with its PCI address, its type, and its NUMA node where sysfs says.",
        []
    );
    TPU_CHIP_UP = gauge(
        "tpu_chip_up", Count, HOST_CHIP,
        "1 when nothing is wrong with the chip, 0 when a driver, a PCI function or a device node is missing on the host; no series when that is not known.",
        []
    );
    TPU_CHIP_FAULT = gauge(
        "tpu_chip_fault", Count, CHIP_FAULT,
        "1 for each fault of a chip whose tpu_chip_up is 0.",
        []
    );
    TPU_CHIP_OWNER_INFO = gauge(
        "tpu_chip_owner_info", Count, CHIP_OWNER,
        "1 for each workload and command that holds the chip (state held), or where none was seen: state free, or unknown when a process that cannot be seen may hold it. No series for a chip that nobody holds or can open.",
        []
    );
    TPU_CHIPS_EXPECTED = gauge(
        "tpu_chips_expected", Count, &[],
        "Chips that this host should have: as its tpu-env file says, else the most seen since the start.",
        []
    );
    // The chips, as the workload's runtime sees them.
    TPU_HBM_TOTAL_BYTES = gauge(
        "tpu_hbm_total_bytes", Bytes, CORE,
        "HBM that the runtime can allocate.",
        [runtime("tpu.runtime.hbm.memory.total.bytes", Scale::ONE), sdk("hbm_capacity_total", 15, Scale::ONE)]
    );
    TPU_HBM_USED_BYTES = gauge(
        "tpu_hbm_used_bytes", Bytes, CORE,
        "HBM that the runtime has allocated.",
        [runtime("tpu.runtime.hbm.memory.usage.bytes", Scale::ONE), sdk("hbm_capacity_usage", 15, Scale::ONE)]
    );
    TPU_TENSORCORE_DUTY_CYCLE_RATIO = gauge(
        "tpu_tensorcore_duty_cycle_ratio", Ratio, CORE,
        "Share of the runtime's last sample period in which the TensorCore was busy; per chip on v2 and v3.",
        [runtime("tpu.runtime.tensorcore.dutycycle.percent", PERCENT), sdk("duty_cycle_pct", 15, PERCENT)]
    );
    TPU_HBM_BANDWIDTH_UTILIZATION_RATIO = gauge(
        "tpu_hbm_bandwidth_utilization_ratio", Ratio, CORE,
        "Share of the HBM bandwidth in use, as the runtime measures it.",
        [runtime("tpu.runtime.hbm.utilization.percent", PERCENT), sdk("runtime_hbm_utilization", 42, PERCENT)]
    );
    TPU_TENSORCORE_IDLE_SECONDS = gauge(
        "tpu_tensorcore_idle_seconds", Seconds, CORE,
        "Time since the TensorCore was last active; 0 while it is busy.",
        [runtime("tpu.runtime.tensorcore.idle_duration.seconds", Scale::ONE), sdk("idle_duration", 42, Scale::ONE)]
    );
    TPU_HLO_QUEUE_SIZE = gauge(
        "tpu_hlo_queue_size", Count, CORE_TYPE,
        "Programs enqueued and not yet dequeued.",
        [runtime("hlo.queue.size.gauge", Scale::ONE), sdk("hlo_queue_size", 17, Scale::ONE)]
    );
    TPU_HLO_EXECUTION_SECONDS = histogram(
        "tpu_hlo_execution_seconds", Seconds, CORE_TYPE,
        "Time of a program from enqueueing to dequeueing.",
        [runtime("hlo.execution.timing.distribution.microseconds", MICROSECOND), sdk("hlo_execution_timing", 17, MICROSECOND)]
    );
    // Megascale: traffic between slices.
    TPU_DCN_TRANSFER_SECONDS = histogram(
        "tpu_dcn_transfer_seconds", Seconds, BUFFER,
        "Time of a buffer transfer over the data centre network.",
        [runtime("megascale.dcn_transfer_latencies.microsecond.cumulative.distribution", MICROSECOND), sdk("buffer_transfer_latency", 15, MICROSECOND)]
    );
    TPU_DCN_INBOUND_TRANSFER_SECONDS = histogram(
        "tpu_dcn_inbound_transfer_seconds", Seconds, BUFFER,
        "Time of an inbound buffer transfer over the data centre network.",
        [runtime("megascale.dcn_inbound_transfer_latencies.microsecond.cumulative.distribution", MICROSECOND), sdk("inbound_buffer_transfer_latency", 38, MICROSECOND)]
    );
    TPU_HOST_TO_DEVICE_TRANSFER_SECONDS = histogram(
        "tpu_host_to_device_transfer_seconds", Seconds, BUFFER,
        "Time of a transfer from host to device for a cross-slice collective.",
        [runtime("megascale.host_to_device_transfer_latencies.microsecond.cumulative.distribution", MICROSECOND), sdk("host_to_device_transfer_latency", 32, MICROSECOND)]
    );
    TPU_DEVICE_TO_HOST_TRANSFER_SECONDS = histogram(
        "tpu_device_to_host_transfer_seconds", Seconds, BUFFER,
        "Time of a transfer from device to host for a cross-slice collective.",
        [runtime("megascale.device_to_host_transfer_latencies.microsecond.cumulative.distribution", MICROSECOND), sdk("device_to_host_transfer_latency", 32, MICROSECOND)]
    );
    TPU_COLLECTIVE_END_TO_END_SECONDS = histogram(
        "tpu_collective_end_to_end_seconds", Seconds, BUFFER,
        "Time of a cross-slice collective from end to end.",
        [runtime("megascale.collective_end_to_end_latencies.microsecond.cumulative.distribution", MICROSECOND), sdk("collective_e2e_latency", 19, MICROSECOND)]
    );
    TPU_HOST_COMPUTE_SECONDS = histogram(
        "tpu_host_compute_seconds", Seconds, BUFFER,
        "Time of a reduction on the host for a cross-slice collective.",
        [runtime("megascale.mxla_compute_latencies.microsecond.cumulative.distribution", MICROSECOND), sdk("host_compute_latency", 38, MICROSECOND)]
    );
    TPU_DCN_TCP_MIN_RTT_SECONDS = histogram(
        "tpu_dcn_tcp_min_rtt_seconds", Seconds, &[],
        "Minimum round-trip time of the cross-slice TCP connections.",
        [runtime("megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution", MICROSECOND), sdk("tcp_min_rtt", 30, MICROSECOND)]
    );
    TPU_DCN_TCP_DELIVERY_RATE_BYTES_PER_SECOND = histogram(
        "tpu_dcn_tcp_delivery_rate_bytes_per_second", BytesPerSecond, &[],
        "Delivery rate of the cross-slice TCP connections.",
        [runtime("megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution", MBPS), sdk("tcp_delivery_rate", 30, MBPS)]
    );
    // The chips, as the host's own service sees them.
    TPU_CHIP_TENSORCORE_UTILIZATION_RATIO = gauge(
        "tpu_chip_tensorcore_utilization_ratio", Ratio, CHIP,
        "TensorCore utilization as the host's service measures it.",
        [host_service("METRIC_TYPE_TENSORCORE", PERCENT), sdk("tensorcore_util", 13, PERCENT)]
    );
    TPU_CHIP_HBM_BANDWIDTH_UTILIZATION_RATIO = gauge(
        "tpu_chip_hbm_bandwidth_utilization_ratio", Ratio, CHIP,
        "Share of the HBM bandwidth in use, as the host's service measures it.",
        [host_service("METRIC_TYPE_HBM", PERCENT), sdk("hbm_util", 50, PERCENT)]
    );
    TPU_CHIP_ICI_UTILIZATION_RATIO = gauge(
        "tpu_chip_ici_utilization_ratio", Ratio, CHIP,
        "Utilization of the inter-chip links, as the host's service measures it.",
        [host_service("METRIC_TYPE_ICI", PERCENT)]
    );
    TPU_CHIP_SPARSECORE_UTILIZATION_RATIO = gauge(
        "tpu_chip_sparsecore_utilization_ratio", Ratio, CHIP,
        "SparseCore utilization as the host's service measures it.",
        [host_service("METRIC_TYPE_SPARSECORE", PERCENT)]
    );
    TPU_CHIP_THROTTLE_SCORE = gauge(
        "tpu_chip_throttle_score", Score, TRAY_CHIP,
        "0: not throttled; 1 to 10: throttled by 10 to 100 percent.",
        [host_service("throttling_score", Scale::ONE), sdk("tpu_throttle_score", 24, Scale::ONE)]
    );
    TPU_ICI_LINK_HEALTH_SCORE = gauge(
        "tpu_ici_link_health_score", Score, LINK,
        "0: healthy; 1 to 5: transient problems; 6 to 9: persistent minor problems; 10: unusable.",
        [host_service("link_health", Scale::ONE), sdk("ici_link_health", 24, Scale::ONE)]
    );
    TPU_TRAY_CHIP_INFO = gauge(
        "tpu_tray_chip_info", Count, TRAY_CHIP_OF,
        "1 for each tray_chip, with the chip whose entry of the host's service names it; chip is unknown where no entry or several do.",
        []
    );
    // Checkpoints and input, from Orbax and Grain. Their other series get their names by rule.
    JAX_ORBAX_WRITE_BYTES = gauge(
        "jax_orbax_write_bytes", Bytes, &[],
        "Bytes of the last checkpoint written.",
        [orbax_grain("jax_orbax_write_gbytes", GIGABYTE), sdk("orbax_write_size", 50, GIGABYTE)]
    );
    JAX_ORBAX_WRITE_BYTES_PER_SECOND = gauge(
        "jax_orbax_write_bytes_per_second", BytesPerSecond, &[],
        "Throughput of the last checkpoint write.",
        [orbax_grain("jax_orbax_write_gbytes_per_sec", GIGABYTE), sdk("orbax_write_throughput", 50, GIGABYTE)]
    );
    JAX_CHECKPOINT_WRITE_ASYNC_BLOCKING_DURATION_SECONDS = gauge(
        "jax_checkpoint_write_async_blocking_duration_seconds", Seconds, &[],
        "Time for which an asynchronous checkpoint write blocked the training.",
        [orbax_grain("jax_checkpoint_write_async_blocking_duration_secs", Scale::ONE), sdk("checkpoint_write_async_blocking_duration", 50, Scale::ONE)]
    );
    JAX_CHECKPOINT_WRITE_ASYNC_TOTAL_DURATION_SECONDS = gauge(
        "jax_checkpoint_write_async_total_duration_seconds", Seconds, &[],
        "Time of an asynchronous checkpoint write, including its background part.",
        [orbax_grain("jax_checkpoint_write_async_total_duration_secs", Scale::ONE), sdk("checkpoint_write_async_total_duration", 50, Scale::ONE)]
    );
    JAX_ORBAX_READ_TOTAL_DURATION_SECONDS = gauge(
        "jax_orbax_read_total_duration_seconds", Seconds, &[],
        "Time of a checkpoint read.",
        [orbax_grain("jax_orbax_read_total_duration_secs", Scale::ONE), sdk("orbax_read_total_duration", 50, Scale::ONE)]
    );
    JAX_ORBAX_READ_BLOCKING_DURATION_SECONDS = gauge(
        "jax_orbax_read_blocking_duration_seconds", Seconds, &[],
        "Time for which a checkpoint read blocked the training.",
        [orbax_grain("jax_orbax_read_blocking_duration_secs", Scale::ONE), sdk("orbax_read_blocking_duration", 50, Scale::ONE)]
    );
    JAX_ORBAX_WRITE_ASYNC_START_TOTAL = counter(
        "jax_orbax_write_async_start_total", Count, &[],
        "Asynchronous checkpoint writes started.",
        [orbax_grain("jax_orbax_write_async_start", Scale::ONE), sdk("orbax_write_async_start_count", 50, Scale::ONE)]
    );
    JAX_ORBAX_READ_ASYNC_START_TOTAL = counter(
        "jax_orbax_read_async_start_total", Count, &[],
        "Asynchronous checkpoint reads started.",
        [orbax_grain("jax_orbax_read_async_start", Scale::ONE), sdk("orbax_read_async_start_count", 50, Scale::ONE)]
    );
    GRAIN_PYTHON_DATA_SOURCES_BYTES_READ = gauge(
        "grain_python_data_sources_bytes_read", Bytes, &[],
        "Bytes that Grain's data sources have read.",
        [orbax_grain("grain_python_data_sources_bytes_read", Scale::ONE), sdk("pygrain_data_sources_read_size", 50, Scale::ONE)]
    );
    GRAIN_PYTHON_DATASET_SOURCE_READ_SECONDS = gauge(
        "grain_python_dataset_source_read_seconds", Seconds, &[],
        "Time of a read from a Grain data source.",
        [orbax_grain("grain_python_dataset_source_read_time_ns", NANOSECOND), sdk("pygrain_dataset_source_read_duration", 50, NANOSECOND)]
    );
    GRAIN_PYTHON_DATASET_NEXT_DURATION_SECONDS = gauge(
        "grain_python_dataset_next_duration_seconds", Seconds, &[],
        "Time for which the training waited for the next element of a Grain dataset.",
        [orbax_grain("grain_python_dataset_next_duration_ns", NANOSECOND), sdk("pygrain_dataset_next_duration", 50, NANOSECOND)]
    );
    GRAIN_PYTHON_DATASET_PREFETCH_BUFFER_READY_ELEMENTS = gauge(
        "grain_python_dataset_prefetch_buffer_ready_elements", Count, &[],
        "Elements ready in Grain's prefetch buffer.",
        [orbax_grain("grain_python_dataset_prefetch_buffer_ready_count", Scale::ONE), sdk("pygrain_dataset_prefetch_buffer_ready_count", 50, Scale::ONE)]
    );
    GRAIN_PYTHON_DATA_LOADER_ITERATOR_GET_NEXT = gauge(
        "grain_python_data_loader_iterator_get_next", Count, &[],
        "Grain's value for the iterator's next element, in Grain's unit.",
        [orbax_grain("grain_python_data_loader_iterator_get_next", Scale::ONE), sdk("pygrain_dataloader_iterator_get_next_duration", 50, Scale::ONE)]
    );
    // Where the time of jobs goes.
    TPU_JOB_GOODPUT_SECONDS = gauge(
        "tpu_job_goodput_seconds", Seconds, JOB_LEDGER,
        "Productive time of a running job since its first second, as this host sees it.",
        []
    );
    TPU_JOB_BADPUT_SECONDS = gauge(
        "tpu_job_badput_seconds", Seconds, JOB_LOSS,
        "Lost time of a running job by reason since its first second, as this host sees it.",
        []
    );
    TPU_JOB_GOODPUT_RATIO = gauge(
        "tpu_job_goodput_ratio", Ratio, JOB_LEDGER,
        "Productive share of the known time of a running job, as this host sees it; no series when less than a minute, or less than half, is known.",
        []
    );
    TPU_JOB_SCHEDULING_GOODPUT_RATIO = gauge(
        "tpu_job_scheduling_goodput_ratio", Ratio, JOB_LEDGER,
        "Share of the observed time since its first second in which a running job had all of its chips open, by its marks in which it was not down, as this host sees it.",
        []
    );
    TPU_JOB_GOODPUT_COVERAGE_RATIO = gauge(
        "tpu_job_goodput_coverage_ratio", Ratio, JOB_LEDGER,
        "Known share of the time of a running job, by its marks the share of them that is kept, as this host sees it.",
        []
    );
    TPU_JOB_DISRUPTIONS_TOTAL = counter(
        "tpu_job_disruptions_total", Count, JOB_LEDGER,
        "How often a running job started again, as this host sees it.",
        []
    );
    // The steps of jobs, by their marks.
    TPU_JOB_STEP_SECONDS = histogram(
        "tpu_job_step_seconds", Seconds, JOB_LEDGER,
        "Time of a step of a running job, from its mark to that of the next step, as this host sees it.",
        []
    );
    TPU_JOB_STEP_IDEAL_SECONDS = gauge(
        "tpu_job_step_ideal_seconds", Seconds, JOB_LEDGER,
        "Mean time of the last 1100 marked steps of a running job without outliers, as this host sees it; no series when no step takes a second.",
        []
    );
    TPU_JOB_STEP_DEVIATION_SECONDS = gauge(
        "tpu_job_step_deviation_seconds", Seconds, JOB_LEDGER,
        "Deviation of the last marked steps of a running job from tpu_job_step_ideal_seconds, as this host sees it; negative when it was larger before.",
        []
    );
    TPU_JOB_LAST_STEP = gauge(
        "tpu_job_last_step", Count, JOB_LEDGER,
        "Number of the step that a running job marked last, as this host sees it.",
        []
    );
    // The host.
    HOST_CPU_SECONDS_TOTAL = counter(
        "host_cpu_seconds_total", Seconds, &["mode"],
        "CPU time of all processors by mode.",
        []
    );
    HOST_CPUS = gauge(
        "host_cpus", Count, &[],
        "Online processors.",
        []
    );
    HOST_LOAD1 = gauge(
        "host_load1", Count, &[],
        "Load average over one minute.",
        []
    );
    HOST_MEMORY_TOTAL_BYTES = gauge(
        "host_memory_total_bytes", Bytes, &[],
        "Memory of the host.",
        []
    );
    HOST_MEMORY_AVAILABLE_BYTES = gauge(
        "host_memory_available_bytes", Bytes, &[],
        "Memory available without swapping.",
        []
    );
    HOST_SWAP_USED_BYTES = gauge(
        "host_swap_used_bytes", Bytes, &[],
        "Swap in use.",
        []
    );
    HOST_NETWORK_RECEIVE_BYTES_TOTAL = counter(
        "host_network_receive_bytes_total", Bytes, &["device"],
        "Bytes received.",
        []
    );
    HOST_NETWORK_TRANSMIT_BYTES_TOTAL = counter(
        "host_network_transmit_bytes_total", Bytes, &["device"],
        "Bytes sent.",
        []
    );
    HOST_NETWORK_RECEIVE_ERRORS_TOTAL = counter(
        "host_network_receive_errors_total", Count, &["device"],
        "Receive errors.",
        []
    );
    HOST_NETWORK_TRANSMIT_ERRORS_TOTAL = counter(
        "host_network_transmit_errors_total", Count, &["device"],
        "Transmit errors.",
        []
    );
    HOST_NETWORK_RECEIVE_DROPS_TOTAL = counter(
        "host_network_receive_drops_total", Count, &["device"],
        "Packets dropped on receipt.",
        []
    );
    HOST_NETWORK_TRANSMIT_DROPS_TOTAL = counter(
        "host_network_transmit_drops_total", Count, &["device"],
        "Packets dropped on sending.",
        []
    );
    HOST_DISK_READ_BYTES_TOTAL = counter(
        "host_disk_read_bytes_total", Bytes, &["device"],
        "Bytes read from whole disks.",
        []
    );
    HOST_DISK_WRITTEN_BYTES_TOTAL = counter(
        "host_disk_written_bytes_total", Bytes, &["device"],
        "Bytes written to whole disks.",
        []
    );
    HOST_DISK_IO_SECONDS_TOTAL = counter(
        "host_disk_io_seconds_total", Seconds, &["device"],
        "Time with I/O in flight.",
        []
    );
    HOST_DEVICES_OMITTED = gauge(
        "host_devices_omitted", Count, &["class"],
        "Devices of the class network or disk that have no series because there are more than 64.",
        []
    );
    HOST_PRESSURE_WAITING_SECONDS_TOTAL = counter(
        "host_pressure_waiting_seconds_total", Seconds, &["resource"],
        "Time in which at least one task waited for the resource (PSI, some).",
        []
    );
    HOST_PRESSURE_STALLED_SECONDS_TOTAL = counter(
        "host_pressure_stalled_seconds_total", Seconds, &["resource"],
        "Time in which all tasks waited for the resource (PSI, full).",
        []
    );
    // The control groups of the workloads, and ours where there is no workload.
    CGROUP_CPU_SECONDS_TOTAL = counter(
        "cgroup_cpu_seconds_total", Seconds, &["cgroup"],
        "CPU time of the control group.",
        []
    );
    CGROUP_CPU_THROTTLED_SECONDS_TOTAL = counter(
        "cgroup_cpu_throttled_seconds_total", Seconds, &["cgroup"],
        "Time for which the control group was throttled by its CPU quota.",
        []
    );
    CGROUP_MEMORY_USED_BYTES = gauge(
        "cgroup_memory_used_bytes", Bytes, &["cgroup"],
        "Memory charged to the control group.",
        []
    );
    CGROUP_MEMORY_LIMIT_BYTES = gauge(
        "cgroup_memory_limit_bytes", Bytes, &["cgroup"],
        "Memory limit of the control group; absent without one.",
        []
    );
    // The steps of the workloads, as traces show them.
    TPU_STEP_MEDIAN_SECONDS = gauge(
        "tpu_step_median_seconds", Seconds, &[],
        "Median step of the workload in the newest trace of it.",
        []
    );
    TPU_STEP_MEAN_SECONDS = gauge(
        "tpu_step_mean_seconds", Seconds, &[],
        "Mean time from step to step of the workload in the newest trace of it.",
        []
    );
    TPU_STEP_PACE_SECONDS = gauge(
        "tpu_step_pace_seconds", Seconds, &[],
        "Mean time of a step between the newest trace of the workload and the one before: elapsed time over step numbers.",
        []
    );
    TPU_STEP_NUMBER = gauge(
        "tpu_step_number", Count, &[],
        "Number of the last whole step of the workload in the newest trace of it.",
        []
    );
    TPU_STEP_AGE_SECONDS = gauge(
        "tpu_step_age_seconds", Seconds, &[],
        "Time since the step of tpu_step_number began.",
        []
    );
    TPU_STEP_INPUT_RATIO = gauge(
        "tpu_step_input_ratio", Ratio, &[],
        "Share of its steps for which the workload waited for input, in the newest trace of it.",
        []
    );
    TPU_STEP_BUSY_RATIO = gauge(
        "tpu_step_busy_ratio", Ratio, &[],
        "Share of the newest trace of the workload in which its TensorCores were busy.",
        []
    );
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
