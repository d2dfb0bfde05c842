//! The output of commands in the documentation is what they print.

use std::{fs, path::Path};

use fakes::{command::run, harness::workspace, running_agent::Home};

/// What stands for any number of lines.
const ANY: &str = "…";

/// A command and the lines below it in a code block.
#[derive(Debug)]
struct Example {
    command: String,
    output: Vec<String>,
}

/// The examples of a page whose command begins with `command`.
fn examples(page: &str, command: &str) -> Vec<Example> {
    let text = fs::read_to_string(workspace().join(page)).unwrap();
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks
        .filter_map(|block| {
            let mut lines = block.lines().skip(1).map(str::to_owned);
            let command = lines.next()?.strip_prefix("$ ")?.strip_prefix(command)?.trim().to_owned();
            Some(Example { command, output: lines.collect() })
        })
        .collect()
}

/// Whether `printed` has the lines of `wanted` in order, other lines only where `wanted` says so.
fn matches(wanted: &[String], printed: &[&str]) -> bool {
    match wanted.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line.trim() == ANY => {
            (0..=printed.len()).any(|at| matches(rest, &printed[at..]))
        }
        Some((line, rest)) => printed.first() == Some(&line.as_str()) && matches(rest, &printed[1..]),
    }
}

#[test]
fn commands_print_what_the_documentation_shows() {
    // Those on files of the repository.
    for (page, command, of, count) in [
        ("README.md", "sessions show", "tests/data/", 1),
        ("docs/traces.md", "sessions show", "tests/data/", 3),
        ("docs/traces.md", "sessions diff", "tests/data/", 1),
        ("docs/sessions.md", "sessions list", "tests/data/", 1),
        ("README.md", "goodput", "--from-log tests/data/", 1),
        ("docs/goodput.md", "goodput", "--from-log tests/data/", 1),
    ] {
        let of_command = examples(page, &format!("tpuscope {command} "));
        let examples: Vec<_> =
            of_command.into_iter().filter(|example| example.command.starts_with(of)).collect();
        assert_eq!(examples.len(), count, "{page}: {examples:?}");
        for example in examples {
            let arguments: Vec<&str> =
                command.split_whitespace().chain(example.command.split_whitespace()).collect();
            let ended = run(Path::new(&workspace()), &arguments);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            let printed: Vec<&str> = ended.stdout.lines().collect();
            assert!(
                matches(&example.output, &printed),
                "{page} has other output of `{command} {}` than:\n{}",
                example.command,
                ended.stdout
            );
        }
    }
}

/// The heads of a table.
fn heads(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|head| !head.is_empty()).collect()
}

#[test]
fn every_list_of_sessions_in_the_documentation_has_the_columns_of_today() {
    let folder = "tests/data/golden/xplane/straggler_4core";
    let printed = run(Path::new(&workspace()), &["sessions", "list", folder]).stdout;
    let today = heads(printed.lines().next().expect("a table"));
    let mut seen = 0;
    for page in fs::read_dir(workspace().join("docs")).expect("the documentation") {
        let page = page.expect("a page").path();
        let text = if page.is_file() { fs::read_to_string(&page).expect("text") } else { String::new() };
        for line in text.lines().filter(|line| line.trim_start().starts_with("SESSION  ")) {
            if heads(line).contains(&"CREATED (UTC)") {
                assert_eq!(heads(line), today, "{}", page.display());
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 2);
}

#[test]
fn the_settings_of_the_first_capture_are_accepted() {
    let text = fs::read_to_string(workspace().join("README.md")).unwrap();
    let block =
        text.split("\n```toml\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("settings");
    let home = Home::new();
    fs::write(home.path().join("my.toml"), block).unwrap();
    let checked = run(home.path(), &["config", "check", "my.toml", "--json"]).json();
    assert_eq!(checked["settings"]["workload"]["discover"], "any", "{checked}");
}
