//! Lays out the functions of an optimised program; see `text_layout.ld`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=text_layout.ld");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // Only where functions are merged from all crates, and by linkers that know the command.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        let layout = format!("{}/text_layout.ld", env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{layout}");
    }
}
