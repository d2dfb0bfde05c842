//! The service as shipped: the unit file, the binary's needs, and (in `booted`) a real systemd running it.

use std::{ffi::OsStr, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use fakes::{
    command::run,
    harness::{tpuscope, workspace},
    running_agent::Home,
    slurm_cluster::HOOKS,
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
    for file in ["prometheus/alerts.yml", "grafana/fleet.json", "grafana/host.json", "grafana/job.json"] {
        let installed = fs::read(root.path().join("usr/share/tpuscope").join(file)).expect("installed");
        assert_eq!(installed, fs::read(workspace().join("packaging").join(file)).expect("there"), "{file}");
    }
    for (_, hook) in HOOKS {
        let installed = root.path().join("usr/share/tpuscope/slurm").join(hook);
        assert_eq!(fs::metadata(&installed).expect("installed").permissions().mode() & 0o777, 0o755);
        let shipped = workspace().join("packaging/slurm").join(hook);
        assert_eq!(fs::read(installed).expect("installed"), fs::read(shipped).expect("there"));
    }
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

#[test]
fn what_an_administrator_changed_stays_when_it_is_installed_again_and_removed() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let install = |arguments: &[&OsStr]| {
        let script = workspace().join("packaging/install.sh");
        let output = Command::new(script).args(arguments).output().expect("the installer runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let with_network = || install(&["--network".as_ref(), tpuscope().as_ref(), root.path().as_ref()]);
    let drop_in = root.path().join("etc/systemd/system/tpuscope.service.d/network.conf");
    let settings = root.path().join("etc/tpuscope/tpuscope.toml");
    with_network();
    // The defaults are not set, so that those of a later version apply.
    let shown = fs::read_to_string(&settings).expect("installed");
    let set = shown.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '[']));
    assert_eq!(set.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(shown.contains("\n#interval = \"1s\"\n"), "{shown}");

    // What an earlier installer wrote is replaced.
    for written in [&drop_in, &root.path().join("usr/share/tpuscope/network.conf")] {
        fs::write(written, "[Service]\nIPAddressAllow=any\n").expect("writable");
    }
    assert!(!with_network().contains("was edited"));
    assert!(fs::read_to_string(&drop_in).expect("there").starts_with("# Written by install.sh"));

    for (file, text) in
        [(&drop_in, "[Service]\nIPAddressAllow=10.0.0.7\n"), (&settings, "[log]\nlevel = \"warn\"\n")]
    {
        fs::write(file, text).expect("writable");
    }
    assert!(with_network().contains("network.conf was edited and stays as it is"));
    let said = install(&["--remove".as_ref(), root.path().as_ref()]);
    assert!(said.contains("network.conf, which was edited"), "{said}");
    assert_eq!(
        files(root.path()),
        ["./etc/systemd/system/tpuscope.service.d/network.conf", "./etc/tpuscope/tpuscope.toml"]
    );
    assert_eq!(fs::read_to_string(&drop_in).expect("kept"), "[Service]\nIPAddressAllow=10.0.0.7\n");
    assert_eq!(fs::read_to_string(&settings).expect("kept"), "[log]\nlevel = \"warn\"\n");
}

#[test]
fn the_installer_prints_its_usage() {
    let script = workspace().join("packaging/install.sh");
    for (argument, code) in [(Some("--help"), 0), (None, 2), (Some("--no-such-option"), 2)] {
        let output = Command::new(&script).args(argument).output().expect("the installer runs");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let printed = if code == 0 { &output.stdout } else { &output.stderr };
        assert!(String::from_utf8_lossy(printed).contains("install.sh --remove [DESTDIR]"), "{output:?}");
    }
}

/// The archive of docs/rollout.md, packed by the line of the page, has all that the installer needs.
#[test]
fn the_archive_for_many_hosts_can_be_installed() {
    let page = fs::read_to_string(workspace().join("docs/rollout.md")).expect("the page is there");
    let pack = page.lines().find(|line| line.starts_with("tar -czf tpuscope.tar.gz")).expect("the line");
    let hosts = tempfile::tempdir().expect("a temporary folder");
    let archive = hosts.path().join("tpuscope.tar.gz");
    let program = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir_all(program.path().join("target/dist")).expect("writable");
    fs::copy(tpuscope(), program.path().join("target/dist/tpuscope")).expect("the binary can be copied");
    let packed = pack.replace("tpuscope.tar.gz", &archive.display().to_string()).replace(
        "target/dist/tpuscope",
        &format!("-C {} target/dist/tpuscope -C \"$PWD\"", program.path().display()),
    );
    let script = format!(
        "set -e; {packed}; cd {}; tar -xzf tpuscope.tar.gz; packaging/install.sh target/dist/tpuscope \"$PWD/root\"",
        hosts.path().display()
    );
    let output =
        Command::new("bash").arg("-c").arg(script).current_dir(workspace()).output().expect("bash runs");
    assert!(output.status.success(), "{output:?}");
    assert!(hosts.path().join("root/usr/share/tpuscope/python/tpuscope/marks.py").exists());
}

#[test]
fn the_links_of_the_installed_pages_lead_to_installed_files() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let script = workspace().join("packaging/install.sh");
    let output = Command::new(script).arg(tpuscope()).arg(root.path()).output().expect("the installer runs");
    assert!(output.status.success(), "{output:?}");
    let documents = root.path().join("usr/share/doc/tpuscope");
    let mut seen = 0;
    for page in files(&documents).iter().filter(|file| file.ends_with(".md")) {
        let page = documents.join(page);
        let text = fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            assert!(page.parent().expect("a folder").join(target).exists(), "{link} of {}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
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
