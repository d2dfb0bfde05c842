//! The output of `sessions show` in the documentation is what the command prints.

use std::{fs, path::Path};

use fakes::{command::run, harness::workspace};

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
fn sessions_show_prints_what_the_documentation_shows() {
    for (page, count) in [("README.md", 1), ("docs/traces.md", 3)] {
        let examples = examples(page, "tpuscope sessions show ");
        assert_eq!(examples.len(), count, "{page}: {examples:?}");
        for example in examples {
            let arguments: Vec<&str> =
                ["sessions", "show"].into_iter().chain(example.command.split_whitespace()).collect();
            let ended = run(Path::new(&workspace()), &arguments);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            let printed: Vec<&str> = ended.stdout.lines().collect();
            assert!(
                matches(&example.output, &printed),
                "{page} has other output of `sessions show {}` than:\n{}",
                example.command,
                ended.stdout
            );
        }
    }
}
