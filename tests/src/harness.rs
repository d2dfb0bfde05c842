//! Where the things under test are: the `tpuscope` binary, the test data, the real peers.

use std::{env, path::PathBuf};

/// The folder that cargo puts this profile's artifacts in (`target/debug`).
pub fn artifacts() -> PathBuf {
    let exe = env::current_exe().expect("the running test has a path");
    let deps = exe.parent().expect("a test binary lies in target/<profile>/deps");
    if deps.ends_with("deps") {
        deps.parent().expect("deps has a parent").to_owned()
    } else {
        deps.to_owned()
    }
}

/// The `tpuscope` binary, built by `cargo build --workspace` before the tests.
///
/// # Panics
/// If it was not built.
pub fn tpuscope() -> PathBuf {
    artifact("tpuscope")
}

/// A binary or library of this workspace in [`artifacts`].
///
/// # Panics
/// If it was not built.
pub fn artifact(name: &str) -> PathBuf {
    let path = artifacts().join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace` first", path.display());
    path
}

/// The workspace's top folder.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

/// `tests/data`.
pub fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// The folder that `tests/setup.sh` installs the real peers in: `TPUSCOPE_PEERS`, else `target/peers`.
pub fn peers() -> PathBuf {
    env::var_os("TPUSCOPE_PEERS").map_or_else(|| workspace().join("target/peers"), PathBuf::from)
}

/// A real peer below [`peers`], such as `xprof/bin/python`.
///
/// # Panics
/// If it is missing: a test never passes by skipping its peer.
pub fn peer(relative: &str) -> PathBuf {
    let path = peers().join(relative);
    assert!(path.exists(), "the real peer {} is missing: run tests/setup.sh", path.display());
    path
}

/// Copies a program so that it can be run at once. The copying is another process's: a test that forks meanwhile
/// would hold a file of ours open for writing, and running it would fail with "text file busy".
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "cannot copy {} to {}", from.display(), to.display());
}
