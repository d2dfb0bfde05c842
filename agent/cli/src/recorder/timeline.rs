//! `tpuscope recorder timeline`.

use std::fmt::Write;

use indicatif::HumanBytes;
use model::time::Timestamp;
use proto::tpuscope::v1::{
    RecordedProcess, RecorderTimelineReply, RecorderTimelineRequest, recorder_client::RecorderClient,
};
use server::protocol;
use xprof::wording::counted;

use crate::{
    CommandResult, client,
    exit::Exit,
    output::{self, one_line},
};

/// Arguments of `recorder timeline`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only the job with this [KIND:]ID, such as train or slurm:12 [default: all jobs that you own]
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/recorder-timeline.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let request = RecorderTimelineRequest {
        peer: Some(protocol::own()),
        job: args.job.clone().unwrap_or_default(),
        from_unix_ns: None,
        to_unix_ns: None,
    };
    let reply = client::block_on(async {
        let mut recorder = RecorderClient::new(args.agent.connect().await?);
        client::within(client::CALL_TIMEOUT, recorder.timeline(request)).await
    })?
    .into_inner();
    if args.json {
        output::json(&reply)?;
    } else {
        output::print(&page(&reply))?;
    }
    Ok(Exit::Ok)
}

fn page(reply: &RecorderTimelineReply) -> String {
    let mut text = String::new();
    if reply.processes.is_empty() {
        text.push_str("nothing is kept; `tpuscope recorder status` says what is recorded\n");
    }
    for process in &reply.processes {
        // Writing to a String cannot fail.
        let _ = write_process(&mut text, process);
    }
    text
}

fn write_process(text: &mut String, process: &RecordedProcess) -> std::fmt::Result {
    let name = format!("pid {} ({}), job {}", process.pid, process.command, process.job);
    writeln!(
        text,
        "{}: {}, {}",
        one_line(&name),
        counted(process.segments.len(), "window"),
        HumanBytes(process.bytes)
    )?;
    let windows = process.segments.iter().map(|segment| {
        let steps = segment.first_step.zip(segment.last_step);
        let steps = steps.map_or_else(String::new, |(first, last)| format!(", steps {first} to {last}"));
        let line = format!(
            "  {} to {}: {}, {}{steps}",
            Timestamp(segment.start_unix_ns),
            Timestamp(segment.stop_unix_ns),
            HumanBytes(segment.bytes),
            counted(segment.events, "event")
        );
        (segment.start_unix_ns, line)
    });
    let gaps = process.gaps.iter().map(|gap| {
        let missing = match gap.windows {
            0 => "not recorded".to_owned(),
            windows => format!("{} missing", counted(windows, "window")),
        };
        let line = format!(
            "  {} to {}: {missing}: {}",
            Timestamp(gap.start_unix_ns),
            Timestamp(gap.stop_unix_ns),
            one_line(&gap.reason)
        );
        (gap.start_unix_ns, line)
    });
    let mut lines: Vec<(i64, String)> = windows.chain(gaps).collect();
    lines.sort();
    lines.iter().try_for_each(|(_, line)| writeln!(text, "{line}"))
}
