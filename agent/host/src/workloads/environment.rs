//! The variables of an owner that may be read, and the ports that they name.
//!
//! Must never keep a variable that is not on the list: environments hold secrets.

use std::collections::{BTreeMap, BTreeSet};

use model::secrets::without_secrets;

/// The allowed variables of one process.
pub(super) type Environment = BTreeMap<String, String>;

/// A workload that sets this to `1` is ignored.
pub(super) const IGNORE: &str = "TPUSCOPE_IGNORE";
/// A workload that sets this to `0` is not recorded.
pub const RECORD: &str = "TPUSCOPE_RECORD";
/// Defined by tpuscope: the port of this process's profiler.
pub(super) const PROFILER_PORT: &str = "TPUSCOPE_PROFILER_PORT";

/// Maximum length of a value; longer ones are dropped. Host lists of large jobs are the longest that are used.
const LONGEST_VALUE: usize = 64 * 1024;

/// The allow-list, beside [`CONFIGURATION`].
const ALLOWED: &[&str] = &[
    // Ours
    IGNORE,
    PROFILER_PORT,
    RECORD,
    "TPUSCOPE_JOB_ATTEMPT",
    "TPUSCOPE_JOB_HOSTS",
    "TPUSCOPE_JOB_ID",
    "TPUSCOPE_JOB_NAME",
    "TPUSCOPE_JOB_RANK",
    // libtpu
    "CLOUD_TPU_TASK_ID",
    "LIBTPU_PATH",
    "TPU_LIBRARY_PATH",
    "TPU_MESH_CONTROLLER_ADDRESS",
    "TPU_MESH_CONTROLLER_PORT",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
    "TPU_RUNTIME_METRICS_ADDRESS",
    "TPU_RUNTIME_METRICS_PORTS",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
    "VBAR_CONTROL_SERVICE_URL",
    // JAX, PyTorch, Orbax, Grain
    "COORDINATOR_ADDRESS",
    "COORDINATOR_BIND_ADDRESS",
    "COORDINATOR_PORT",
    "ENABLE_ORBAX_PROMETHEUS_TELEMETRY",
    "ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_PROFILER_PORT",
    "JAX_PROFILER_SERVER_PORT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ORBAX_PROMETHEUS_PORT",
    "PYGRAIN_PROMETHEUS_PORT",
    // Slurm
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_USER",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    // Kubernetes
    "HOSTNAME",
    "JOBSET_NAME",
    "JOBSET_NAMESPACE",
    "JOBSET_RESTART_ATTEMPT",
    "JOB_COMPLETION_INDEX",
    "JOB_INDEX",
    "JOB_NAME",
    "POD_NAME",
    "POD_NAMESPACE",
    "REPLICATED_JOB_NAME",
];

/// The variables that configure a program. Words in them that look like secrets are not kept.
pub const CONFIGURATION: &[&str] = &[
    "ENABLE_PJRT_COMPATIBILITY",
    "JAX_CHECK_TRACER_LEAKS",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
    "JAX_DEBUG_INFS",
    "JAX_DEBUG_NANS",
    "JAX_DEFAULT_DTYPE_BITS",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_DISABLE_JIT",
    "JAX_DISABLE_MOST_OPTIMIZATIONS",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_ENABLE_PGLE",
    "JAX_ENABLE_X64",
    "JAX_EXPLAIN_CACHE_MISSES",
    "JAX_LOG_COMPILES",
    "JAX_NUMPY_DTYPE_PROMOTION",
    "JAX_NUMPY_RANK_PROMOTION",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "JAX_THREEFRY_PARTITIONABLE",
    "JAX_TRACEBACK_FILTERING",
    "JAX_TRANSFER_GUARD",
    "JAX_USE_SHARDY_PARTITIONER",
    "LIBTPU_INIT_ARGS",
    "PJRT_DEVICE",
    "TPU_ACCELERATOR_TYPE",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_HOST_BOUNDS",
    "TPU_MEGACORE",
    "TPU_MIN_LOG_LEVEL",
    "TPU_PREMAPPED_BUFFER_SIZE",
    "TPU_PREMAPPED_BUFFER_TRANSFER_THRESHOLD_BYTES",
    "TPU_PROCESS_BOUNDS",
    "TPU_SKIP_MDS_QUERY",
    "TPU_STDERR_LOG_LEVEL",
    "TPU_TOPOLOGY",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_USE_BF16",
    "XLA_USE_SPMD",
];

/// Whether a variable may be kept.
fn allowed(name: &str) -> bool {
    // Megascale has had many names for its ports over the years, and none of them may be contacted.
    let megascale = || {
        name.starts_with("MEGASCALE_")
            && ["_PORT", "_PORTS", "_ADDRESS", "_ADDRESSES", "_ID", "_SLICES"]
                .iter()
                .any(|end| name.ends_with(end))
    };
    ALLOWED.contains(&name) || CONFIGURATION.contains(&name) || megascale()
}

/// The allowed variables of `/proc/<pid>/environ`.
pub(super) fn parse(environ: &[u8]) -> Environment {
    let mut kept = Environment::new();
    for entry in environ.split(|byte| *byte == 0) {
        let Some(equals) = entry.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (&entry[..equals], &entry[equals + 1..]);
        let Ok(name) = std::str::from_utf8(name) else { continue };
        // The first of two equal names wins, as getenv has it.
        if allowed(name) && value.len() <= LONGEST_VALUE && !kept.contains_key(name) {
            let value = String::from_utf8_lossy(value);
            let value =
                if CONFIGURATION.contains(&name) { without_secrets(&value) } else { value.into_owned() };
            kept.insert(name.to_owned(), value);
        }
    }
    kept
}

/// Whether the process asked to be ignored.
pub(super) fn ignored(environment: &Environment) -> bool {
    environment.get(IGNORE).is_some_and(|value| value == "1")
}

/// Whether a variable is set to true, as Orbax and Grain read it.
pub(super) fn is_true(environment: &Environment, name: &str) -> bool {
    environment.get(name).is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1"))
}

/// Variables whose ports belong to the workload's own traffic.
const PRIVATE: &[&str] = &[
    "COORDINATOR_ADDRESS",
    "COORDINATOR_BIND_ADDRESS",
    "COORDINATOR_PORT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TPU_MESH_CONTROLLER_ADDRESS",
    "TPU_MESH_CONTROLLER_PORT",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
];

/// The ports that this process's own variables forbid, each with the variable's name.
pub(super) fn private_ports(environment: &Environment) -> BTreeMap<u16, String> {
    let mut ports = BTreeMap::new();
    for (name, value) in environment {
        if PRIVATE.contains(&name.as_str()) || name.starts_with("MEGASCALE_") {
            ports.extend(ports_in(value).into_iter().map(|port| (port, name.clone())));
        }
    }
    ports
}

/// Every port in a list of ports, addresses or URLs.
pub(super) fn ports_in(text: &str) -> BTreeSet<u16> {
    let items = text.split(|c: char| matches!(c, ',' | ';' | '/') || c.is_whitespace());
    items.filter_map(|item| item.rsplit(':').next()?.parse().ok()).filter(|port| *port != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_list_is_kept() {
        let text = b"AWS_SECRET_ACCESS_KEY=x\0SLURM_JOB_ID=12\0SLURM_JWT=secret\0MEGASCALE_PORT=8080\0MEGASCALE_SECRET=x\0\
            SLURM_JOB_ID=13\0noequals\0=x\0MASTER_PORT=1\0";
        let kept = parse(text);
        let names: Vec<&str> = kept.keys().map(String::as_str).collect();
        assert_eq!(names, ["MASTER_PORT", "MEGASCALE_PORT", "SLURM_JOB_ID"]);
        assert_eq!(kept["SLURM_JOB_ID"], "12");
    }

    #[test]
    fn a_secret_in_a_flag_is_not_kept() {
        let text = b"XLA_FLAGS=--xla_a=1 --api_key=hunter2\0JAX_COMPILATION_CACHE_DIR=/home/hunter2/cache\0\
            LIBTPU_INIT_ARGS=--xla_b=AKIAIOSFODNN7EXAMPLE --xla_c=true\0JAX_API_TOKEN=hunter2\0";
        let kept = parse(text);
        let shown = format!("{kept:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("AKIA"), "{shown}");
        assert!(kept["XLA_FLAGS"].starts_with("--xla_a=1 --api_key=("), "{shown}");
        assert!(kept["LIBTPU_INIT_ARGS"].ends_with(" --xla_c=true"), "{shown}");
        assert_eq!(kept.len(), 2);
    }

    #[test]
    fn ports_are_found_in_every_spelling() {
        let found: Vec<u16> =
            ports_in("localhost:8476,[::1]:8477, http://h:8478/x;8479 local 0").into_iter().collect();
        assert_eq!(found, [8476, 8477, 8478, 8479]);
        assert!(ports_in("").is_empty());
    }

    #[test]
    fn the_lists_agree() {
        assert!(PRIVATE.iter().all(|name| allowed(name)));
    }
}
