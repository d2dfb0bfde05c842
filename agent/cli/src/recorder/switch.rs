//! `tpuscope recorder on` and `tpuscope recorder off`.

use ::sessions::recorder::Strategy;
use proto::tpuscope::v1::{RecorderStatusReply, SetRecorderRequest, recorder_client::RecorderClient};
use server::protocol;

use super::status;
use crate::{CommandResult, client, exit::Exit, output};

/// Arguments of `recorder on`.
#[derive(Debug, clap::Args)]
pub struct OnArgs {
    /// How to record: periodic, drain or ring [default: the setting recorder.strategy]
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    which: Which,
}

/// Arguments of `recorder off`.
#[derive(Debug, clap::Args)]
pub struct OffArgs {
    #[command(flatten)]
    which: Which,
}

/// Which jobs, and how to answer.
#[derive(Debug, clap::Args)]
struct Which {
    /// Only the job with this [KIND:]ID, such as train or slurm:12 [default: all jobs that you may switch]
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/recorder-status.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn on(args: &OnArgs) -> CommandResult {
    set(&args.which, true, args.strategy)
}

pub(super) fn off(args: &OffArgs) -> CommandResult {
    set(&args.which, false, None)
}

fn set(which: &Which, on: bool, strategy: Option<Strategy>) -> CommandResult {
    let request = SetRecorderRequest {
        peer: Some(protocol::own()),
        on,
        strategy: strategy.map(|strategy| strategy.to_string()).unwrap_or_default(),
        job: which.job.clone().unwrap_or_default(),
    };
    let reply: RecorderStatusReply = client::block_on(async {
        let mut recorder = RecorderClient::new(which.agent.connect().await?);
        client::within(client::CALL_TIMEOUT, recorder.set(request)).await
    })?
    .into_inner();
    if which.json {
        output::json(&reply)?;
    } else {
        output::print(&status::page(&reply))?;
    }
    Ok(Exit::Ok)
}
