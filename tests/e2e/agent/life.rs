//! Starting, being told apart, stopping, and what is said when it cannot start.

use std::{
    fs,
    os::unix::net::{UnixDatagram, UnixListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::schema::Schema;
use fakes::{
    command::{run, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    running_agent::{Home, RunningAgent, exchange},
    wait::{LIMIT, eventually, until},
};
use nix::sys::signal::Signal;

fn agent(settings: &str) -> (FakeHost, RunningAgent) {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, settings);
    (host, agent)
}

#[test]
fn starts_shows_itself_and_stops_cleanly() {
    let (_host, agent) = agent("");
    let status = agent.status();
    assert_eq!(status["peer"]["protocol"], 1);
    assert!(status["started"].as_str().is_some_and(|at| at.ends_with('Z')), "{status}");
    assert!(status["sources"].as_array().is_some_and(|sources| !sources.is_empty()), "{status}");
    let socket = agent.home().socket();
    agent.signal(Signal::SIGTERM);
    let (code, _home) = agent.end();
    assert_eq!(code, Some(0));
    assert!(!socket.exists(), "the socket goes with the agent");
}

#[test]
fn the_status_is_what_its_schema_says() {
    let (_host, agent) = agent("[sampler]\nsim_chips = 2\n");
    Schema::open("status").admits(&agent.status());
}

#[test]
fn a_second_agent_is_told_who_is_first() {
    let (host, mut agent) = agent("");
    let second = agent.home().command(&host.config(""));
    start_as(second)
        .end()
        .failed(7, &format!("the agent with pid {} already uses the state directory", agent.pid()));
    // Another state directory, but the same socket.
    let mut third = agent.home().command(&host.config(""));
    let elsewhere = Home::new();
    third.args(["--set", &format!("agent.state_dir={}", elsewhere.path().display())]);
    start_as(third).end().failed(7, "agent.sock.lock is locked by another agent");
    assert!(agent.alive());
    agent.status();
}

#[test]
fn what_a_killed_agent_left_is_replaced() {
    let (host, agent) = agent("");
    agent.signal(Signal::SIGKILL);
    let (code, home) = agent.end();
    assert_eq!(code, None);
    assert!(home.socket().exists());
    run(home.path(), &["status", "--socket", "agent.sock"]).failed(6, "no process listens on");
    let command = home.command(&host.config(""));
    RunningAgent::ready(home, command).status();
}

#[test]
fn a_foreign_listener_or_file_is_left_alone() {
    let host = FakeHost::new();
    let home = Home::new();
    let _foreign = UnixListener::bind(home.socket()).unwrap();
    start_as(home.command(&host.config(""))).end().failed(7, "another process listens on");
    let home = Home::new();
    fs::write(home.socket(), "precious").unwrap();
    start_as(home.command(&host.config(""))).end().failed(7, "exists and is not a socket");
    assert_eq!(fs::read_to_string(home.socket()).unwrap(), "precious");
}

#[test]
fn a_port_in_use_is_named_with_its_setting() {
    let host = FakeHost::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for setting in ["api.http", "api.grpc"] {
        let home = Home::new();
        let mut command = home.command(&host.config(""));
        command.args(["--set", &format!("{setting}={address}")]);
        let ended = start_as(command).end();
        ended.failed(7, &format!("cannot listen on {address} ({setting})"));
        assert!(!home.socket().exists(), "a start that failed leaves no socket");
    }
}

#[test]
fn missing_permissions_are_named() {
    let host = FakeHost::new();
    let home = Home::new();
    let public = Home::new();
    let binary = public.path().join("tpuscope");
    fakes::harness::copy_program(&tpuscope(), &binary);
    let as_nobody = |settings: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary).arg("agent");
        command.args(["--set", "api.http=off", "--set", "api.grpc=off"]);
        settings.iter().for_each(|setting| {
            command.args(["--set", setting]);
        });
        start_as(command).end()
    };
    let root_only = home.path().join("state").display().to_string();
    as_nobody(&[&format!("agent.state_dir={root_only}")]).failed(4, "cannot make the directory");
    let own = Home::new();
    std::os::unix::fs::chown(own.path(), Some(65534), Some(65534)).unwrap();
    let state = own.path().join("state").display().to_string();
    let socket = home.socket().display().to_string();
    as_nobody(&[&format!("agent.state_dir={state}"), &format!("api.socket={socket}")])
        .failed(4, "agent.sock.lock");
    drop(host);
}

#[test]
fn wrong_settings_are_one_line_with_their_place() {
    let home = Home::new();
    let config = home.path().join("bad.toml");
    let refused = |text: &str, says: &str| {
        fs::write(&config, text).unwrap();
        for arguments in [["agent", "--config", "bad.toml"].as_slice(), &["config", "check", "bad.toml"]] {
            run(home.path(), arguments).failed(3, says);
        }
    };
    refused(
        "[sampler]\nintervall = \"1s\"\n",
        "line 2: there is no setting `sampler.intervall` (did you mean `interval`?)",
    );
    refused(
        "[sampler]\n\ninterval = \"fast\"\n",
        "line 3: sampler.interval: expected a duration, such as `2s`, got `fast`",
    );
    refused("[sampler]\ninterval = 1\n", "line 2: sampler.interval: `1` has no unit");
    refused("[api]\nhttp = \"0.0.0.0:4390\"\n", "line 2: api.http: expected a loopback address");
    refused("[[api]]\n", "line 1: `api` is a section");
    refused(
        "[api]\nhttp = '127.0.0.1:4390'\ngrpc = '127.0.0.1:4390'\n",
        "api.http and api.grpc have the same address",
    );
    refused("[api]\nmax_connections = 0\n", "line 2: api.max_connections is 0");
    refused("[capture]\nmax_captures = 0\n", "capture.max_captures is 0");
    refused("[capture]\n\nmax_duration = '0s'\n", "line 3: capture.max_duration is under 1ms");
    refused("[capture]\ntimeout = '0s'\n", "line 2: capture.timeout is 0");
    refused(
        "[libtpu]\nenabled = 'off'\n[sampler]\nruntime = false\nhost_service = false\norbax_grain = false\nhost = false\n",
        "line 7: every source in [sampler] is off, and libtpu.enabled is off",
    );
    refused("[sampler]\nsim_chips = 100000\n", "sampler.sim_chips is over 1024");
    refused("[sampler]\nhistory = '9TiB'\n", "sampler.history is over 1GiB");
    refused("\u{1b}[31m = 1\n", "line 1");
    run(home.path(), &["agent", "--config", "none.toml"]).failed(5, "there is no file none.toml");
    let mut command = Command::new(tpuscope());
    command.args(["config", "check"]).env("TPUSCOPE_SAMPLER__INTERVAL", "1");
    start_as(command)
        .end()
        .failed(3, "the variable TPUSCOPE_SAMPLER__INTERVAL: sampler.interval: `1` has no unit");
}

#[test]
fn the_default_file_is_accepted_as_it_is() {
    let home = Home::new();
    let printed = run(home.path(), &["config", "default"]);
    fs::write(home.path().join("default.toml"), &printed.stdout).unwrap();
    let checked = run(home.path(), &["config", "check", "default.toml", "--json"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert_eq!(checked.json()["settings"], run(home.path(), &["config", "default", "--json"]).json());
    let schema = Schema::open("config-check");
    schema.admits(&checked.json());
    fs::write(home.path().join("bad.toml"), "[agent]\nhost = 1\n").unwrap();
    schema.admits(&run(home.path(), &["config", "check", "bad.toml", "--json"]).json());
    fs::write(home.path().join("bad.toml"), "[agent]\nhost = 1\n[log]\nlevel = 'loud'\n[lag]\n").unwrap();
    let bad = run(home.path(), &["config", "check", "bad.toml", "--json"]);
    assert_eq!(bad.code, Some(3), "{bad:?}");
    schema.admits(&bad.json());
    assert_eq!(bad.json()["faults"].as_array().map(Vec::len), Some(3), "{bad:?}");
    let bad = run(home.path(), &["config", "check", "bad.toml"]);
    for line in ["line 2: agent.host: ", "line 4: log.level: ", "line 5: there is no section `lag`"] {
        assert_eq!(bad.stderr.matches(line).count(), 1, "`{line}` in {bad:?}");
    }
    run(home.path(), &["agent", "--config", "bad.toml"]).failed(3, "line 5: there is no section `lag`");
    // What depends on this host is listed beside what does not.
    let listener = "[agent]\nhost = 1\n[api]\nmetrics = '0.0.0.0:4390'\n";
    let web_config = format!("{listener}metrics_web_config = '/nowhere/web.yml'\n");
    for (text, third) in [(listener, "without TLS the page"), (&web_config, "cannot read /nowhere/web.yml")] {
        fs::write(home.path().join("bad.toml"), text).unwrap();
        let bad = run(home.path(), &["config", "check", "bad.toml", "--json"]);
        assert_eq!(bad.json()["faults"].as_array().map(Vec::len), Some(3), "{bad:?}");
        for fault in ["line 2: agent.host: ", "line 4: api.metrics and api.http have the same", third] {
            assert!(bad.stdout.contains(fault), "`{fault}` in {bad:?}");
        }
    }
    Schema::open("version").admits(&run(home.path(), &["version", "--json"]).json());
}

#[test]
fn a_variable_that_sets_nothing_is_named() {
    let home = Home::new();
    let checked = |arguments: &[&str]| {
        let mut command = Command::new(tpuscope());
        command.current_dir(home.path()).env("TPUSCOPE_SAMPLER_INTERVAL", "2s").args(arguments);
        let ended = start_as(command).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    };
    fs::write(home.path().join("my.toml"), "").unwrap();
    let says = "the variable TPUSCOPE_SAMPLER_INTERVAL is no setting and is ignored (did you mean TPUSCOPE_SAMPLER__INTERVAL?)";
    let text = checked(&["config", "check", "my.toml"]);
    assert!(text.stderr.contains(says) && text.stdout == "my.toml: ok\n", "{text:?}");
    let json = checked(&["config", "check", "my.toml", "--json"]).json();
    Schema::open("config-check").admits(&json);
    assert!(json["warnings"].as_array().unwrap().iter().any(|warning| warning == says), "{json}");
}

#[test]
fn commands_find_the_socket_of_the_settings() {
    let (_host, _config, _first, agent) = agent_with_its_file();
    let call = |variable: (&str, &str), arguments: &[&str]| {
        let mut command = Command::new(tpuscope());
        command.env_remove("TPUSCOPE_SOCKET").env(variable.0, variable.1).args(arguments);
        start_as(command).end()
    };
    let socket = agent.home().socket().display().to_string();
    let file = agent.home().path().join("socket.toml");
    fs::write(&file, format!("[api]\nsocket = '{socket}'\n")).unwrap();
    let file = file.display().to_string();
    for variable in [("TPUSCOPE_CONFIG", file.as_str()), ("TPUSCOPE_API__SOCKET", &socket)] {
        let status = call(variable, &["status", "--json"]);
        assert_eq!(status.code, Some(0), "{variable:?}: {status:?}");
    }
    let none = agent.home().path().join("none.toml").display().to_string();
    call(("TPUSCOPE_CONFIG", &none), &["status"]).failed(5, "there is no file");
    // The argument goes first.
    call(("TPUSCOPE_CONFIG", &none), &["status", "--socket", "/nowhere.sock"]).failed(6, "/nowhere.sock");
}

#[test]
fn the_settings_in_force_are_shown_with_their_sources() {
    let home = Home::new();
    fs::write(home.path().join("my.toml"), "[agent]\nhost = 'a'\n\n[sampler]\ninterval = '3s'\n").unwrap();
    let show = |json: bool| {
        let mut command = Command::new(tpuscope());
        command
            .current_dir(home.path())
            .env("TPUSCOPE_LOG__LEVEL", "debug")
            .env("TPUSCOPE_SOCKET", "/x.sock");
        command.args(["config", "show", "--config", "my.toml", "--set", "sampler.interval=4s"]);
        if json {
            command.arg("--json");
        }
        let shown = start_as(command).end();
        assert_eq!(shown.code, Some(0), "{shown:?}");
        shown
    };
    let text = show(false).stdout;
    for line in [
        "host = \"a\"  # my.toml line 2",
        "interval = \"4s\"  # --set sampler.interval=4s",
        "level = \"debug\"  # the variable TPUSCOPE_LOG__LEVEL",
        "socket = \"/x.sock\"  # the variable TPUSCOPE_SOCKET",
        "stop_timeout = \"10s\"  # default",
    ] {
        assert_eq!(text.lines().filter(|shown| *shown == line).count(), 1, "`{line}` in {text}");
    }
    let json = show(true).json();
    Schema::open("config-show").admits(&json);
    let settings = &json["settings"];
    assert_eq!(settings["agent"]["host"]["source"]["line"], 2);
    assert_eq!(settings["log"]["level"]["source"]["name"], "TPUSCOPE_LOG__LEVEL");
    assert_eq!(settings["sampler"]["interval"]["source"]["argument"], "sampler.interval=4s");
    // What is shown can be used as a settings file.
    fs::write(home.path().join("shown.toml"), text).unwrap();
    let again = run(home.path(), &["config", "check", "shown.toml", "--json"]).json();
    for (section, values) in again["settings"].as_object().unwrap() {
        // A section that may be there several times is a list.
        let Some(values) = values.as_object() else {
            assert_eq!(settings[section]["value"], *values, "{section}");
            continue;
        };
        for (key, value) in values {
            assert_eq!(settings[section][key]["value"], *value, "{section}.{key}");
        }
    }
}

#[test]
fn the_environment_names_the_file_for_every_command_and_flags_override_it() {
    let home = Home::new();
    fs::write(home.path().join("bad.toml"), "[agent]\nhost = 1\n").unwrap();
    let with = |variable: (&str, &str), arguments: &[&str]| {
        let mut command = Command::new(tpuscope());
        command.current_dir(home.path()).env(variable.0, variable.1).args(arguments);
        start_as(command).end()
    };
    for arguments in [["config", "check"].as_slice(), &["config", "show"], &["agent"]] {
        with(("TPUSCOPE_CONFIG", "bad.toml"), arguments).failed(3, "bad.toml line 2: agent.host: ");
        with(("TPUSCOPE_CONFIG", "none.toml"), arguments).failed(5, "there is no file none.toml");
        with(("TPUSCOPE_SOCKET", "relative.sock"), arguments)
            .failed(3, "the variable TPUSCOPE_SOCKET: api.socket: expected an absolute path");
    }
    let shown = with(("TPUSCOPE_SOCKET", "/a.sock"), &["config", "show", "--set", "api.socket=/b.sock"]);
    assert!(shown.stdout.contains("socket = \"/b.sock\"  # --set api.socket=/b.sock"), "{shown:?}");
}

/// A ready agent, its settings file and the text of that.
fn agent_with_its_file() -> (FakeHost, PathBuf, String, RunningAgent) {
    let host = FakeHost::new();
    let home = Home::new();
    let config = host.config("");
    let first = fs::read_to_string(&config).unwrap();
    let command = home.command(&config);
    let agent = RunningAgent::ready(home, command);
    (host, config, first, agent)
}

#[test]
fn a_settings_file_that_is_no_regular_file_hangs_nothing() {
    let (_host, config, first, agent) = agent_with_its_file();
    fs::remove_file(&config).unwrap();
    nix::unistd::mkfifo(&config, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let path = config.display().to_string();
    run(agent.home().path(), &["config", "check", &path]).failed(3, "it is not a regular file");
    agent.signal(Signal::SIGHUP);
    until("the refusal in the log", || agent.log().contains("it is not a regular file"));
    fs::remove_file(&config).unwrap();
    fs::write(&config, format!("{first}\n[store]\nmax_age = '1h'\n")).unwrap();
    agent.signal(Signal::SIGHUP);
    until("the reload in the log", || agent.log().contains("changed: store.max_age"));
}

#[test]
fn sighup_reads_the_settings_again() {
    let (_host, config, first, agent) = agent_with_its_file();
    let reload = |text: &str, says: &str| {
        fs::write(&config, text).unwrap();
        agent.signal(Signal::SIGHUP);
        until(&format!("`{says}` in the log"), || agent.log().contains(says));
    };
    let asked = || {
        let request = b"GET /healthz HTTP/1.1\r\nHost: tpu.example\r\nConnection: close\r\n\r\n";
        exchange(agent.http(), request).status
    };
    assert_eq!(asked(), 403);
    reload(
        &format!("{first}\n[api]\nallowed_hosts = ['tpu.example']\n"),
        "changed: api.allowed_hosts; changed at the next start: none",
    );
    assert_eq!(asked(), 200);
    reload(
        &format!("{first}\n[store]\nmax_age = '1h'\n[capture]\nmax_captures = 9\n"),
        "changed: api.allowed_hosts, store.max_age; changed at the next start: capture.max_captures",
    );
    reload(
        &format!("{first}\n[store]\nmax_age = '1'\n"),
        "settings not reloaded, the earlier ones stay in force: ",
    );
    // The first settings again: what was refused has changed nothing.
    reload(&first, "changed: store.max_age; changed at the next start: none");
    agent.status();
}

#[test]
fn without_an_agent_status_says_what_to_do() {
    let home = Home::new();
    let ended = run(home.path(), &["status", "--socket", "none.sock"]);
    ended.failed(6, "no agent: there is no socket none.sock");
    assert!(ended.stderr.contains("tpuscope agent"), "{ended:?}");
    // Somebody who takes the connection and never says a word.
    let _silent = UnixListener::bind(home.path().join("silent.sock")).unwrap();
    run(home.path(), &["status", "--socket", "silent.sock"])
        .failed(15, "the agent did not answer within 10s");
}

#[test]
fn the_service_manager_is_told_ready_after_the_first_sample_and_fed_while_it_samples() {
    let host = FakeHost::new();
    let home = Home::new();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let mut command = home.command(&host.config("[sampler]\ninterval = \"250ms\"\n"));
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let agent = RunningAgent::spawn(home, command);
    let told = || {
        let mut text = [0; 256];
        let length = manager.recv(&mut text).expect("the agent tells something");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut seen = Vec::new();
    while !seen.iter().any(|text: &String| text.contains("READY=1")) {
        seen.push(told());
    }
    let status = agent.status();
    assert_eq!(status["ready"], true, "{status}");
    for _ in 0..3 {
        while !told().contains("WATCHDOG=1") {}
    }
    agent.signal(Signal::SIGTERM);
    while !told().contains("STOPPING=1") {}
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn an_agent_that_stands_still_is_not_fed() {
    let host = FakeHost::new();
    // A device that hangs whoever reads its file.
    let vendor = host.function("0000:00:1f.0", [0x8086, 0x7110, 0, 0], 0x06_0100).join("vendor");
    fs::remove_file(&vendor).unwrap();
    nix::unistd::mkfifo(&vendor, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let home = Home::new();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let mut command = home.command(&host.config("[sampler]\ninterval = \"250ms\"\n"));
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let mut agent = RunningAgent::spawn(home, command);
    manager.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    let fed = || {
        let mut text = [0; 256];
        manager.recv(&mut text).map(|length| text[..length].starts_with(b"WATCHDOG=1"))
    };
    eventually("five periods of silence", || fed().is_err().then_some(()));
    assert!(agent.alive() && agent.log().contains("the task makes no progress"), "{}", agent.log());
    assert_eq!(agent.get("/healthz", "").status, 503);
    // The device answers again.
    fs::write(&vendor, "0x8086\n").unwrap();
    eventually("the watchdog to be fed again", || fed().is_ok_and(|watchdog| watchdog).then_some(()));
    eventually("health", || (agent.get("/healthz", "").status == 200).then_some(()));
}

#[test]
fn completions_and_manual_pages_are_made() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let made = run(home.path(), &["completions", shell]);
        assert!(made.code == Some(0) && made.stdout.contains("status"), "{made:?}");
    }
    let script = home.path().join("tpuscope.bash");
    fs::write(&script, run(home.path(), &["completions", "bash"]).stdout).unwrap();
    let checked = Command::new("bash").arg("-n").arg(&script).status().unwrap();
    assert!(checked.success(), "bash reads its script");
    assert_eq!(run(home.path(), &["man", "pages"]).code, Some(0));
    run(home.path(), &["man", "/proc/pages"]).failed(4, "cannot write the manual pages to /proc/pages");
    let page = fs::read_to_string(home.path().join("pages/tpuscope-status.1")).unwrap();
    assert!(page.contains("\\-\\-socket"), "{page}");
    assert!(Path::new(&home.path().join("pages/tpuscope.1")).exists());
}
