//! The sessions in the stores of many agents: one table, oldest first, and a row with the reason for each host that does not
//! answer.

use proto::tpuscope::v1::{ListSessionsReply, ListSessionsRequest, sessions_client::SessionsClient};
use server::protocol;

use super::list::{HEADS, cells, narrow, value};
use crate::{
    CommandResult, client,
    hosts::{HostAnswer, HostsArgs, ask_all, each_agent_once, report},
    output::{self, TextTable},
};

type Answers = [HostAnswer<ListSessionsReply>];

pub(super) fn run(args: &HostsArgs, limit: u32, json: bool) -> CommandResult {
    let mut answers = client::block_on(ask_all(args, move |channel| async move {
        let request = ListSessionsRequest { peer: Some(protocol::own()), limit };
        Ok(SessionsClient::new(channel).list(request).await?.into_inner())
    }))?;
    each_agent_once(&mut answers, |reply| reply.peer.as_ref());
    if json {
        output::json(&as_json(&answers))?;
    } else {
        output::print(&page(&answers))?;
    }
    Ok(report::exit(&answers))
}

fn as_json(answers: &Answers) -> serde_json::Value {
    let host = |host: &HostAnswer<ListSessionsReply>| {
        let sessions =
            host.answer.as_ref().ok().map(|reply| reply.sessions.iter().map(value).collect::<Vec<_>>());
        serde_json::json!({ "host": host.host.to_string(), "sessions": sessions, "missing": host.answer.as_ref().err() })
    };
    serde_json::json!({
        "hosts": answers.iter().map(host).collect::<Vec<_>>(),
        "missing": report::missing_count(answers),
    })
}

fn page(answers: &Answers) -> String {
    let mut rows: Vec<(Option<i64>, [String; 10])> = Vec::new();
    for host in answers {
        let name = host.host.to_string();
        match &host.answer {
            Ok(reply) => {
                rows.extend(
                    reply
                        .sessions
                        .iter()
                        .map(|session| (session.created_unix_ns, with_host(&name, narrow(cells(session))))),
                );
            }
            Err(missing) => {
                let mut cells = [const { String::new() }; 9];
                cells[7] = format!("no answer: {}", missing.reason);
                rows.push((None, with_host(&name, cells)));
            }
        }
    }
    // The order of the list stays among equals.
    rows.sort_by_key(|(created, _)| *created);
    let [a, b, c, d, e, f, g, h, i] = HEADS;
    let mut table = TextTable::new(["HOST", a, b, c, d, e, f, g, h, i]);
    for (_, row) in rows {
        table.row(row);
    }
    format!("{}\n\n{}{}", report::asked(answers), table.text(), report::remarks(answers))
}

fn with_host(host: &str, cells: [String; 9]) -> [String; 10] {
    let [a, b, c, d, e, f, g, h, i] = cells;
    [host.to_owned(), a, b, c, d, e, f, g, h, i]
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{Peer, SessionSummary};

    use super::*;
    use crate::hosts::NoHostAnswer;

    #[test]
    fn the_sessions_of_all_hosts_are_one_table() {
        let session = |id: &str, created: i64| SessionSummary {
            id: id.to_owned(),
            created_unix_ns: Some(created * 1_000_000_000),
            ..SessionSummary::default()
        };
        let missing =
            NoHostAnswer { kind: "lost", reason: "ssh: gone".into(), remedy: "run it again".into() };
        let reply = |instance: &str, sessions: Vec<SessionSummary>| ListSessionsReply {
            peer: Some(Peer { instance: instance.into(), ..Peer::default() }),
            sessions,
        };
        let mut answers = [
            HostAnswer {
                host: "a".parse().unwrap(),
                answer: Ok(reply("1", vec![session("one", 10), session("two", 30)])),
            },
            HostAnswer { host: "b".parse().unwrap(), answer: Ok(reply("2", vec![session("one", 20)])) },
            HostAnswer { host: "c".parse().unwrap(), answer: Err(missing) },
        ];
        let page = page(&answers);
        let firsts: Vec<Vec<&str>> =
            page.lines().skip(2).map(|line| line.split_whitespace().take(2).collect()).collect();
        assert!(page.starts_with("3 hosts, 1 without an answer\n\nHOST  SESSION  CREATED (UTC)"), "{page}");
        assert_eq!(firsts[1..5], [["c", "-"], ["a", "one"], ["b", "one"], ["a", "two"]], "{page}");
        assert!(page.contains("no answer: ssh: gone") && page.ends_with("\n- c: run it again\n"), "{page}");
        assert_eq!(as_json(&answers)["hosts"][1]["sessions"][0]["session"], "one");
        // The second name of the first agent.
        answers[1].answer = Ok(reply("1", vec![session("one", 10)]));
        each_agent_once(&mut answers, |reply| reply.peer.as_ref());
        assert_eq!(as_json(&answers)["hosts"][1]["missing"]["kind"], "same_agent");
    }
}
