//! Compiles the `.proto` files with protox: no protoc is needed on the machine.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from("proto");
    let files = [
        "tensorflow/xplane.proto",
        "tensorflow/profiler_options.proto",
        "tensorflow/profiler_service.proto",
        "tpu/tpu_telemetry.proto",
        "tpu/runtime_metric_service.proto",
        "libtpu/vbar_control.proto",
        "google/rpc.proto",
        "opentelemetry/metrics_service.proto",
        "tpuscope/v1/agent.proto",
        "tpuscope/v1/child.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, [&root])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin"), descriptors.encode_to_vec())?;
    json(tonic_prost_build::configure().btree_map(".tpuscope.v1")).compile_fds(descriptors)?;
    Ok(())
}

/// What the agent answers is JSON too, on HTTP and in `--json`: one definition for both. Times are RFC 3339 there.
fn json(mut builder: tonic_prost_build::Builder) -> tonic_prost_build::Builder {
    const MESSAGES: [&str; 30] = [
        "Peer",
        "StatusReply",
        "UploadSummary",
        "WorkloadSteps",
        "DestinationCheck",
        "ChipStatus",
        "OwnerStatus",
        "JobIdentity",
        "EndpointStatus",
        "SourceStatus",
        "AbsenceStatus",
        "SamplesReply",
        "SeriesValue",
        "WindowDistribution",
        "CumulativeHistogram",
        "HistoryReply",
        "History",
        "Point",
        "RecorderStatusReply",
        "ProcessRecording",
        "RecordingCost",
        "RecordedSegment",
        "RecorderTimelineReply",
        "RecordedProcess",
        "RecordedGap",
        "JobKey",
        "GoodputReply",
        "JobGoodput",
        "GoodputLoss",
        "LostStretch",
    ];
    const TIMES: [(&str, &str); 16] = [
        ("StatusReply.at_unix_ns", "at"),
        ("StatusReply.started_unix_ns", "started"),
        ("SamplesReply.at_unix_ns", "at"),
        ("SeriesValue.at_unix_ns", "at"),
        ("Point.at_unix_ns", "at"),
        ("AbsenceStatus.since_unix_ns", "since"),
        ("CumulativeHistogram.since_unix_ns", "since"),
        ("RecordedSegment.start_unix_ns", "start"),
        ("RecordedSegment.stop_unix_ns", "stop"),
        ("RecordedGap.start_unix_ns", "start"),
        ("RecordedGap.stop_unix_ns", "stop"),
        ("GoodputReply.at_unix_ns", "at"),
        ("JobGoodput.from_unix_ns", "from"),
        ("JobGoodput.until_unix_ns", "until"),
        ("LostStretch.from_unix_ns", "from"),
        ("LostStretch.until_unix_ns", "until"),
    ];
    for message in MESSAGES {
        let derive = "#[derive(serde::Serialize)] #[serde(rename_all = \"snake_case\")]";
        builder = builder.type_attribute(format!(".tpuscope.v1.{message}"), derive);
    }
    for (field, name) in TIMES {
        let attribute = format!("#[serde(rename = \"{name}\", serialize_with = \"crate::rfc3339\")]");
        builder = builder.field_attribute(format!(".tpuscope.v1.{field}"), attribute);
    }
    let next = "#[serde(rename = \"next\", serialize_with = \"crate::optional_rfc3339\")]";
    builder = builder.field_attribute(".tpuscope.v1.ProcessRecording.next_unix_ns", next);
    builder = builder.field_attribute(".tpuscope.v1.JobGoodput.states", "#[serde(skip)]");
    let absent_if_none = "#[serde(skip_serializing_if = \"Option::is_none\")]";
    builder.field_attribute(".tpuscope.v1.SeriesValue.histogram", absent_if_none)
}
