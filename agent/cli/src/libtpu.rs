//! `tpuscope libtpu`: inspects a libtpu library in a child process. Also the command of that child.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use model::unit;
use proto::tpuscope::v1::LibraryInfo;
use sampling::sources::libtpu::{
    child,
    child_process::{ChildCommand, ChildFailure, ChildProcess},
    trust::{LoadRights, trust},
};
use serde_json::json;

use super::{
    CommandResult,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    remedies,
};

/// Arguments of `libtpu`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a libtpu library in a sandboxed process and print its version and its functions
    Probe(ProbeArgs),
}

#[derive(Debug, clap::Args)]
struct ProbeArgs {
    /// Path of a libtpu.so, or of a folder that contains libtpu/libtpu.so (site-packages, an unpacked wheel)
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Time limit of each of the two steps, from 1s to 10m
    #[arg(long, default_value = "30s", value_parser = step_timeout)]
    timeout: Duration,
}

fn step_timeout(text: &str) -> Result<Duration, String> {
    let wait = text.parse::<unit::Duration>().map_err(|error| error.to_string())?.get();
    let bounds = Duration::from_secs(1)..=Duration::from_secs(600);
    if bounds.contains(&wait) { Ok(wait) } else { Err("expected a duration from 1s to 10m".to_owned()) }
}

/// Arguments of the hidden child.
#[derive(Debug, clap::Args)]
pub struct ChildArgs {
    /// The agent's process id
    parent: u32,
}

/// Runs the child, which only the agent starts.
pub(super) fn run_child(args: &ChildArgs) -> CommandResult {
    child::run(args.parent).map(|()| Exit::Ok).map_err(Failure::internal)
}

pub(super) fn run(args: &Args) -> CommandResult {
    let Command::Probe(args) = &args.command;
    let path = library_in(&args.path);
    let trusted = trust(&path, LoadRights::of_this_process(true))
        .map_err(|error| remedies::untrusted_library(&path, &error))?;
    let launch = ChildCommand { user: trusted.user, ..ChildCommand::default() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format_args!("cannot start: {error}")))?;
    let probed = runtime.block_on(probe(&launch, &trusted.path, args.timeout));
    let mut found = probed.map_err(|failure| remedies::probe(&path, &failure))?;
    found.info.path = path.to_string_lossy().into_owned();
    print(&found, args.json)?;
    match found.sdk_failure {
        None if found.info.pjrt.is_none() && !found.info.sdk_export && found.info.fault.is_empty() => {
            Err(remedies::not_a_libtpu(&path))
        }
        None => Ok(Exit::Ok),
        Some(failure) => Err(remedies::partial_probe(&path, &failure)),
    }
}

/// The library in a folder, or the path itself.
fn library_in(path: &Path) -> PathBuf {
    let inside = ["libtpu/libtpu.so", "libtpu.so", "torch_xla/lib/libtpu.so"].map(|inner| path.join(inner));
    inside.into_iter().find(|library| library.is_file()).unwrap_or_else(|| path.to_owned())
}

struct ProbedLibrary {
    info: LibraryInfo,
    /// Why the SDK could not be loaded. The other fields are valid.
    sdk_failure: Option<ChildFailure>,
}

async fn probe(
    launch: &ChildCommand,
    path: &Path,
    deadline: Duration,
) -> Result<ProbedLibrary, ChildFailure> {
    let mut child = ChildProcess::start(launch)?;
    let info = child.probe(path, deadline).await?;
    if !info.sdk_export {
        return Ok(ProbedLibrary { info, sdk_failure: None });
    }
    let found = match child.load(path, deadline).await {
        Ok(info) => ProbedLibrary { info, sdk_failure: None },
        Err(failure) => ProbedLibrary { info, sdk_failure: Some(failure) },
    };
    child.kill().await;
    Ok(found)
}

fn print(found: &ProbedLibrary, as_json: bool) -> Result<(), Failure> {
    if as_json { output::print(&format!("{}\n", as_value(found))) } else { output::print(&page(&found.info)) }
}

fn as_value(found: &ProbedLibrary) -> serde_json::Value {
    let info = &found.info;
    let pjrt = info.pjrt.as_ref().map(|pjrt| {
        let extensions: Vec<_> =
            pjrt.extensions.iter().map(|one| json!({ "type": one.r#type, "size": one.size })).collect();
        json!({
            "version": format!("{}.{}", pjrt.major, pjrt.minor),
            "api_size": pjrt.api_size,
            "extensions": extensions,
            "profiler_api_size": (pjrt.profiler_api_size > 0).then_some(pjrt.profiler_api_size),
        })
    });
    let mut faults: Vec<String> = Vec::new();
    faults.extend((!info.fault.is_empty()).then(|| info.fault.clone()));
    faults.extend(found.sdk_failure.as_ref().map(ToString::to_string));
    json!({
        "path": info.path,
        "version": (!info.version.is_empty()).then_some(&info.version),
        "sdk": { "exported": info.sdk_export, "slots": (info.sdk_slots > 0).then_some(info.sdk_slots), "metrics": info.metric_names },
        "pjrt": pjrt,
        "legacy_profiler": info.legacy_profiler,
        "faults": faults,
    })
}

fn page(info: &LibraryInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<17} {}", one_line(value));
    };
    line("path", &info.path);
    line(
        "version",
        if info.version.is_empty() { "unknown (no wheel metadata next to it)" } else { &info.version },
    );
    match info.sdk_slots {
        0 if info.sdk_export => line("SDK", "exported, not read"),
        0 => line("SDK", "none"),
        slots => line("SDK", &format!("{slots} functions")),
    }
    match &info.pjrt {
        Some(pjrt) => {
            line("PJRT", &format!("{}.{}, table of {} bytes", pjrt.major, pjrt.minor, pjrt.api_size));
            let chain: Vec<_> =
                pjrt.extensions.iter().map(|one| format!("{}:{}", one.r#type, one.size)).collect();
            line("PJRT extensions", &chain.join(" "));
            match pjrt.profiler_api_size {
                0 => line("PJRT profiler", "none"),
                size => line("PJRT profiler", &format!("table of {size} bytes")),
            }
        }
        None => line("PJRT", "none"),
    }
    line("legacy profiler", if info.legacy_profiler { "yes" } else { "no" });
    if !info.fault.is_empty() {
        line("fault", &info.fault);
    }
    line("metrics", &info.metric_names.len().to_string());
    for name in &info.metric_names {
        let _ = writeln!(text, "  {}", one_line(name));
    }
    text
}
