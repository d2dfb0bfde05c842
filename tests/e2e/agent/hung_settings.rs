//! Settings on a disk that does not answer: the start ends with one clear line, and what runs goes on as it was.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::symlink,
    path::Path,
};

use fakes::{
    command::run,
    fake_host::FakeHost,
    hung_disk::HungDisk,
    running_agent::{Home, RunningAgent, exchange},
    wait::until,
};
use nix::sys::signal::Signal;

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Puts a file on the disk in the place of `file`.
fn moved_to(disk: &HungDisk, file: &Path) {
    let link = file.with_extension("link");
    symlink(disk.path().join("file"), &link).unwrap();
    fs::rename(&link, file).unwrap();
}

fn metrics(address: SocketAddr) -> String {
    exchange(address, b"GET /metrics HTTP/1.0\r\n\r\n").headers
}

#[test]
fn a_start_does_not_wait_for_ever_for_its_settings() {
    let (home, disk) = (Home::new(), HungDisk::new());
    let file = disk.path().join("tpuscope.toml").display().to_string();
    for command in [
        &["agent", "--config", &file][..],
        &["config", "check", &file],
        &["capture", "--target", "127.0.0.1:1", "--config", &file],
    ] {
        run(home.path(), command).failed(3, "could not be read within 10 s: a disk does not answer");
    }
}

#[test]
fn a_start_does_not_wait_for_ever_for_its_web_configuration() {
    let (host, home, disk) = (FakeHost::new(), Home::new(), HungDisk::new());
    let web = disk.path().join("web.yml");
    let settings = format!("[api]\nmetrics = \"{}\"\nmetrics_web_config = {web:?}\n", free());
    let config = host.config(&settings).display().to_string();
    let state = format!("agent.state_dir={}", home.path().join("state").display());
    let socket = home.socket().display().to_string();
    let arguments = ["agent", "--config", &config, "--socket", &socket, "--set", &state];
    run(home.path(), &arguments).failed(3, "web.yml could not be read within 10 s");
}

#[test]
fn the_listener_keeps_its_configuration_while_the_disk_of_the_file_hangs() {
    let (host, home, address) = (FakeHost::new(), Home::new(), free());
    let web = home.path().join("web.yml");
    fs::write(&web, "http_server_config: {headers: {X-Frame-Options: deny}}").unwrap();
    let settings = format!("[api]\nmetrics = \"{address}\"\nmetrics_web_config = {web:?}\n");
    let command = home.command(&host.config(&settings));
    let mut agent = RunningAgent::ready(home, command);
    let disk = HungDisk::new();
    moved_to(&disk, &web);
    until("the log to say that the file does not answer", || {
        let headers = metrics(address);
        assert!(headers.starts_with("HTTP/1.0 200") && headers.contains("deny"), "{headers}");
        agent.log().contains("its files, or the disk that they are on, do not answer")
    });
    // Many more requests than there are threads that read files.
    for _ in 0..10 {
        assert!(metrics(address).starts_with("HTTP/1.0 200"));
    }
    assert_eq!(agent.log().matches("stays as it was").count(), 1, "{}", agent.log());
    // The disk is back, with another configuration in the place of the file.
    drop(disk);
    fs::remove_file(&web).unwrap();
    fs::write(&web, "http_server_config: {headers: {X-Frame-Options: sameorigin}}").unwrap();
    until("the new configuration", || metrics(address).contains("sameorigin"));
    agent.signal(Signal::SIGTERM);
    until("the agent to end", || !agent.alive());
}
