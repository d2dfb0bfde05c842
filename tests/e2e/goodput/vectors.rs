//! Every golden vector through the command line.

use serde_json::Value;

use super::{assert_same, differences, file, golden, run, vector};

fn number(query: &Value, key: &str) -> String {
    query[key].as_f64().unwrap().to_string()
}

#[test]
fn queries_answered_in_order_by_one_calculator() {
    let folder = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    for path in golden("goodput") {
        let vector = vector(&path);
        let log = file(folder.path(), "log.jsonl", vector.lines.join("\n"));
        // A case that does not reuse the calculator begins a new run.
        let mut runs: Vec<Vec<usize>> = Vec::new();
        for (at, case) in vector.cases.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if case["query"]["reuse_calculator"] == true => run.push(at),
                _ => runs.push(vec![at]),
            }
        }
        for cases in runs {
            let queries: Vec<&Value> = cases.iter().map(|at| &vector.cases[*at]["query"]).collect();
            let queries = file(folder.path(), "queries.json", serde_json::to_string(&queries).unwrap());
            let answers = run(&["--from-log", &log, "--job", &vector.job, "--queries", &queries]).json();
            assert_eq!(answers.as_array().unwrap().len(), cases.len());
            for (answer, at) in answers.as_array().unwrap().iter().zip(cases) {
                let name = format!("{} case {at}", vector.name);
                differences(&name, &vector.cases[at]["output"], answer, &mut out);
            }
        }
    }
    assert_same(&out);
}

#[test]
fn single_questions_from_lines_and_from_an_array() {
    let folder = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    for (at, path) in golden("goodput").iter().enumerate() {
        let vector = vector(path);
        // Foreign lines, blank ones and both forms of the file make no difference.
        let text = if at % 2 == 0 {
            format!("{{\"textPayload\":\"hello\"}}\n\n{}\n", vector.lines.join("\r\n"))
        } else {
            format!("\n[\n{}\n]\n", vector.lines.join(",\n"))
        };
        let log = file(folder.path(), "log.json", text);
        for case in vector.cases.iter().filter(|case| case["query"]["reuse_calculator"] != true) {
            let query = &case["query"];
            if query.get("ideal_step_time").is_some() || query["kind"] == "exclusions" {
                continue;
            }
            let mut args = vec!["--from-log", &log, "--job", &vector.job, "--json"];
            let now = number(query, "now");
            let (start, end);
            args.extend(["--now", &now, "--compat", "0.2.3"]);
            if query["kind"] == "interval" {
                (start, end) = (number(query, "start"), number(query, "end"));
                args.extend(["--start", &start, "--end", &end]);
            }
            differences(&format!("{} {query}", vector.name), &case["output"], &run(&args).json(), &mut out);
        }
    }
    assert_same(&out);
}

#[test]
fn proxies_from_slots() {
    let folder = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    for path in golden("proxy") {
        let vector: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let trace = file(folder.path(), "trace.json", vector["trace"].to_string());
        let answer = run(&["--from-slots", &trace, "--json"]).json();
        differences(&path.display().to_string(), &vector["expected"], &answer, &mut out);
        assert!(run(&["--from-slots", &trace]).stdout.starts_with("proxy goodput "));
    }
    assert_same(&out);
}

#[test]
fn a_bar_of_where_the_time_went_widest_first() {
    let folder = tempfile::tempdir().unwrap();
    let vector = vector(&golden("goodput")[4]);
    assert_eq!(vector.name, "05_one_disruption_lost_steps");
    let log = file(folder.path(), "log", vector.lines.join("\n"));
    let args = ["--from-log", &log, "--job", &vector.job, "--now", "2026-03-01T00:07:03Z"];
    let text = run(&args).stdout;
    assert!(
        text.starts_with("one-lost (as ml-goodput-measurement 0.2.3): goodput 48.4 % of 6m 53s\n"),
        "{text}"
    );
    let shares: Vec<f64> = text
        .lines()
        .filter(|line| line.contains('█') || line.contains('▏'))
        .map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(shares.len() >= 6 && shares.is_sorted_by(|a, b| a >= b), "{text}");
    assert!(text.contains("look at: outages"), "{text}");
    let strict = run(&[&args[..], &["--strict", "--dashboard-names"]].concat()).stdout;
    assert!(
        strict.starts_with("one-lost (strict)") && strict.contains("INFRASTRUCTURE_RECOVERY "),
        "{strict}"
    );
}

#[test]
fn strict_answers_name_their_repairs() {
    let folder = tempfile::tempdir().unwrap();
    for path in golden("goodput") {
        let vector = vector(&path);
        let log = file(folder.path(), "log", vector.lines.join("\n"));
        let queries: Vec<&Value> = vector.cases.iter().map(|case| &case["query"]).collect();
        let queries = file(folder.path(), "queries.json", serde_json::to_string(&queries).unwrap());
        let args = ["--from-log", &log, "--job", &vector.job, "--strict", "--queries", &queries];
        for answer in run(&args).json().as_array().unwrap() {
            assert_eq!(answer["ledger"], "strict");
            assert!(answer["repairs"].is_array());
            if let Some(goodput) = answer["goodput_percent"].as_f64() {
                assert!((0.0..=100.0).contains(&goodput), "{}: {goodput}", vector.name);
            }
        }
        let repairs = run(&[&args[..4], &["--strict", "--now", "1773014440"]].concat()).stdout;
        if vector.name.starts_with("16_") {
            assert!(
                repairs.contains("the outage before a restart at the next step is not productive"),
                "{repairs}"
            );
        }
    }
}
