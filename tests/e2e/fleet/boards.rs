//! The boards for Grafana: their form, and an answer for each of their queries.

use std::collections::BTreeSet;

use fakes::wait::{LIMIT, wait_with};
use serde_json::{Value, json};

use super::JOB;
use crate::agent::scrape::Prometheus;

const BOARDS: [(&str, &str); 3] = [
    ("fleet.json", include_str!("../../../packaging/grafana/fleet.json")),
    ("host.json", include_str!("../../../packaging/grafana/host.json")),
    ("job.json", include_str!("../../../packaging/grafana/job.json")),
];

/// What Grafana puts in the place of each variable.
const VARIABLES: [(&str, &str); 4] =
    [("$__rate_interval", "5s"), ("$workload", JOB), ("$instance", ".*"), ("$job", ".*")];

fn boards() -> impl Iterator<Item = (&'static str, Value)> {
    BOARDS.into_iter().map(|(file, text)| (file, serde_json::from_str(text).expect("JSON")))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is no list in {value}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {value}"))
}

/// The panels that show something.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    list(board, "panels").iter().filter(|panel| panel["type"] != "row")
}

/// A query with the variables of Grafana in it, and where it stands.
struct BoardQuery {
    place: String,
    expression: String,
}

/// All queries of the boards: those of panels and those of variables.
fn queries() -> Vec<BoardQuery> {
    let mut queries = Vec::new();
    for (file, board) in boards() {
        for panel in panels(&board) {
            let place = format!("{file}, {}", text(panel, "title"));
            let of_panel = list(panel, "targets").iter().map(|target| text(target, "expr").to_owned());
            queries.extend(of_panel.map(|expression| BoardQuery { place: place.clone(), expression }));
        }
        let variables = list(&board["templating"], "list").iter();
        for variable in variables.filter(|variable| variable["type"] == "query") {
            let query = text(variable, "definition");
            let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (series, label) = inside.and_then(|inside| inside.rsplit_once(", ")).expect(query);
            let place = format!("{file}, variable {}", text(variable, "name"));
            queries.push(BoardQuery { place, expression: format!("count by ({label}) ({series})") });
        }
    }
    queries
}

/// Waits until every query has a series with a number. `advance` lets the job work on.
pub(super) fn have_values(prometheus: &Prometheus, mut advance: impl FnMut()) {
    for BoardQuery { place, expression } in queries() {
        let substituted =
            VARIABLES.iter().fold(expression, |query, (variable, value)| query.replace(variable, value));
        assert!(!substituted.contains('$'), "{place}: {substituted}");
        let what = format!("a value of {place}");
        wait_with(
            &what,
            LIMIT,
            || substituted.clone(),
            || {
                let has_value = prometheus.query(&substituted).iter().any(|(_, value)| value.is_finite());
                if !has_value {
                    advance();
                }
                has_value.then_some(())
            },
        );
    }
}

#[test]
fn boards_have_a_form_that_grafana_provisions() {
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    let mut uids = BTreeSet::new();
    for (file, board) in boards() {
        assert!(uids.insert(text(&board, "uid").to_owned()), "{file}");
        // Of Grafana 10; no number of a database.
        assert_eq!((&board["schemaVersion"], &board["id"]), (&json!(38), &Value::Null), "{file}");
        let variables = list(&board["templating"], "list");
        assert_eq!(
            (&variables[0]["name"], &variables[0]["type"]),
            (&json!("datasource"), &json!("datasource"))
        );
        for variable in &variables[1..] {
            assert_eq!(variable["datasource"], source, "{file}");
            assert_eq!(variable["query"]["query"], variable["definition"], "{file}");
        }
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in list(&board, "panels") {
            let title = format!("{file}, {}", text(panel, "title"));
            assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{title}");
            let side = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
            assert!(side("x") + side("w") <= 24, "{title}");
            for x in side("x")..side("x") + side("w") {
                for y in side("y")..side("y") + side("h") {
                    assert!(cells.insert((x, y)), "{title} overlaps another panel");
                }
            }
        }
        for panel in panels(&board) {
            let title = format!("{file}, {}", text(panel, "title"));
            assert!(text(panel, "description").ends_with('.'), "{title}");
            assert_eq!(panel["datasource"], source, "{title}");
            assert!(list(panel, "targets").iter().all(|target| target["datasource"] == source), "{title}");
            let references: BTreeSet<_> = list(panel, "targets").iter().map(|it| text(it, "refId")).collect();
            assert_eq!(references.len(), list(panel, "targets").len(), "{title}");
        }
    }
}

#[test]
fn boards_ask_only_for_series_that_exist() {
    let page = include_str!("../../../docs/metrics.md");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for BoardQuery { place, expression } in queries() {
        let words = expression.split(|c| !is_name(c));
        let named: Vec<_> = words
            .filter(|word| {
                ["tpu_", "tpuscope_", "host_", "jax_", "grain_"].iter().any(|it| word.starts_with(it))
            })
            .filter(|word| !["host_service"].contains(word))
            .collect();
        assert!(!named.is_empty() || expression.contains("ALERTS"), "{place}: {expression}");
        for name in named {
            let family = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let known = |name: &str| page.contains(&format!("| `{name}` |"));
            assert!(known(name) || family.is_some_and(known), "{place}: docs/metrics.md has no {name}");
        }
    }
}
