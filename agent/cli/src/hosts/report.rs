//! What commands say of hosts without an answer, as text and as JSON.

use std::fmt::Write;

use cluster::hosts::folded;

use super::HostAnswer;
use crate::{exit::Exit, output::one_line};

/// The most hosts that a remark names.
const MOST_NAMES: usize = 8;

/// How many hosts have no answer.
pub(crate) fn missing_count<T>(answers: &[HostAnswer<T>]) -> usize {
    answers.iter().filter(|host| host.answer.is_err()).count()
}

/// The exit code: incomplete if a host has no answer.
pub(crate) fn exit<T>(answers: &[HostAnswer<T>]) -> Exit {
    if missing_count(answers) == 0 { Exit::Ok } else { Exit::Partial }
}

/// How many hosts were asked: `4 hosts, 1 without an answer`.
pub(crate) fn asked<T>(answers: &[HostAnswer<T>]) -> String {
    match missing_count(answers) {
        0 => count(answers.len(), "host"),
        missing => format!("{}, {missing} without an answer", count(answers.len(), "host")),
    }
}

/// `1 host`, `2 hosts`.
pub(crate) fn count(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}

/// What to do about hosts without an answer, after an empty line: each remedy once, with its hosts. Empty if there is
/// nothing to do.
pub(crate) fn remarks<T>(answers: &[HostAnswer<T>]) -> String {
    by_text(answers.iter().filter_map(|host| {
        let missing = host.answer.as_ref().err()?;
        Some((host.host.to_string(), missing.remedy.clone()))
    }))
}

/// Texts about hosts, after an empty line: each once, with its hosts. Empty texts are left out.
pub(crate) fn by_text(about: impl Iterator<Item = (String, String)>) -> String {
    let mut page = String::new();
    for (text, hosts) in each_once(about.filter(|(_, text)| !text.is_empty())) {
        let gap = if page.is_empty() { "\n" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{gap}- {}: {}", one_line(&named(&hosts)), one_line(&text));
    }
    page
}

/// Each text once, with its hosts, in the order of the first ones.
pub(crate) fn each_once<T: PartialEq>(about: impl Iterator<Item = (String, T)>) -> Vec<(T, Vec<String>)> {
    let mut texts: Vec<(T, Vec<String>)> = Vec::new();
    for (host, text) in about {
        match texts.iter_mut().find(|(known, _)| *known == text) {
            Some((_, hosts)) => hosts.push(host),
            None => texts.push((text, vec![host])),
        }
    }
    texts
}

/// The names of hosts, as a list that is not long.
pub(crate) fn named(hosts: &[String]) -> String {
    let entries = folded(hosts.iter().map(String::as_str));
    let shown = entries[..entries.len().min(MOST_NAMES)].join(", ");
    match entries.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        _ => format!("{shown}, … ({})", count(hosts.len(), "host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::NoHostAnswer;

    fn missing(host: &str, remedy: &str) -> HostAnswer<()> {
        let missing = NoHostAnswer { kind: "lost", reason: "gone".into(), remedy: remedy.into() };
        HostAnswer { host: host.parse().unwrap(), answer: Err(missing) }
    }

    #[test]
    fn each_remedy_is_said_once() {
        let answered = HostAnswer { host: "z".parse().unwrap(), answer: Ok(()) };
        let answers = [
            missing("a", "run it again"),
            answered,
            missing("b", ""),
            missing("c", "x\n"),
            missing("d", "run it again"),
        ];
        assert_eq!(remarks(&answers), "\n- a, d: run it again\n- c: x\\n\n");
        assert_eq!(asked(&answers), "5 hosts, 4 without an answer");
        assert_eq!((asked(&answers[1..2]), remarks(&answers[1..2])), ("1 host".to_owned(), String::new()));
        assert_eq!((exit(&answers), exit(&answers[1..2])), (Exit::Partial, Exit::Ok));
    }

    #[test]
    fn a_remark_names_few_hosts() {
        let hosts: Vec<String> = (0..12).map(|number| format!("h{number}")).collect();
        assert_eq!(named(&hosts), "h[0-11]");
        let hosts: Vec<String> = ('a'..'m').map(String::from).collect();
        assert_eq!(named(&hosts[..2]), "a, b");
        assert_eq!(named(&hosts), "a, b, c, d, e, f, g, h, … (12 hosts)");
    }
}
