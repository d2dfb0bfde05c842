//! `tpuscope run`: registers a command as a job, and becomes it.
//!
//! The command takes the place of this process: it has its pid, its parent, its process group, its terminal and its signals,
//! and its exit code is nobody else's to pass on. So nothing of tpuscope is left that could end, stop or outlive it.
//! Must never keep the command from its start: without an agent, or with one that does not answer, it starts unregistered
//! after [`REGISTRATION_TIMEOUT`] at most.

use std::{
    ffi::OsString, os::unix::process::CommandExt, process::Command, sync::mpsc, thread, time::Duration,
};

use jobs::name::RunId;
use model::untrusted::{LABEL, clean};
use nix::unistd::{Uid, User};
use proto::tpuscope::v1::{JobKey, RegisterAttemptReply, RegisterAttemptRequest, jobs_client::JobsClient};
use server::protocol;

use super::{CommandResult, client, failure::Failure, output, remedies};

/// How long the agent may take.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(1);

/// The variables by which discovery knows the job of a process.
const ID: &str = "TPUSCOPE_JOB_ID";
const NAME: &str = "TPUSCOPE_JOB_NAME";
const ATTEMPT: &str = "TPUSCOPE_JOB_ATTEMPT";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the job, which is its id too: each start is its next attempt [default: the id in TPUSCOPE_JOB_ID, else a
    /// random one, and the name in TPUSCOPE_JOB_NAME]
    #[arg(long, value_name = "NAME")]
    name: Option<RunId>,
    /// Do not say on standard error that the job could not be registered
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<OsString>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let [program, arguments @ ..] = &args.command[..] else {
        return Err(Failure::internal("the parser let no command through"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let say = |line: &str| {
        if !args.quiet {
            output::print_error(line);
        }
    };
    // Inside of another run the job is that one's.
    if is_inside_of_a_run() {
        if let Some(name) = &args.name {
            say(&format!(
                "the job is that of the `tpuscope run` around it: --name {} registers nothing",
                name.as_str()
            ));
        }
    } else {
        let id = args.name.clone().or_else(|| id_of_environment(say));
        let id = id.unwrap_or_else(|| RunId::random(fastrand::u32(..)));
        let name = args.name.as_ref().map(RunId::to_string).or_else(|| std::env::var(NAME).ok());
        command.env(ID, id.as_str()).env_remove(ATTEMPT);
        if let Some(name) = &name {
            command.env(NAME, name);
        }
        match register(args, &id, name.unwrap_or_default()) {
            Ok(reply) => {
                command.env(ATTEMPT, reply.attempt.to_string());
            }
            Err(failure) => say(&format!("the job {} starts unregistered: {}", id.as_str(), failure.what)),
        }
    }
    Err(remedies::not_executed(program, &command.exec()))
}

fn is_inside_of_a_run() -> bool {
    [ID, ATTEMPT].iter().all(|name| std::env::var_os(name).is_some())
}

/// The id that the environment gives the job, such as one that is the same on all its hosts. `say` is told of one that is
/// none.
fn id_of_environment(say: impl Fn(&str)) -> Option<RunId> {
    let value = std::env::var_os(ID).filter(|value| !value.is_empty())?;
    let value = value.to_string_lossy();
    let id = value.parse();
    if let Err(error) = &id {
        say(&format!("{ID} is `{}`, and the job has a random id: {error}", clean(&value, LABEL)));
    }
    id.ok()
}

/// Asks the agent on a thread of its own: a file system or a name service that hangs must not keep the command.
fn register(args: &Args, id: &RunId, name: String) -> Result<RegisterAttemptReply, Failure> {
    let uid = Uid::current();
    let (agent, id) = (args.agent.clone(), id.clone());
    let (tell, told) = mpsc::channel();
    let ask = move || {
        let user = User::from_uid(uid).ok().flatten().map(|user| user.name);
        let key = JobKey { kind: "run".into(), uid: uid.as_raw(), id: id.to_string(), ..JobKey::default() };
        let request = RegisterAttemptRequest {
            peer: Some(protocol::own()),
            key: Some(key),
            name,
            ends_with_caller: true,
            user: user.unwrap_or_default(),
            ..RegisterAttemptRequest::default()
        };
        let reply = client::block_on(async {
            let mut jobs = JobsClient::new(agent.connect().await?);
            client::within(REGISTRATION_TIMEOUT, jobs.register_attempt(request)).await
        });
        // Nobody waits for a late answer.
        let _ = tell.send(reply.map(tonic::Response::into_inner));
    };
    thread::Builder::new().name("register".to_owned()).spawn(ask).map_err(Failure::internal)?;
    told.recv_timeout(REGISTRATION_TIMEOUT)
        .unwrap_or_else(|_| Err(remedies::call_timeout(REGISTRATION_TIMEOUT)))
}
