//! `tpuscope recorder status`.

use std::fmt::Write;

use indicatif::HumanBytes;
use model::time::Timestamp;
use proto::tpuscope::v1::{
    ProcessRecording, RecorderStatusReply, RecorderStatusRequest, RecordingCost,
    recorder_client::RecorderClient,
};
use server::protocol;
use sessions::recorder::Strategy;
use xprof::wording::counted;

use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, one_line},
};

/// What each page says: it ends training loops.
const WARNING: &str = "a program that traces itself fails if it starts a trace while a window is open, and always with drain and ring, whose \
     session stays open: see docs/recorder.md";

/// Arguments of `recorder status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the job with this [KIND:]ID, such as train or slurm:12 [default: all jobs that you own]
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/recorder-status.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let request =
        RecorderStatusRequest { peer: Some(protocol::own()), job: args.job.clone().unwrap_or_default() };
    let reply = client::block_on(async {
        let mut recorder = RecorderClient::new(args.agent.connect().await?);
        client::within(client::CALL_TIMEOUT, recorder.status(request)).await
    })?
    .into_inner();
    if args.json {
        output::json(&reply)?;
    } else {
        output::print(&page(&reply))?;
    }
    Ok(Exit::Ok)
}

/// The status as text.
pub(super) fn page(status: &RecorderStatusReply) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "recorder.mode {}: windows of {} s each {} s; kept: {} of at most {}, windows for {} s, drains for {} s",
        one_line(&status.mode),
        status.window_seconds,
        status.every_seconds,
        HumanBytes(status.bytes),
        HumanBytes(status.max_bytes),
        status.keep_seconds,
        status.keep_continuous_seconds
    );
    if status.processes.is_empty() {
        text.push_str("no workload process of yours was found on this host\n");
    }
    for process in &status.processes {
        let _ = write_process(&mut text, process);
    }
    if status.processes.iter().any(|process| process.recorded) {
        let _ = writeln!(text, "warning: {WARNING}");
    }
    text
}

fn write_process(text: &mut String, process: &ProcessRecording) -> std::fmt::Result {
    let job = process.job.as_ref().map_or("", |job| job.id.as_str());
    let name = format!("pid {} ({}), job {job}", process.pid, process.command);
    if !process.recorded {
        writeln!(text, "{}: not recorded: {}", one_line(&name), one_line(&process.reason))?;
        if process.open {
            writeln!(
                text,
                "  its profiler is still in use: a trace that the program starts now fails; ask again"
            )?;
        }
    } else if is_refused(process) {
        let (strategy, why) = (one_line(&process.strategy), one_line(&process.last_failure));
        writeln!(text, "{}: {strategy}, not recorded now: {why}", one_line(&name))?;
    } else {
        let next = process.next_unix_ns.map(|next| format!("; next window at {}", Timestamp(next)));
        let window = process.window_seconds.map(|seconds| format!(", windows of {seconds} s"));
        let (next, window) = (next.unwrap_or_default(), window.unwrap_or_default());
        writeln!(text, "{}: recorded, {}{window}{next}", one_line(&name), one_line(&process.strategy))?;
    }
    if let Some(every) = process.drain_seconds {
        writeln!(text, "  read each {every} s; tracer levels: {}", one_line(&process.levels))?;
    }
    if !process.window_reason.is_empty() {
        writeln!(text, "  window {}", one_line(&process.window_reason))?;
    }
    if let Some(last) = &process.last {
        let steps = last.median_step_seconds.map_or_else(String::new, |median| {
            format!(", {} with a median of {:.3} ms", counted(last.steps, "step"), median * 1e3)
        });
        writeln!(
            text,
            "  kept: {}, {}; the last from {} to {}: {}{steps}",
            counted(process.segments, "window"),
            HumanBytes(process.bytes),
            Timestamp(last.start_unix_ns),
            Timestamp(last.stop_unix_ns),
            HumanBytes(last.bytes)
        )?;
    }
    if let Some(cost) = &process.cost {
        writeln!(text, "  {}", cost_text(cost))?;
    } else if process.segments > 0 {
        writeln!(text, "  cost: not known, it needs numbered steps in two windows or more")?;
    }
    if !process.last_failure.is_empty() && !is_refused(process) {
        writeln!(text, "  the last window was not recorded: {}", one_line(&process.last_failure))?;
    }
    Ok(())
}

/// Whether continuous recording is wanted, and does not start.
fn is_refused(process: &ProcessRecording) -> bool {
    let is_continuous = process.recorded && process.strategy != Strategy::Periodic.as_str();
    is_continuous && !process.open && !process.last_failure.is_empty()
}

fn cost_text(cost: &RecordingCost) -> String {
    format!(
        "cost, measured in {}: a step takes {:.3} ms inside and {:.3} ms between them ({:+.1} %), which is {:+.2} % of the whole time",
        counted(cost.windows, "window"),
        cost.inside_step_seconds * 1e3,
        cost.between_step_seconds * 1e3,
        cost.slowdown_ratio * 100.0,
        cost.share_ratio * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_that_does_not_start_is_said_with_the_reason() {
        let process = ProcessRecording {
            pid: 7,
            command: "python".into(),
            recorded: true,
            strategy: "drain".into(),
            last_failure: "the agent is process 1".into(),
            ..ProcessRecording::default()
        };
        let of = |process: ProcessRecording| {
            page(&RecorderStatusReply { processes: vec![process], ..RecorderStatusReply::default() })
        };
        let refused = of(process.clone());
        let said = "pid 7 (python), job : drain, not recorded now: the agent is process 1\n";
        assert!(refused.contains(said) && !refused.contains("last window"), "{refused}");
        for recorded in [
            ProcessRecording { open: true, ..process.clone() },
            ProcessRecording { strategy: "periodic".into(), ..process },
        ] {
            let page = of(recorded);
            assert!(
                page.contains(": recorded, ") && page.contains("window was not recorded: the agent"),
                "{page}"
            );
        }
    }
}
