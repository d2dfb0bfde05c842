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
        "tpuscope/v1/agent.proto",
        "tpuscope/v1/child.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, [&root])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
