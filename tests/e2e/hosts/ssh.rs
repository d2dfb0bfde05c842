//! A real sshd and a real ssh: the options that keep a user's settings from breaking the connection, and the errors that
//! are passed on.

use std::path::Path;

use super::{Hosts, row, status};
use fakes::{
    command::{Ended, start_as},
    loopback_sshd::{LoopbackSshd, configured_ssh, free_port},
    wait::until,
};

/// `status --via ssh` with an `ssh` that is configured in `bin`.
fn asked(bin: &Path, arguments: &[&str]) -> Ended {
    asked_with(bin, &[arguments, &["--via", "ssh"]].concat())
}

/// `status` with an `ssh` that is configured in `bin`.
fn asked_with(bin: &Path, arguments: &[&str]) -> Ended {
    let mut command = status(arguments);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display()));
    // An agent of keys could let in where the test expects none.
    command.env_remove("SSH_AUTH_SOCK");
    start_as(command).end()
}

#[test]
fn hosts_are_asked_over_ssh_and_its_errors_are_passed_on() {
    let hosts = Hosts::start(&[("a", 1), ("b", 2)]);
    let (sshd, bare) = (LoopbackSshd::start(true), LoopbackSshd::start(false));
    let socket = |name: &str| hosts.folder().join(name);
    // What a user may have set: each of these would break the connection.
    let habits = "RequestTTY force\nRemoteCommand echo no\nSessionType none\nStdinNull yes\nForkAfterAuthentication yes\n\
                  LocalCommand echo local\nPermitLocalCommand yes\nLocalForward 127.0.0.1:1 127.0.0.1:1\n";
    let config = [
        sshd.host("a", &socket("a")),
        sshd.host("b", &socket("b")) + habits,
        sshd.host("no-agent", &socket("none")),
        bare.host("bare", &socket("a")),
        sshd.host("stranger", &socket("a"))
            .replace("UserKnownHostsFile ", "UserKnownHostsFile /nonexistent/"),
        sshd.host("closed", &socket("a")).replace("IdentityFile ", "#")
            + &format!("IdentityFile {}\n", sshd.other_key().display()),
        format!("Host down\nHostName 127.0.0.1\nPort {}\n", free_port()),
    ];
    let bin = tempfile::tempdir().unwrap();
    configured_ssh(bin.path(), &config.concat());
    let good = asked(bin.path(), &["--hosts", "a,b"]);
    assert_eq!(good.code, Some(0), "{good:?}\n{}", sshd.log());
    assert!(good.stdout.starts_with("2 hosts; 3 chips\n"), "{good:?}");
    until("the end of the logins", || sshd.logins().is_empty());
    // A terminal there, which changes the bytes.
    let terminal = ["--hosts", "a", "--via-command", "ssh -tt {host} tpuscope dial-stdio", "--json"];
    let terminal = asked_with(bin.path(), &terminal);
    let missing = &terminal.json()["hosts"][0]["missing"];
    assert_eq!(missing["kind"], "echo", "{terminal:?}\n{}", sshd.log());
    assert!(missing["remedy"].as_str().unwrap().contains("no `-t` of ssh"), "{missing}");
    until("the end of the logins", || sshd.logins().is_empty());
    let bad = asked(bin.path(), &["--hosts", "a,no-agent,bare,stranger,closed,down"]);
    assert_eq!(bad.code, Some(18), "{bad:?}");
    let page = &bad.stdout;
    for (host, says, remedy) in [
        ("no-agent", "tpuscope: no agent: there is no socket", "start the agent there"),
        ("bare", "tpuscope: command not found", "install tpuscope there"),
        ("stranger", "Host key verification failed.", "compare the key"),
        ("closed", "Permission denied (publickey).", "let `ssh HOST true` work without a prompt first"),
        ("down", "Connection refused", "check that the host is up"),
    ] {
        let shell_says =
            |row: &str| says == "tpuscope: command not found" && row.contains("tpuscope: not found");
        let row = row(page, host);
        assert!(row.contains("no answer") && (row.contains(says) || shell_says(row)), "{says} in {page}");
        assert!(page.contains(&format!("- {host}: {remedy}")), "{remedy} in {page}");
    }
    assert!(row(page, "a").contains("ok"), "{page}");
}
