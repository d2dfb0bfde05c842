//! The same question to many hosts: each is dialled and asked, and left or kept for more. One host never makes the others
//! wait beyond its time limit.

use std::{collections::HashMap, future::Future, path::Path, sync::Arc, time::Duration};

use cluster::{
    channel,
    dial::{DialError, DialFault, DialedHost, Dialer},
    hosts::HostAddress,
};
use futures_util::{FutureExt, future::BoxFuture};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proto::tpuscope::v1::Peer;
use serde::Serialize;
use sessions::{coordinator::HostFault, fetch::FetchError};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};
use tonic::{Status, transport::Channel};

use super::HostsArgs;
use crate::{failure::Failure, remedies};

/// The most hosts that are dialled or asked at the same time: each is a process here, or a connection.
const HOSTS_AT_A_TIME: usize = 64;

/// What a host answered.
#[derive(Debug)]
pub(crate) struct HostAnswer<T> {
    /// The host as it was given.
    pub(crate) host: HostAddress,
    /// Its answer, or why there is none.
    pub(crate) answer: Result<T, NoHostAnswer>,
}

/// Why a host has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NoHostAnswer {
    /// A stable word for programs.
    pub(crate) kind: &'static str,
    /// One line: what happened.
    pub(crate) reason: String,
    /// What to do about it; may be empty.
    pub(crate) remedy: String,
}

impl From<DialError> for NoHostAnswer {
    fn from(error: DialError) -> Self {
        let remedy = remedies::not_reached(error.fault).to_owned();
        Self { kind: kind(error.fault), reason: error.reason, remedy }
    }
}

impl NoHostAnswer {
    /// The agent refused the call.
    fn refused(status: &Status) -> Self {
        let Failure { what, remedy, .. } = remedies::refused(status);
        Self { kind: "refused", reason: what, remedy }
    }

    /// The parts of a session did not arrive.
    pub(crate) async fn not_copied(error: FetchError, dialed: DialedHost) -> Self {
        match error {
            FetchError::Call(status) if channel::ended(&status) => dialed.lost(&status).await.into(),
            error => {
                dialed.close().await;
                let kind = match &error {
                    FetchError::Call(_) => "refused",
                    FetchError::Late(_) => "no_answer",
                    FetchError::Damaged(_) | FetchError::Missing(_) => "damaged",
                    _ => "not_copied",
                };
                let Failure { what, remedy, .. } = remedies::fetch(error, Path::new("."));
                Self { kind, reason: what, remedy }
            }
        }
    }

    /// The agent did not answer the call.
    fn silent(limit: Duration) -> Self {
        let Failure { what, remedy, .. } = remedies::call_timeout(limit);
        Self { kind: "no_answer", reason: what, remedy }
    }
}

/// As it stands in JSON.
pub(super) fn kind(fault: DialFault) -> &'static str {
    match fault {
        DialFault::NotStarted => "not_started",
        DialFault::NotExecutable => "not_executable",
        DialFault::Port => "port",
        DialFault::NoTpuscope => "no_tpuscope",
        DialFault::OldTpuscope => "old_tpuscope",
        DialFault::NoAgent => "no_agent",
        DialFault::ClosedSocket => "closed_socket",
        DialFault::HostKey => "host_key",
        DialFault::Denied | DialFault::ClusterDenied => "denied",
        DialFault::Overloaded => "overloaded",
        DialFault::UnknownName | DialFault::UnknownContainer => "unknown_name",
        DialFault::Unreachable | DialFault::ClusterUnreachable | DialFault::SlurmUnreachable => "unreachable",
        DialFault::ForeignJob => "foreign_job",
        DialFault::JobNotRunning => "job_not_running",
        DialFault::NotInJob => "not_in_job",
        DialFault::Late | DialFault::Silent => "no_answer",
        DialFault::NoMagic => "other_output",
        DialFault::OtherVersion => "other_version",
        DialFault::Echo => "echo",
        DialFault::Lost => "lost",
        DialFault::Stopped => "agent_stopped",
        DialFault::NoConnection => "no_connection",
        DialFault::NotTls => "not_tls",
        DialFault::PeerValidity => "certificate_not_valid",
        DialFault::PeerAuthority | DialFault::PeerOfAuthority => "unknown_authority",
        DialFault::PeerName => "wrong_name",
        DialFault::PeerId => "wrong_id",
        DialFault::PeerRole => "wrong_role",
        DialFault::OwnValidity => "own_certificate_not_valid",
        DialFault::OwnAuthority => "own_certificate_unknown",
        DialFault::OwnRole => "own_certificate_without_role",
        DialFault::TooManyFailures => "too_many_failures",
        DialFault::Handshake => "handshake",
        DialFault::Other => "other",
    }
}

/// The hosts of the arguments, and what dials them.
///
/// # Errors
/// If the hosts are not known, or there is no way to any of them.
pub(crate) async fn dialer(args: &HostsArgs) -> Result<(Vec<HostAddress>, Arc<Dialer>), Failure> {
    let way = args.way()?;
    let hosts = args.list().await?;
    let way = way.with_step_id().await?;
    allow_open_files();
    let dialer = way.dialer(&hosts)?;
    Ok((hosts, Arc::new(dialer)))
}

/// Lets this process open as many files as it may: each host is a socket and a pipe.
fn allow_open_files() {
    // With fewer files some hosts are missing, and their errors say so.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// A host that answered, and is still connected.
#[derive(Debug)]
pub(crate) struct OpenHost<T> {
    /// Its agent. Closed when all clones of its channel are dropped, and [`DialedHost::close`] was awaited.
    pub(crate) dialed: DialedHost,
    /// What it answered.
    pub(crate) answer: T,
}

/// Asks all hosts of the arguments, and returns their answers in the order of the list.
///
/// # Errors
/// If the hosts are not known, or there is no way to any of them.
pub(crate) async fn ask_all<T, Call, Answer>(
    args: &HostsArgs,
    call: Call,
) -> Result<Vec<HostAnswer<T>>, Failure>
where
    T: Send + 'static,
    Call: Fn(Channel) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Result<T, Status>> + Send,
{
    let closing = move |dialer: Arc<Dialer>, host: HostAddress, limit| {
        let call = call.clone();
        async move {
            let OpenHost { dialed, answer } = ask(&dialer, &host, limit, call).await?;
            dialed.close().await;
            Ok(answer)
        }
        .boxed()
    };
    each(args, closing).await
}

/// As [`ask_all`], and hosts that answer stay connected.
///
/// # Errors
/// If the hosts are not known, or there is no way to any of them.
pub(crate) async fn ask_all_open<T, Call, Answer>(
    args: &HostsArgs,
    call: Call,
) -> Result<Vec<HostAnswer<OpenHost<T>>>, Failure>
where
    T: Send + 'static,
    Call: Fn(Channel) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Result<T, Status>> + Send,
{
    let staying = move |dialer: Arc<Dialer>, host: HostAddress, limit| {
        let call = call.clone();
        async move { ask(&dialer, &host, limit, call).await }.boxed()
    };
    each(args, staying).await
}

async fn each<T: Send + 'static>(
    args: &HostsArgs,
    one: impl Fn(Arc<Dialer>, HostAddress, Duration) -> BoxFuture<'static, Result<T, NoHostAnswer>>,
) -> Result<Vec<HostAnswer<T>>, Failure> {
    let (hosts, dialer) = dialer(args).await?;
    let permits = Arc::new(Semaphore::new(HOSTS_AT_A_TIME));
    let progress = progress(hosts.len());
    let mut asking = JoinSet::new();
    for (number, host) in hosts.into_iter().enumerate() {
        let asked = one(Arc::clone(&dialer), host.clone(), args.host_timeout.into());
        let permits = Arc::clone(&permits);
        asking.spawn(async move {
            // It is never closed.
            let _permit = permits.acquire().await;
            let answer = asked.await;
            (number, HostAnswer { host, answer })
        });
    }
    let mut answers = Vec::with_capacity(asking.len());
    while let Some(asked) = asking.join_next().await {
        answers.push(asked.map_err(Failure::internal)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    answers.sort_by_key(|(number, _)| *number);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

async fn ask<T, Answer>(
    dialer: &Dialer,
    host: &HostAddress,
    limit: Duration,
    call: impl FnOnce(Channel) -> Answer,
) -> Result<OpenHost<T>, NoHostAnswer>
where
    Answer: Future<Output = Result<T, Status>>,
{
    let dialed = dialer.dial(host, limit).await?;
    let answer = timeout(dialed.time_left(), call(dialed.channel())).await;
    if let Ok(Err(status)) = &answer
        && channel::ended(status)
    {
        return Err(dialed.lost(status).await.into());
    }
    match answer {
        Ok(Ok(answer)) => Ok(OpenHost { dialed, answer }),
        Ok(Err(status)) => {
            dialed.close().await;
            Err(NoHostAnswer::refused(&status))
        }
        Err(_) => {
            dialed.close().await;
            Err(NoHostAnswer::silent(limit))
        }
    }
}

/// Leaves the answer of an agent that was reached under two names to the first of them; `peer` is who answered.
pub(crate) fn each_agent_once<T>(answers: &mut [HostAnswer<T>], peer: impl Fn(&T) -> Option<&Peer>) {
    let mut agents: HashMap<String, HostAddress> = HashMap::new();
    for HostAnswer { host, answer } in answers {
        let instance = answer.as_ref().ok().and_then(&peer).map(|peer| peer.instance.clone());
        let Some(instance) = instance.filter(|instance| !instance.is_empty()) else { continue };
        let first = agents.entry(instance).or_insert_with(|| host.clone());
        if first != host {
            *answer = Err(NoHostAnswer::from(&HostFault::SameAgent(first.clone())));
        }
    }
}

/// A line on standard error while hosts are asked, where that is a terminal.
fn progress(hosts: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} hosts asked").ok();
    let bar = ProgressBar::new(hosts as u64);
    style.map_or_else(|| bar.clone(), |style| bar.clone().with_style(style))
}
