//! The order of the crates: a crate of the agent uses only crates that stand below it. Cargo refuses a circle; this
//! test refuses a crate that uses one above it before there is a circle.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

use std::{fs, path::Path};

use toml::Table;

/// From the lowest to the highest. The first line knows nothing of the agent.
const ORDER: [&[&str]; 13] = [
    &["proto", "tpu-sys", "xprof", "goodput"],
    &["model"],
    &["host"],
    &["sampling"],
    &["store"],
    &["marks"],
    &["cluster"],
    &["sessions"],
    &["jobs"],
    &["export"],
    &["server"],
    &["cli"],
    &["tpuscope"],
];

fn manifest(folder: &Path) -> Table {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.parse().unwrap()
}

/// The place of a crate of this workspace in the order; none for a crate of others.
fn place(name: &str) -> Option<usize> {
    ORDER.iter().position(|names| names.contains(&name))
}

#[test]
fn a_crate_uses_only_crates_below_it() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let members = manifest(workspace)["workspace"]["members"].as_array().unwrap().clone();
    let folders = members.iter().map(|member| member.as_str().unwrap());
    // The tests and benches use everything.
    let product = folders.filter(|folder| !folder.starts_with("tests") && *folder != "benches");
    let mut seen = 0;
    for folder in product {
        let name = folder.strip_prefix("agent/").unwrap_or(folder);
        let above = place(name).unwrap_or_else(|| panic!("{folder} has no place in the order of this test"));
        let manifest = manifest(&workspace.join(folder));
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let Some(dependencies) = manifest.get(kind).and_then(|table| table.as_table()) else { continue };
            for used in dependencies.keys().filter(|used| place(used).is_some()) {
                let lowest = above == 0 && used == "proto" && name != "proto";
                assert!(
                    lowest || place(used) < Some(above),
                    "{folder}/Cargo.toml: {kind}: {name} uses {used}, which does not stand below it"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "only {seen} uses were found");
}
