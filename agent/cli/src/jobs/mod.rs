//! `tpuscope jobs …`: the jobs of this host over time. One file per subcommand.

mod configuration_diff;
mod diff;
mod list;
mod list_hosts;
pub(crate) mod row;
pub(crate) mod show;

use clap::Subcommand;
use proto::tpuscope::v1::{ShowJobReply, ShowJobRequest, jobs_client::JobsClient};
use server::protocol;

use super::CommandResult;
use crate::{client, failure::Failure, remedies};

/// The subcommands of `jobs`.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// List the jobs of this host, the newest first
    List(list::Args),
    /// Show the attempts of a job, how each ended, and its software and system
    Show(show::Args),
    /// Show what changed between two attempts
    Diff(diff::Args),
}

/// The arguments that say which job is meant.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(crate) struct JobArgs {
    /// Only jobs of this user, where several have the name
    #[arg(long, visible_alias = "user", value_name = "UID")]
    uid: Option<u32>,
    #[command(flatten)]
    agent: client::SocketArgs,
}

impl JobArgs {
    /// Of this agent, whoever the user is.
    pub(crate) fn of_agent(agent: client::SocketArgs) -> Self {
        Self { uid: None, agent }
    }

    /// The agent that is asked.
    pub(crate) fn agent(&self) -> &client::SocketArgs {
        &self.agent
    }
}

pub(super) fn run(command: &JobsCommand) -> CommandResult {
    match command {
        JobsCommand::List(args) => list::run(args),
        JobsCommand::Show(args) => show::run(args),
        JobsCommand::Diff(args) => diff::run(args),
    }
}

/// The jobs that are named so, in their order.
pub(crate) fn ask(names: &[&str], args: &JobArgs) -> Result<Vec<ShowJobReply>, Failure> {
    client::block_on(async {
        let mut jobs = JobsClient::new(args.agent.connect().await?);
        let mut shown = Vec::new();
        for name in names {
            let request =
                ShowJobRequest { peer: Some(protocol::own()), job: (*name).to_owned(), uid: args.uid };
            let reply = client::within(client::CALL_TIMEOUT, jobs.show(request)).await;
            shown.push(reply.map_err(remedies::job)?.into_inner());
        }
        Ok(shown)
    })
}
