//! The service as shipped: the unit file, the binary's needs, and (in `booted`) a real systemd running it.

use std::{ffi::OsStr, fs, path::Path, process::Command};

use fakes::{
    command::run,
    harness::{tpuscope, workspace},
    running_agent::Home,
};

/// The unit with the built binary's path, in a folder of its own.
fn unit_with_built_binary() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let text = fs::read_to_string(workspace().join("systemd/tpuscope.service")).expect("the unit is there");
    let path = dir.path().join("tpuscope.service");
    let text = text.replace("/usr/bin/tpuscope", &tpuscope().display().to_string());
    // The documentation is named by the path that the package installs it to.
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with("Documentation="))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&path, text).expect("the temporary folder is writable");
    (dir, path)
}

#[test]
fn systemd_finds_nothing_to_say_about_the_unit() {
    let (_dir, unit) = unit_with_built_binary();
    let output =
        Command::new("systemd-analyze").arg("verify").arg(&unit).output().expect("systemd-analyze runs");
    assert!(output.status.success(), "{output:?}");
    // An unknown key is only a line on stderr.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn the_units_exposure_is_at_most_3_5() {
    let (_dir, unit) = unit_with_built_binary();
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=35", "--no-pager"])
        .arg(&unit)
        .output()
        .expect("systemd-analyze runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The files below a folder, without it.
fn files(folder: &Path) -> Vec<String> {
    let output =
        Command::new("find").args([".", "-type", "f"]).current_dir(folder).output().expect("find runs");
    let mut files: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    files.sort_unstable();
    files
}

#[test]
fn what_is_installed_is_removed_except_the_settings() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let install = |arguments: &[&OsStr]| {
        let script = workspace().join("packaging/install.sh");
        let output = Command::new(script).args(arguments).output().expect("the installer runs");
        assert!(output.status.success(), "{output:?}");
    };
    install(&["--network".as_ref(), tpuscope().as_ref(), root.path().as_ref()]);
    let rules = fs::read(root.path().join("usr/share/tpuscope/prometheus/alerts.yml")).expect("installed");
    assert_eq!(rules, fs::read(workspace().join("packaging/prometheus/alerts.yml")).expect("there"));
    let drop_in = "etc/systemd/system/tpuscope.service.d/network.conf";
    let text = fs::read_to_string(root.path().join(drop_in)).expect("installed");
    let settings: Vec<&str> =
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    // The unit denies all addresses; what is allowed goes first.
    assert_eq!(settings, ["[Service]", "IPAddressAllow=any"]);
    assert!(files(root.path()).len() > 10);
    install(&["--remove".as_ref(), root.path().as_ref()]);
    assert_eq!(files(root.path()), ["./etc/tpuscope/tpuscope.toml"]);
}

/// The exit codes after which systemd does not restart the agent.
fn final_exit_codes() -> Vec<i32> {
    let text = fs::read_to_string(workspace().join("systemd/tpuscope.service")).expect("the unit is there");
    let codes = text.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    let codes = codes.expect("the unit has the setting").split_whitespace();
    codes.map(|code| code.parse().expect("a number")).collect()
}

#[test]
fn the_agent_is_restarted_unless_no_restart_mends_its_error() {
    let codes = final_exit_codes();
    let home = Home::new();
    let ends = |arguments: &[&str]| {
        let mut all = vec!["agent"];
        all.extend(arguments);
        run(home.path(), &all).code.expect("it ends by itself")
    };
    for arguments in [["--no-such-flag", ""], ["--set", "log.level=loud"], ["--config", "none.toml"]] {
        let code = ends(&arguments);
        assert!(codes.contains(&code), "{arguments:?} ends with {code}");
    }
    // Internal errors, signals and ports in use pass.
    for code in [0, 1, 7, 101, 134, 137] {
        assert!(!codes.contains(&code), "{code}");
    }
}

/// The versions of glibc symbols that `nm -D` names, as (major, minor).
fn glibc_versions(nm: &str) -> Vec<(u32, u32)> {
    nm.split_whitespace()
        .filter_map(|word| word.split_once("@GLIBC_").map(|(_, version)| version))
        .filter_map(|version| {
            let mut parts = version.trim_start_matches('@').split('.').map(str::parse::<u32>);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        })
        .collect()
}

#[test]
fn the_binary_runs_on_glibc_2_35() {
    let output = Command::new("nm").arg("-D").arg(tpuscope()).output().expect("nm runs");
    assert!(output.status.success(), "{output:?}");
    let versions = glibc_versions(&String::from_utf8_lossy(&output.stdout));
    assert!(!versions.is_empty(), "a dynamically linked binary needs glibc symbols");
    let newest = versions.into_iter().max().expect("not empty");
    assert!(newest <= (2, 35), "needs glibc {}.{}", newest.0, newest.1);
}

#[test]
fn versions_are_read_from_symbol_lists() {
    assert_eq!(glibc_versions("U memcpy@GLIBC_2.14\n w gnu_get_libc_version@GLIBC_2.2.5"), [(2, 14), (2, 2)]);
}
