//! A session of which the agents of many hosts have a part each: who has one, what it is called, and who has none.
//!
//! The agents stay connected until their parts are read or copied. Must never take one agent for two hosts, or let two hosts
//! of one name have the same parts.

use std::{collections::HashMap, fmt::Write, path::PathBuf, sync::Arc};

use cluster::{dial::DialedHost, hosts::HostAddress};
use futures_util::future::join_all;
use proto::tpuscope::v1::{ShowSessionReply, ShowSessionRequest, sessions_client::SessionsClient};
use serde::Serializer;
use server::protocol;
use sessions::{coordinator::HostFault, host_labels};
use tonic::Code;
use xprof::{
    analysis::MissingPart,
    session::{HostName, SessionName},
};

use super::{
    agent_files,
    joined::JoinedSessions,
    load::{self, Loaded},
};
use crate::{
    exit::Exit,
    failure::Failure,
    hosts::{HostsArgs, NoHostAnswer, OpenHost, ask_all_open},
    output::one_line,
    remedies,
    runtime_thread::RuntimeThread,
};

/// The part of a session that the agent of one host has.
#[derive(Debug)]
pub(super) struct AgentPart {
    pub(super) host: HostAddress,
    pub(super) dialed: DialedHost,
    pub(super) reply: ShowSessionReply,
    /// What the host is called by its agent, and in the whole session; none where the manifest is not that of one host.
    pub(super) names: Option<HostNames>,
}

impl AgentPart {
    /// The id of the capture, and when its session was created. `None` where the manifest has no id.
    fn capture(&self) -> Option<(&str, i64)> {
        let manifest = self.reply.manifest.as_ref()?;
        Some((manifest.id.as_deref()?, manifest.created_unix_ns.unwrap_or(0)))
    }
}

/// The names of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostNames {
    pub(super) own: HostName,
    pub(super) label: HostName,
}

/// The parts of all hosts.
#[derive(Debug)]
pub(super) struct AgentsParts {
    pub(super) found: Vec<AgentPart>,
    pub(super) absent: Vec<AbsentHost>,
}

/// A host without a part.
#[derive(Debug, serde::Serialize)]
pub(super) struct AbsentHost {
    /// As it was given.
    #[serde(serialize_with = "as_text")]
    pub(super) host: HostAddress,
    #[serde(flatten)]
    pub(super) why: NoHostAnswer,
}

fn as_text<S: Serializer>(host: &HostAddress, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(host)
}

/// Asks all hosts for their parts of the session `name`.
///
/// # Errors
/// If the hosts are not known, or none of them has a part.
pub(super) async fn find(args: &HostsArgs, name: &SessionName) -> Result<AgentsParts, Failure> {
    let id = name.to_string();
    let answers = ask_all_open(args, move |channel| {
        let request = ShowSessionRequest { peer: Some(protocol::own()), id: id.clone() };
        async move {
            match SessionsClient::new(channel).show(request).await {
                Ok(reply) => Ok(Some(reply.into_inner())),
                Err(status) if status.code() == Code::NotFound => Ok(None),
                Err(status) => Err(status),
            }
        }
    })
    .await?;
    let mut parts = AgentsParts { found: Vec::new(), absent: Vec::new() };
    let mut agents: HashMap<String, HostAddress> = HashMap::new();
    for answer in answers {
        let host = answer.host;
        match answer.answer {
            Err(why) => parts.absent.push(AbsentHost { host, why }),
            Ok(OpenHost { dialed, answer: None }) => {
                dialed.close().await;
                parts.absent.push(AbsentHost { host, why: no_session(name) });
            }
            Ok(OpenHost { dialed, answer: Some(reply) }) => {
                let instance = reply.peer.as_ref().map(|peer| peer.instance.clone()).unwrap_or_default();
                if let Some(first) = agents.get(&instance).filter(|_| !instance.is_empty()) {
                    let why = NoHostAnswer::from(&HostFault::SameAgent(first.clone()));
                    parts.absent.push(AbsentHost { host, why });
                    dialed.close().await;
                    continue;
                }
                agents.insert(instance, host.clone());
                parts.found.push(AgentPart { host, dialed, reply, names: None });
            }
        }
    }
    if parts.found.is_empty() {
        return Err(no_host_has(name, &parts.absent));
    }
    parts.keep_one_capture(name).await;
    parts.name_hosts();
    Ok(parts)
}

fn other_capture(name: &SessionName) -> NoHostAnswer {
    NoHostAnswer {
        kind: "other_capture",
        reason: format!("its session {name} is of another capture than those of the other hosts"),
        remedy: format!("`tpuscope sessions show {name}` with the hosts of that capture alone reads it"),
    }
}

/// Which of these captures is meant: that of the most hosts, and of as many the newest. `None` where no two hosts have
/// a session of one capture: then each was captured by itself.
fn chosen_capture(captures: &[Option<(&str, i64)>]) -> Option<String> {
    let mut known: HashMap<&str, (usize, i64)> = HashMap::new();
    for (id, created) in captures.iter().flatten() {
        let (hosts, newest) = known.entry(id).or_default();
        (*hosts, *newest) = (*hosts + 1, (*newest).max(*created));
    }
    let chosen = known.into_iter().max_by_key(|(id, (hosts, newest))| (*hosts, *newest, *id));
    chosen.filter(|(_, (hosts, _))| *hosts > 1).map(|(id, _)| id.to_owned())
}

fn no_session(name: &SessionName) -> NoHostAnswer {
    NoHostAnswer {
        kind: NO_SESSION,
        reason: format!("its agent has no session {name} that you may read"),
        remedy: "`tpuscope sessions list` with the same hosts lists what each has".to_owned(),
    }
}

/// The agent's answer makes no sense, or is not what can be read with those of others.
pub(super) fn bad_answer(reason: String) -> NoHostAnswer {
    NoHostAnswer {
        kind: BAD_ANSWER,
        reason,
        remedy: "`tpuscope sessions show` on that host shows its session".to_owned(),
    }
}

/// As they stand in JSON.
const NO_SESSION: &str = "no_session";
const BAD_ANSWER: &str = "bad_answer";

pub(super) fn no_host_has(name: &SessionName, absent: &[AbsentHost]) -> Failure {
    let any = |kinds: &[&str]| absent.iter().any(|host| kinds.contains(&host.why.kind));
    // That no host has it is known only where all have answered.
    let exit = if absent.iter().all(|host| host.why.kind == NO_SESSION) {
        Exit::NotFound
    } else if any(&[BAD_ANSWER, "damaged"]) {
        Exit::BadInput
    } else if absent.iter().all(|host| [NO_SESSION, "refused"].contains(&host.why.kind)) {
        Exit::Permission
    } else {
        Exit::Unreachable
    };
    let hosts: Vec<(&HostAddress, &NoHostAnswer)> =
        absent.iter().map(|host| (&host.host, &host.why)).collect();
    remedies::no_host_has(exit, name, &hosts)
}

impl AgentsParts {
    /// A host has one session of a name, and a capture that found the name taken there left it as it was: what is not of
    /// the capture that is meant is no part of it.
    async fn keep_one_capture(&mut self, name: &SessionName) {
        let captures: Vec<_> = self.found.iter().map(AgentPart::capture).collect();
        let Some(chosen) = chosen_capture(&captures) else { return };
        let is_of_another = |part: &mut AgentPart| part.capture().is_some_and(|(id, _)| id != chosen);
        let others: Vec<AgentPart> = self.found.extract_if(.., is_of_another).collect();
        for AgentPart { host, dialed, .. } in others {
            dialed.close().await;
            self.absent.push(AbsentHost { host, why: other_capture(name) });
        }
    }

    /// Names the hosts as a capture over several hosts does.
    fn name_hosts(&mut self) {
        let own = |part: &AgentPart| -> Option<HostName> {
            match &part.reply.manifest.as_ref()?.hosts[..] {
                [host] => host.host.parse().ok(),
                _ => None,
            }
        };
        let named: Vec<Option<HostName>> = self.found.iter().map(own).collect();
        let known = self.found.iter().zip(&named).filter_map(|(part, own)| Some((&part.host, own.as_ref()?)));
        let mut labels = host_labels::allot(known).into_iter();
        for (part, own) in self.found.iter_mut().zip(named) {
            part.names = own.and_then(|own| Some(HostNames { own, label: labels.next()? }));
        }
    }

    /// What is said of the hosts without a part, and what to do about it.
    pub(super) fn remarks(absent: &[AbsentHost]) -> String {
        let mut text = String::new();
        for AbsentHost { host, why } in absent.iter().filter(|host| !host.why.remedy.is_empty()) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "- {}: {}", host, one_line(&why.remedy));
        }
        text
    }
}

/// The connections to the agents whose parts are read. They end with it.
#[derive(Debug)]
pub(super) struct OpenAgents {
    dialed: Vec<DialedHost>,
    runtime: Arc<RuntimeThread>,
}

impl Drop for OpenAgents {
    fn drop(&mut self) {
        // A command that is killed may leave a step of Slurm behind, so each is told to end.
        self.runtime.block_on(join_all(self.dialed.drain(..).map(DialedHost::close)));
    }
}

/// The parts of all hosts as one session that is read. The connections must outlive it.
///
/// # Errors
/// Those of [`find`], or if an agent's answer makes no sense.
pub(super) fn open(
    args: &HostsArgs,
    name: &SessionName,
) -> Result<(OpenAgents, JoinedSessions, Vec<AbsentHost>), Failure> {
    let runtime = Arc::new(RuntimeThread::start().map_err(Failure::internal)?);
    let AgentsParts { found, mut absent } = runtime.block_on(find(args, name))?;
    let mut agents = OpenAgents { dialed: Vec::new(), runtime: Arc::clone(&runtime) };
    let mut sources: Vec<Loaded> = Vec::new();
    for AgentPart { host, dialed, reply, names } in found {
        let remote = agent_files::remote(name, dialed.channel(), Arc::clone(&runtime));
        agents.dialed.push(dialed);
        let mut loaded = match load::of_reply(name, remote, reply) {
            Ok(loaded) => loaded,
            Err(failure) => {
                absent.push(AbsentHost { host, why: bad_answer(failure.what) });
                continue;
            }
        };
        if let Some(names) = names {
            rename(&mut loaded, &names);
        }
        loaded.place = PathBuf::from(format!("{name} on {host}"));
        loaded.host = Some(host);
        sources.push(loaded);
    }
    let missing =
        |host: &AbsentHost| MissingPart { file: host.host.to_string(), why: host.why.reason.clone() };
    let missing = absent.iter().map(missing).collect();
    Ok((agents, JoinedSessions::of_agents(sources, missing), absent))
}

/// Calls the host of a session as the whole session does.
fn rename(loaded: &mut Loaded, names: &HostNames) {
    let label = names.label.to_string();
    for part in &mut loaded.session.parts {
        part.host.clone_from(&label);
    }
    for host in loaded.session.manifest.iter_mut().flat_map(|manifest| &mut manifest.hosts) {
        host.host.clone_from(&label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capture_of_the_most_hosts_is_meant_and_of_as_many_the_newest() {
        let (a, b, c) = (Some(("a", 5)), Some(("b", 7)), Some(("c", 9)));
        for (captures, chosen) in [
            (&[][..], None),
            (&[None, a], None),
            (&[a, b, c], None),
            (&[a, a], Some("a")),
            (&[a, None, b, a, c], Some("a")),
            (&[a, b, a, b], Some("b")),
            (&[c, a, a, a, c], Some("a")),
        ] {
            assert_eq!(chosen_capture(captures).as_deref(), chosen, "{captures:?}");
        }
    }
}
