//! Every message that tpuscope sends or receives, generated from `proto/proto`.
//!
//! The foreign packages keep their names and field numbers exactly: they are the wire contract with
//! workloads, XProf, libtpu and collectors. Nothing here may hold logic.

// Generated code carries the comments of the .proto files, and no more.
#![allow(missing_docs, clippy::all, unreachable_pub)]
#![forbid(unsafe_code)]

/// `tensorflow`: the profiler service of a workload.
pub mod tensorflow {
    tonic::include_proto!("tensorflow");
    /// `tensorflow.profiler`: XSpace, the trace container.
    pub mod profiler {
        tonic::include_proto!("tensorflow.profiler");
    }
}

/// `tpu_telemetry`: core states.
pub mod tpu_telemetry {
    tonic::include_proto!("tpu_telemetry");
}

/// `tpu.monitoring.runtime`: the runtime metric service of a workload.
pub mod tpu {
    pub mod monitoring {
        pub mod runtime {
            tonic::include_proto!("tpu.monitoring.runtime");
        }
    }
}

/// `libtpu.tpunetd`: the host's VBARControl service.
pub mod libtpu {
    pub mod tpunetd {
        tonic::include_proto!("libtpu.tpunetd");
    }
}

/// `google.rpc`: the details of an error of gRPC.
pub mod google {
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// `opentelemetry.proto`: the metrics of OTLP, and the service of a collector that takes them.
pub mod opentelemetry {
    pub mod proto {
        pub mod collector {
            pub mod metrics {
                pub mod v1 {
                    tonic::include_proto!("opentelemetry.proto.collector.metrics.v1");
                }
            }
        }
        pub mod common {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.common.v1");
            }
        }
        pub mod metrics {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.metrics.v1");
            }
        }
        pub mod resource {
            pub mod v1 {
                tonic::include_proto!("opentelemetry.proto.resource.v1");
            }
        }
    }
}

/// `tpuscope.v1`: our own API.
pub mod tpuscope {
    pub mod v1 {
        tonic::include_proto!("tpuscope.v1");
    }
}

/// The file descriptor set of all packages, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// A time that may be unknown, as JSON shows it.
fn optional_rfc3339<S: serde::Serializer>(unix_ns: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    match unix_ns {
        Some(unix_ns) => rfc3339(unix_ns, serializer),
        None => serializer.serialize_none(),
    }
}

/// A time as JSON shows it.
fn rfc3339<S: serde::Serializer>(unix_ns: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    match jiff::Timestamp::from_nanosecond(i128::from(*unix_ns)) {
        Ok(at) => serializer.collect_str(&at),
        Err(_) => serializer.serialize_none(),
    }
}
