//! The status of many hosts: one table of all chips, those that are not in order first, a row with the reason for each
//! host that does not answer, the steps of the workloads, and what the agents say of their hosts.

use std::fmt::Write;

use proto::tpuscope::v1::{ChipStatus, StatusReply, StatusRequest, host_client::HostClient};
use serde::Serialize;
use server::protocol;

use super::{
    page::{chip_owners, last_read, usual_cells},
    steps,
};
use crate::{
    CommandResult, client,
    hosts::{HostAnswer, HostsArgs, NoHostAnswer, ask_all, each_agent_once, report},
    output::{self, TextTable},
};

type Answers = [HostAnswer<StatusReply>];

pub(super) fn run(args: &HostsArgs, json: bool) -> CommandResult {
    let mut answers = client::block_on(ask_all(args, |channel| async move {
        let request = StatusRequest { peer: Some(protocol::own()) };
        Ok(HostClient::new(channel).status(request).await?.into_inner())
    }))?;
    each_agent_once(&mut answers, |status| status.peer.as_ref());
    if json {
        output::json(&HostsStatus::of(&answers))?;
    } else {
        output::print(&page(&answers))?;
    }
    Ok(report::exit(&answers))
}

/// As JSON.
#[derive(Serialize)]
struct HostsStatus<'a> {
    hosts: Vec<StatusOfHost<'a>>,
    /// How many have no status.
    missing: usize,
}

#[derive(Serialize)]
struct StatusOfHost<'a> {
    host: String,
    status: Option<&'a StatusReply>,
    missing: Option<&'a NoHostAnswer>,
}

impl<'a> HostsStatus<'a> {
    fn of(answers: &'a Answers) -> Self {
        let of_host = |host: &'a HostAnswer<StatusReply>| StatusOfHost {
            host: host.host.to_string(),
            status: host.answer.as_ref().ok(),
            missing: host.answer.as_ref().err(),
        };
        Self { hosts: answers.iter().map(of_host).collect(), missing: report::missing_count(answers) }
    }
}

/// Where a row stands: the least in order first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Fault,
    Absent,
    Unknown,
    NoAnswer,
    InOrder,
}

impl Rank {
    fn of(chip: &ChipStatus) -> Self {
        match chip.state.as_str() {
            "fault" => Self::Fault,
            "absent" => Self::Absent,
            "ok" => Self::InOrder,
            _ => Self::Unknown,
        }
    }
}

/// Host, chip, type, state, duty cycle, HBM, age, owners, and what is to say about it.
type Row = [String; 9];

fn page(answers: &Answers) -> String {
    let mut rows: Vec<(Rank, Row)> = answers.iter().flat_map(rows).collect();
    let mut text = summary(answers);
    // The order of the list stays among equals.
    rows.sort_by_key(|(rank, _)| *rank);
    let mut table = TextTable::new(["HOST", "CHIP", "TYPE", "STATE", "DUTY", "HBM", "AGE", "OWNERS", "NOTE"]);
    for (_, row) in rows {
        table.row(row);
    }
    text.push_str(&table.text());
    let steps = answers.iter().flat_map(|host| {
        let workloads = host.answer.as_ref().map(|status| &status.steps[..]).unwrap_or_default();
        workloads.iter().map(|workload| (host.host.to_string(), workload))
    });
    text.push_str(&steps::section_of_hosts(steps));
    text + &report::remarks(answers) + &notes(answers)
}

/// What the agents say of their hosts, each note once with its hosts.
fn notes(answers: &Answers) -> String {
    let of_host = |host: &'_ HostAnswer<StatusReply>| {
        let notes = host.answer.as_ref().map(|status| status.notes.clone()).unwrap_or_default();
        notes.into_iter().map(|note| (host.host.to_string(), note)).collect::<Vec<_>>()
    };
    match report::by_text(answers.iter().flat_map(of_host)) {
        text if text.is_empty() => text,
        text => format!("\nnotes{text}"),
    }
}

fn summary(answers: &Answers) -> String {
    let chips =
        || answers.iter().filter_map(|host| host.answer.as_ref().ok()).flat_map(|status| &status.chips);
    let mut text = format!("{}; {}", report::asked(answers), report::count(chips().count(), "chip"));
    for (rank, state) in [(Rank::Fault, "fault"), (Rank::Absent, "absent"), (Rank::Unknown, "unknown")] {
        let of_state = chips().filter(|chip| Rank::of(chip) == rank).count();
        if of_state > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, ", {of_state} {state}");
        }
    }
    text + "\n\n"
}

fn rows(host: &HostAnswer<StatusReply>) -> Vec<(Rank, Row)> {
    let name = host.host.to_string();
    let status = match &host.answer {
        Ok(status) => status,
        Err(missing) => return vec![(Rank::NoAnswer, without_chip(name, "no answer", &missing.reason))],
    };
    let mut rows: Vec<_> = status.chips.iter().map(|chip| (Rank::of(chip), of_chip(&name, chip))).collect();
    if !status.chips_unknown.is_empty() {
        rows.insert(0, (Rank::Unknown, without_chip(name, "unknown", &status.chips_unknown)));
    } else if rows.is_empty() {
        rows.push((Rank::InOrder, without_chip(name, "", "no TPU chips on this host")));
    }
    rows
}

fn of_chip(host: &str, chip: &ChipStatus) -> Row {
    let [index, name, state, duty, hbm] = usual_cells(chip);
    let (age, owners) = (last_read(chip), chip_owners(chip));
    [host.to_owned(), index, name, state, duty, hbm, age, owners, chip.faults.join("; ")]
}

fn without_chip(host: String, state: &str, note: &str) -> Row {
    let [chip, name, duty, hbm, age, owners] = [const { String::new() }; 6];
    [host, chip, name, state.to_owned(), duty, hbm, age, owners, note.to_owned()]
}

#[cfg(test)]
mod tests {
    use proto::tpuscope::v1::{Peer, WorkloadSteps};

    use super::*;

    fn chip(index: u32, state: &str, faults: &[&str]) -> ChipStatus {
        let faults = faults.iter().map(ToString::to_string).collect();
        ChipStatus { index, name: "v6e".into(), state: state.into(), faults, ..Default::default() }
    }

    fn answered(host: &str, chips: Vec<ChipStatus>) -> HostAnswer<StatusReply> {
        HostAnswer { host: host.parse().unwrap(), answer: Ok(StatusReply { chips, ..Default::default() }) }
    }

    fn missing(host: &str, reason: &str, remedy: &str) -> HostAnswer<StatusReply> {
        let missing = NoHostAnswer { kind: "lost", reason: reason.into(), remedy: remedy.into() };
        HostAnswer { host: host.parse().unwrap(), answer: Err(missing) }
    }

    #[test]
    fn what_is_not_in_order_comes_first() {
        let unknown = StatusReply { chips_unknown: "cannot list".into(), ..Default::default() };
        let answers = [
            answered("a", vec![chip(0, "ok", &[]), chip(1, "absent", &["node is absent"])]),
            missing("b", "ssh: gone", "run it again"),
            answered("c", vec![chip(0, "unknown", &[]), chip(1, "fault", &["no driver", "lost"])]),
            answered("d", Vec::new()),
            missing("e", "ssh: gone\u{1b}", "run it again"),
            HostAnswer { host: "f".parse().unwrap(), answer: Ok(unknown) },
        ];
        let page = page(&answers);
        let wanted = "\
6 hosts, 2 without an answer; 4 chips, 1 fault, 1 absent, 1 unknown

HOST  CHIP  TYPE  STATE      DUTY  HBM  AGE  OWNERS  NOTE
c     1     v6e   fault      -     -    -    -       no driver; lost
a     1     v6e   absent     -     -    -    -       node is absent
c     0     v6e   unknown    -     -    -    -       -
f     -     -     unknown    -     -    -    -       cannot list
b     -     -     no answer  -     -    -    -       ssh: gone
e     -     -     no answer  -     -    -    -       ssh: gone\\u{1b}
a     0     v6e   ok         -     -    -    free    -
d     -     -     -          -     -    -    -       no TPU chips on this host

- b, e: run it again
";
        assert_eq!(page, wanted);
    }

    #[test]
    fn the_steps_of_all_hosts_are_shown() {
        let steps = |host: &str, steps: WorkloadSteps| {
            let status =
                StatusReply { steps: vec![steps], chips: vec![chip(0, "ok", &[])], ..StatusReply::default() };
            HostAnswer { host: host.parse().unwrap(), answer: Ok(status) }
        };
        let known =
            WorkloadSteps { workload: "train".into(), last_step: Some(7), ..WorkloadSteps::default() };
        let unknown = WorkloadSteps { workload: "train".into(), missing: "no trace".into(), ..known.clone() };
        let page = page(&[steps("a", known), steps("b", unknown), missing("c", "ssh: gone", "run it again")]);
        assert!(page.contains("\n\nWORKLOAD  HOST  STEP"), "{page}");
        assert!(page.contains("\ntrain     a     7 "), "{page}");
        assert!(page.ends_with("\n\n- b: steps of train: no trace\n\n- c: run it again\n"), "{page}");
    }

    #[test]
    fn what_agents_note_is_said_once_with_their_hosts() {
        let noted = |host: &str, notes: &[&str]| {
            let notes = notes.iter().map(ToString::to_string).collect();
            let status = StatusReply { notes, chips: vec![chip(0, "ok", &[])], ..Default::default() };
            HostAnswer { host: host.parse().unwrap(), answer: Ok(status) }
        };
        let page = page(&[noted("a", &["no procfs"]), noted("b", &["old cert", "no procfs"])]);
        assert!(page.ends_with("\n\nnotes\n- a, b: no procfs\n- b: old cert\n"), "{page}");
    }

    #[test]
    fn an_agent_with_two_names_is_listed_once() {
        let peer = |instance: &str| Some(Peer { instance: instance.to_owned(), ..Peer::default() });
        let mut answers: Vec<HostAnswer<StatusReply>> =
            [("a", "x"), ("b", "y"), ("alias", "x"), ("old", ""), ("older", "")]
                .map(|(host, instance)| {
                    let status = StatusReply { peer: peer(instance), ..StatusReply::default() };
                    HostAnswer { host: host.parse().unwrap(), answer: Ok(status) }
                })
                .into();
        each_agent_once(&mut answers, |status| status.peer.as_ref());
        let kinds = answers.iter().map(|host| host.answer.as_ref().err().map(|missing| missing.kind));
        assert_eq!(kinds.collect::<Vec<_>>(), [None, None, Some("same_agent"), None, None]);
        assert_eq!(answers[2].answer.as_ref().unwrap_err().reason, "it has the same agent as a");
    }

    #[test]
    fn one_of_each_is_said_in_the_singular() {
        let one = page(&[answered("a", vec![chip(0, "ok", &[])])]);
        assert!(one.starts_with("1 host; 1 chip\n\n"), "{one}");
    }
}
