//! Which hosts are meant: lists, files, the metadata server; and what is refused.

use std::fs;

use super::{Hosts, run, status};
use fakes::{command::start_as, fake_gcs::FakeGcs};

#[test]
fn a_file_and_the_metadata_server_name_hosts() {
    let hosts = Hosts::start(&[("10.130.0.2", 1), ("10.130.0.3", 1)]);
    let file = hosts.folder().join("hosts");
    fs::write(&file, "# the slice\n10.130.0.2\n\n10.130.0.[3-3] # the other\n").unwrap();
    let page = hosts.status(&["--hosts-file", &file.display().to_string()]);
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.starts_with("2 hosts; 2 chips\n"), "{page:?}");
    let metadata = FakeGcs::start();
    let endpoints = "unknown:unknown:10.130.0.2,unknown:unknown:10.130.0.3";
    metadata.set_metadata("instance/attributes/worker-network-endpoints", endpoints);
    let command = hosts.command();
    let mut asking = status(&["--gce", "--via-command", &command]);
    asking.env("GCE_METADATA_HOST", metadata.address().to_string());
    let page = start_as(asking).end();
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.starts_with("2 hosts; 2 chips\n"), "{page:?}");
}

#[test]
fn what_names_no_hosts_is_one_clear_error() {
    let many = vec!["a"; 70_000].join(",");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &many).unwrap();
    let file = file.path().display().to_string();
    for (arguments, code, says) in [
        (&["--hosts", "a,a", "--via", "ssh"][..], 2, "the host a is named twice"),
        (&["--hosts", "a,-oProxyCommand=x", "--via", "ssh"], 2, "`-oProxyCommand=x` is no host name"),
        (&["--hosts", "a\nb", "--via", "ssh"], 2, "the host list has white space or a control character"),
        (&["--hosts", "a[[1]]", "--via", "ssh"], 2, "the brackets of the host list do not match"),
        (&["--hosts", "a[1-99999]", "--via", "ssh"], 2, "more than 65536 hosts"),
        (&["--hosts-file", &file, "--via", "ssh"], 2, "line 1: the host list has more than 65536 hosts"),
        (&["--hosts-file", "/nonexistent", "--via", "ssh"], 5, "cannot read /nonexistent"),
        (&["--hosts", "a:22", "--via", "ssh"], 2, "a:22 has a port"),
        (&["--hosts", "a"], 2, "--via or --via-command is needed"),
        (&["--hosts", "a", "--via", "srun"], 2, "--via srun needs --slurm-job"),
        (&["--hosts", "a", "--via-command", "ssh x"], 2, "the command does not contain {host}"),
        (&["--hosts", "a", "--via-command", "ssh '{host}"], 2, "a quote of the command does not end"),
        (&["--hosts", "a", "--via", "ssh", "--watch"], 2, "cannot be used with"),
        (&["--hosts", "a", "--via", "ssh", "--socket", "/x"], 2, "--socket is the agent of this host"),
        (&["--slurm-job", "x", "--via", "ssh"], 2, "`x` is no id of a Slurm job"),
    ] {
        run(arguments).failed(code, says);
    }
    let mut no_metadata = status(&["--gce", "--via", "ssh"]);
    no_metadata.env("GCE_METADATA_HOST", "127.0.0.1:1");
    start_as(no_metadata).end().failed(10, "the metadata server 127.0.0.1:1 does not answer");
}
