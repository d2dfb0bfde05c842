//! The documents for contributors name files of this repository: every one of them exists.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

use std::{fs, path::Path};

const DOCUMENTS: [&str; 7] = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/architecture.md",
    "docs/security.md",
    "docs/contributing.md",
    "docs/fuzzing.md",
];
/// A word in backticks that starts with one of these and has a slash is a path from the top.
const TOP_FOLDERS: [&str; 12] = [
    "agent/",
    "benches/",
    "docs/",
    "goodput/",
    "packaging/",
    "proto/",
    "systemd/",
    "tests/",
    "tpu-sys/",
    "xprof/",
    ".ci/",
    "python/",
];

/// The words in backticks of a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of Markdown links of a line, without anchors; those of other sites apart.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.contains("://"))
}

#[test]
fn named_files_exist() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut named = 0;
    for document in DOCUMENTS {
        let path = top.join(document);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{document}: {error}"));
        for (number, line) in text.lines().enumerate() {
            let paths = quoted(line).filter(|word| {
                TOP_FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '*', '<'])
            });
            let paths = paths.map(|word| top.join(word));
            let links = links(line).map(|target| path.parent().unwrap().join(target));
            for target in paths.chain(links) {
                assert!(target.exists(), "{document}:{}: {} does not exist", number + 1, target.display());
                named += 1;
            }
        }
    }
    assert!(named > 80, "only {named} names were found");
}
