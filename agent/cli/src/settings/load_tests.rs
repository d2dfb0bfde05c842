//! The layers of settings, and the words of their faults.

use super::{super::values, *};
use model::unit::Duration;

fn from_text(text: &str) -> Result<Config, String> {
    load(&Layers { text: Some((Path::new("a.toml"), text)), ..Layers::default() })
        .map(|loaded| loaded.config)
        .map_err(|error| error.to_string())
}

fn from_environment(name: &str, value: &str) -> Result<Config, String> {
    let environment = vec![(name.to_owned(), value.to_owned())];
    load(&Layers { environment, ..Layers::default() })
        .map(|loaded| loaded.config)
        .map_err(|error| error.to_string())
}

#[test]
fn the_words_of_the_parser_are_not_those_of_a_program() {
    let large = from_text("[upload]\nparallel = 100000\n").unwrap_err();
    assert!(large.contains("expected a whole number from 0 to 65535") && !large.contains("u16"), "{large}");
    let twice = from_text("[upload]\nparallel = 1\nparallel = 2\n").unwrap_err();
    assert!(twice.contains("duplicate key `parallel`"), "{twice}");
}

#[test]
fn a_repeated_section_is_a_list() {
    let names =
        |config: &Config| config.destination.0.iter().map(|each| each.name.to_string()).collect::<Vec<_>>();
    let text = "[log]\nlevel = \"warn\"\n\n[[destination]]\nname = \"a\"\nurl = \"gs://bucket/x\"\n\n\
                [[destination]]\nname = \"b\"\nurl = \"file:///mnt\"\nupload = \"always\"\n";
    let layers = Layers { text: Some((Path::new("a.toml"), text)), ..Layers::default() };
    let loaded = load(&layers).unwrap();
    assert_eq!(names(&loaded.config), ["a", "b"]);
    assert_eq!(loaded.sources["destination"].to_string(), "a.toml line 4");
    let flag = "destination=[{name='c', url='gs://bucket'}]".to_owned();
    let flags = [flag];
    assert_eq!(names(&load(&Layers { flags: &flags, ..layers }).unwrap().config), ["c"]);
    let variable = from_environment("TPUSCOPE_DESTINATION", "[{name='d', url='gs://bucket'}]");
    assert_eq!(names(&variable.unwrap()), ["d"]);
}

#[test]
fn faults_of_a_repeated_section_are_named() {
    let faults = |text: &str| {
        let layers = Layers { text: Some((Path::new("a.toml"), text)), ..Layers::default() };
        load(&layers).map_or_else(|errors| errors.into_strings(), |_| Vec::new())
    };
    let first = "[[destination]]\nname = \"a\"\nurl = \"gs://bucket/x\"\n";
    assert_eq!(
        faults(&format!("{first}[[destination]]\nname = \"b\"\nurl = \"gs://bucket/../x\"\n")),
        ["a.toml line 6: destination: the URL contains `..`, `/./` or `//`: expected plain folder names"]
    );
    let faulty = faults("[[destination]]\nname = \"none\"\nurll = \"gs://bucket\"\n");
    assert!(faulty[0].starts_with("a.toml line 2: destination: `none` is no name"), "{faulty:?}");
    assert!(
        faulty.iter().any(|fault| fault.contains("line 3: destination: unknown field `urll`")),
        "{faulty:?}"
    );
    let list = "`destination` is a list: write [[destination]] for each one and its settings below";
    assert_eq!(faults("[destination]\nname = \"a\"\n"), [format!("a.toml line 1: {list}")]);
    assert_eq!(faults("destination = 1\n"), [format!("a.toml line 1: {list}")]);
    let twice = format!("{first}{first}");
    assert_eq!(
        faults(&twice),
        ["a.toml line 1: destination has a name twice: expected one destination for each name"]
    );
    let flag = ["destination.name=a".to_owned()];
    let error = load(&Layers { flags: &flag, ..Layers::default() }).unwrap_err().to_string();
    assert_eq!(error, format!("--set destination.name=a: {list}"));
    let missing = faults("[[destination]]\nname = \"a\"\n");
    assert!(missing[0].contains("missing field `url`"), "{missing:?}");
}

#[test]
fn unknown_names_are_named_with_line_and_suggestion() {
    assert_eq!(
        from_text("[agent]\nstop_timout = \"2s\"\n").unwrap_err(),
        "a.toml line 2: there is no setting `agent.stop_timout` (did you mean `stop_timeout`?)"
    );
    assert_eq!(
        from_text("\n[agnt]\n").unwrap_err(),
        "a.toml line 2: there is no section `agnt` (did you mean `agent`?)"
    );
    assert_eq!(
        from_text("[agent]\nhttp = \"off\"\n").unwrap_err(),
        "a.toml line 2: there is no setting `agent.http` (did you mean `api.http`?)"
    );
    assert_eq!(from_text("[agent]\nzzz = 1").unwrap_err(), "a.toml line 2: there is no setting `agent.zzz`");
    assert_eq!(
        from_text("agent = 1").unwrap_err(),
        "a.toml line 1: `agent` is a section: write [agent] and its settings below"
    );
}

#[test]
fn bad_values_are_named_with_line_and_setting() {
    assert_eq!(
        from_text("[agent]\n\nstop_timeout = \"2\"\n").unwrap_err(),
        "a.toml line 3: agent.stop_timeout: `2` has no unit: write ns, us, ms, s, m, h or d, as in `2s`"
    );
    assert!(
        from_text("[agent]\nstop_timeout = 5\n").unwrap_err().contains("agent.stop_timeout: `5` has no unit")
    );
    let remote = from_text("[api]\nhttp = \"0.0.0.0:80\"\n").unwrap_err();
    assert!(remote.starts_with("a.toml line 2: api.http: expected a loopback address"), "{remote}");
    for dir in ["", "state"] {
        let relative = from_text(&format!("[agent]\nstate_dir = \"{dir}\"\n")).unwrap_err();
        assert!(
            relative.contains(&format!(
                "line 2: agent.state_dir: expected an absolute path, such as `/var/lib/tpuscope`, got `{dir}`"
            )),
            "{relative}"
        );
    }
    let at = |length: usize| from_text(&format!("[api]\nsocket = \"/{}\"\n", "x".repeat(length - 1)));
    assert!(at(107).is_ok());
    assert!(
        at(108)
            .unwrap_err()
            .contains("line 2: api.socket: expected a socket path of at most 107 bytes, got 108 bytes")
    );
    let syntax = from_text("[agent]\nhost = \n").unwrap_err();
    assert!(syntax.starts_with("a.toml line 2: "), "{syntax}");
    assert!(from_text("[agent]\nhost = \"a\"\nhost = \"b\"\n").unwrap_err().contains("line 3"));
}

#[test]
fn later_layers_win() {
    let flags = ["api.max_connections=3".to_owned()];
    let layers = Layers {
        text: Some((Path::new("a.toml"), "[agent]\nhost = 'file'\nstop_timeout = '1s'\n")),
        environment: vec![
            ("TPUSCOPE_AGENT__STOP_TIMEOUT".into(), "2s".into()),
            ("TPUSCOPE_API__MAX_CONNECTIONS".into(), "2".into()),
            ("TPUSCOPE_SOCKET".into(), "/c".into()),
            ("TPUSCOPE_API__SOCKET".into(), "/b".into()),
            ("HOME".into(), "/".into()),
        ],
        flags: &flags,
    };
    let config = load(&layers).unwrap().config;
    assert_eq!(config.agent.host, "file");
    assert_eq!(config.agent.stop_timeout, Duration::from_secs(2));
    assert_eq!(config.api.max_connections, 3);
    assert_eq!(config.api.socket, Path::new("/c"));
}

#[test]
fn a_section_below_a_name_that_is_none_is_read_and_a_wrong_one_is_named() {
    let config = load(&Layers {
        text: Some((
            Path::new("a.toml"),
            "[export.cloud_monitoring]\nenabled = true\nrolling_windows = ['10m']\n",
        )),
        environment: vec![("TPUSCOPE_EXPORT__CLOUD_MONITORING__PROJECT".into(), "p-1".into())],
        flags: &["export.cloud_monitoring.interval=30s".to_owned()],
    });
    let monitoring = config.unwrap().config.export_cloud_monitoring;
    assert_eq!((monitoring.enabled, monitoring.project.as_str()), (true, "p-1"));
    assert_eq!((monitoring.interval.get().as_secs(), monitoring.rolling_windows.len()), (30, 1));
    for (text, says) in [
        (
            "[export.cloud_monitorin]\nenabled = true\n",
            "a.toml line 1: there is no section `export.cloud_monitorin` (did you mean `export.cloud_monitoring`?)",
        ),
        (
            "[export.cloud_monitoring]\nenable = true\n",
            "a.toml line 2: there is no setting `export.cloud_monitoring.enable` (did you mean `enabled`?)",
        ),
        ("[export]\nx = 1\n", "a.toml line 2: there is no section `export.x` (did you mean `export.otlp`?)"),
        ("export = 1\n", "a.toml line 1: there is no section `export` (did you mean `export.otlp`?)"),
    ] {
        let fault = from_text(text).unwrap_err();
        assert!(fault.starts_with(says), "{text}: {fault}");
    }
    assert!(from_text("[export]\n").is_ok());
}

#[test]
fn a_section_in_another_one_has_settings_of_its_own() {
    let text = "[api]\nmax_connections = 3\n[api.remote]\ncert = '/c'\n[[api.remote.allow]]\nsan = 'x'\nrole = 'viewer'\n";
    let config = from_text(text).unwrap();
    assert_eq!((config.api.max_connections, config.api_remote.cert.to_str()), (3, Some("/c")));
    assert_eq!(config.api_remote.allow[0].san, "x");
    let set = from_environment("TPUSCOPE_API__REMOTE__CERT", "/d").unwrap();
    assert_eq!(set.api_remote.cert, Path::new("/d"));
    let fault = |text: &str| from_text(text).unwrap_err();
    assert_eq!(
        fault("[api.remote]\nlistn = 'off'\n"),
        "a.toml line 2: there is no setting `api.remote.listn` (did you mean `listen`?)"
    );
    assert!(fault("[api.remot]\n").starts_with("a.toml line 1: there is no setting `api.remot`"));
    let not_a_table = fault("[api]\nremote = 'off'\n");
    assert!(not_a_table.starts_with("a.toml line 2: `api.remote` is a section"), "{not_a_table}");
    let role = fault("[api.remote]\nallow = [\n{ san = 'x', role = 'admin' }]\n");
    assert_eq!(
        role,
        "a.toml line 3: api.remote.allow: `admin` is no role: expected operator, viewer or agent"
    );
    let empty = fault("[api.remote]\nallow = [{ san = '', role = 'viewer' }]\n");
    assert!(empty.contains("api.remote.allow: expected a name in certificates"), "{empty}");
    let alone = fault("[api.remote]\nlisten = '127.0.0.1:4393'\n");
    assert!(alone.starts_with("a.toml line 2: api.remote.listen is set, but not all of"), "{alone}");
    let files = "cert = '/c'\nkey = '/k'\nclient_ca = '/a'\n";
    let taken =
        fault(&format!("[api]\nhttp = '127.0.0.1:4393'\n[api.remote]\nlisten = '0.0.0.0:4393'\n{files}"));
    assert!(taken.contains("api.remote.listen has the same address and port as another listener"), "{taken}");
}

#[test]
fn a_flag_overrides_every_variable() {
    let defaults = values(&Config::default()).unwrap();
    let settings = defaults.iter().flat_map(|(section, values)| {
        values.iter().filter_map(move |(key, value)| Some((*section, *key, value.as_ref()?)))
    });
    for (section, key, value) in settings {
        let setting = setting_name(section, key);
        let name = format!("{PREFIX}{}", setting.replace('.', "__")).to_uppercase();
        let flag = format!("{setting}={value}");
        let mut environment = vec![(name, value.to_string())];
        if (section, key) == ("api", "socket") {
            environment.push((SOCKET_VARIABLE.into(), "/a".into()));
        }
        let loaded =
            load(&Layers { environment, flags: std::slice::from_ref(&flag), ..Layers::default() }).unwrap();
        assert_eq!(loaded.sources[&setting], SettingSource::Flag(flag));
        assert_eq!(loaded.config, Config::default(), "{setting}");
    }
}

#[test]
fn variables_hold_every_kind_of_value() {
    let set = |name: &str, value: &str| from_environment(name, value).unwrap();
    assert_eq!(set("TPUSCOPE_AGENT__HOST", "web 1").agent.host, "web 1");
    // It looks like a number, but the setting is a text.
    assert_eq!(set("TPUSCOPE_AGENT__HOST", "17").agent.host, "17");
    assert_eq!(set("TPUSCOPE_API__ALLOWED_HOSTS", "['a', 'b']").api.allowed_hosts, ["a", "b"]);
    assert_eq!(set("TPUSCOPE_AGENT__HOST", "1\nx = 2").agent.host, "1\nx = 2");
}

#[test]
fn faults_outside_the_file_name_their_place() {
    assert_eq!(
        from_environment("TPUSCOPE_API__MAX_CONNECTION", "1").unwrap_err(),
        "the variable TPUSCOPE_API__MAX_CONNECTION: there is no setting `api.max_connection` (did you mean \
         `max_connections`?)"
    );
    let bad = from_environment("TPUSCOPE_API__MAX_CONNECTIONS", "-1").unwrap_err();
    assert!(bad.starts_with("the variable TPUSCOPE_API__MAX_CONNECTIONS: api.max_connections: "), "{bad}");
    let bad = from_environment("TPUSCOPE_AGENT__STOP_TIMEOUT", "soon").unwrap_err();
    assert!(bad.contains("expected a duration, such as `2s`, got `soon`"), "{bad}");
    let flags = ["nonsense".to_owned()];
    let error = load(&Layers { flags: &flags, ..Layers::default() }).unwrap_err().to_string();
    assert!(error.starts_with("--set nonsense: expected SECTION.KEY=VALUE"), "{error}");
}

#[test]
fn a_file_is_read_within_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("big.toml");
    assert!(read(&file).unwrap().is_none());
    std::fs::write(&file, vec![b'#'; usize::try_from(MAX_FILE_BYTES).unwrap() + 1]).unwrap();
    assert!(matches!(read(&file), Err(ConfigError::TooLong { .. })));
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for other in [dir.path(), &fifo] {
        let error = read(other).unwrap_err().to_string();
        assert!(error.ends_with(": it is not a regular file"), "{error}");
    }
}

#[test]
fn every_fault_of_every_layer_is_found_once() {
    let text = "[agnt]\n[agent]\nhost = 1\nstop_timout = '2s'\nstop_timeout = '2'\n[api]\nhttp = '0.0.0.0:80'\n\
                max_connections = 0\n[libtpu]\nenabled = 'maybe'\n[sampler]\nruntime = false\n\
                host_service = false\norbax_grain = false\nhost = false\n";
    let flags = ["nonsense".to_owned(), "api.grpc=1".to_owned()];
    let layers = Layers {
        text: Some((Path::new("a.toml"), text)),
        environment: vec![("TPUSCOPE_LOG__LEVEL".into(), "loud".into())],
        flags: &flags,
    };
    let faults = load(&layers).unwrap_err().into_strings();
    let starts = [
        "a.toml line 1: there is no section `agnt`",
        "a.toml line 4: there is no setting `agent.stop_timout`",
        "a.toml line 3: agent.host: ",
        "a.toml line 5: agent.stop_timeout: ",
        "a.toml line 7: api.http: ",
        "a.toml line 10: libtpu.enabled: ",
        "the variable TPUSCOPE_LOG__LEVEL: log.level: ",
        "--set nonsense: ",
        "--set api.grpc=1: api.grpc: ",
        // Whether every source is off depends on libtpu.enabled, which is unknown.
        "a.toml line 8: api.max_connections is 0",
    ];
    assert_eq!(faults.len(), starts.len(), "{faults:#?}");
    for start in starts {
        assert_eq!(faults.iter().filter(|fault| fault.starts_with(start)).count(), 1, "{start}: {faults:#?}");
    }
}

#[test]
fn every_fault_of_a_list_is_found_once() {
    let good = "{ kind = 'profiler', address = '127.0.0.1:9012' }";
    let list = format!(
        "[{{ kind = 'profiler', address = 'x' }}, {good}, {{ kind = 'y', address = 'z' }}, {{ kind = 'profiler' }},\n\
         {{ kind = 'profiler', adress = '127.0.0.1:1' }}, 7]"
    );
    let faults = |text: &str, flags: &[String]| {
        let text = Some((Path::new("a.toml"), text));
        load(&Layers { text, flags, ..Layers::default() }).unwrap_err().into_strings()
    };
    let messages = [
        "`x` is no address",
        "`y`",
        "`z` is no address",
        "missing field `address`",
        "`adress`",
        "integer `7`",
    ];
    let in_file = faults(&format!("[workload]\nendpoints = {list}\n"), &[]);
    assert_eq!(in_file.len(), messages.len(), "{in_file:#?}");
    let one_line = list.replace('\n', " ");
    let in_flag = faults("", &[format!("workload.endpoints={one_line}")]);
    assert_eq!(in_flag.len(), messages.len(), "{in_flag:#?}");
    for message in messages {
        let has = |faults: &[String]| faults.iter().filter(|fault| fault.contains(message)).count();
        assert_eq!((has(&in_file), has(&in_flag)), (1, 1), "{message}: {in_file:#?} {in_flag:#?}");
    }
    assert!(in_file.iter().all(|fault| fault.contains(": workload.endpoints: ")), "{in_file:#?}");
    // Tables of their own have their own lines.
    let tables = "[[workload.endpoints]]\nkind = 'profiler'\naddress = 'x'\n[[workload.endpoints]]\n\
                  kind = 'y'\naddress = '127.0.0.1:1'\n[[workload.endpoints]]\nkind = 'profiler'\n";
    let faults = faults(tables, &[]);
    let starts = ["a.toml line 3: ", "a.toml line 5: ", "a.toml line 7: "];
    assert_eq!(faults.len(), starts.len(), "{faults:#?}");
    for start in starts {
        assert!(faults.iter().any(|fault| fault.starts_with(start)), "{start}: {faults:#?}");
    }
}

#[test]
fn the_settings_without_a_fault_are_known_beside_the_faults() {
    let text = "[agent]\nhost = 'a'\nstop_timeout = '2'\n[api]\nmetrics = '127.0.0.1:4390'\n";
    let load = |text| load(&Layers { text: Some((Path::new("a.toml"), text)), ..Layers::default() });
    let errors = load(text).unwrap_err();
    assert_eq!(errors.rest().unwrap().agent.host, "a");
    assert!(errors.refuse("agent.stop_timeout") && !errors.refuse("agent.host"));
    let faults = errors.into_strings();
    assert_eq!(faults.len(), 2, "{faults:#?}");
    assert!(faults[1].starts_with("a.toml line 5: api.metrics and api.http have the same"), "{faults:#?}");
    assert!(load("[agent]\nhost = \n").unwrap_err().rest().is_none());
}

#[test]
fn every_syntax_error_of_a_file_is_found() {
    let layers = Layers {
        text: Some((Path::new("a.toml"), "[agent]\nhost = \n[log]\nlevel = = 'info'\n")),
        environment: vec![("TPUSCOPE_LOG__LEVEL".into(), "loud".into())],
        ..Layers::default()
    };
    let faults = load(&layers).unwrap_err().into_strings();
    for start in ["a.toml line 2: ", "a.toml line 4: ", "the variable TPUSCOPE_LOG__LEVEL: "] {
        assert!(faults.iter().any(|fault| fault.starts_with(start)), "{start}: {faults:#?}");
    }
}

#[test]
fn every_setting_has_its_source() {
    let layers = Layers {
        text: Some((Path::new("a.toml"), "[agent]\nhost = 'a'\n\nstop_timeout = '1s'\n")),
        environment: vec![("TPUSCOPE_AGENT__STOP_TIMEOUT".into(), "2s".into())],
        flags: &["api.max_connections=3".to_owned()],
    };
    let sources = load(&layers).unwrap().sources;
    let shown: Vec<_> = sources.iter().map(|(setting, source)| format!("{setting}: {source}")).collect();
    assert_eq!(
        shown,
        [
            "agent.host: a.toml line 2",
            "agent.stop_timeout: the variable TPUSCOPE_AGENT__STOP_TIMEOUT",
            "api.max_connections: --set api.max_connections=3",
        ]
    );
}

#[test]
fn the_collector_of_an_export_is_checked() {
    let config = from_text("[export.otlp]\nendpoint = 'https://c.example'\ninterval = '1m'\n").unwrap();
    let url = config.export_otlp.endpoint.url().unwrap().to_string();
    assert_eq!((url.as_str(), config.export_otlp.interval.get().as_secs()), ("https://c.example:4317", 60));
    let set = from_environment("TPUSCOPE_EXPORT__OTLP__ENDPOINT", "http://127.0.0.1:9").unwrap();
    assert_eq!(
        set.export_otlp.endpoint.url().map(ToString::to_string).as_deref(),
        Some("http://127.0.0.1:9")
    );
    assert!(Config::default().export_otlp.endpoint.url().is_none());
    let fault = |text: &str| from_text(text).unwrap_err();
    for (text, says) in [
        (
            "[export.otlp]\nendpoint = 'http://10.0.0.1:4317'\n",
            "line 2: export.otlp.endpoint: expected https:// for",
        ),
        (
            "[export.otlp]\nendpoint = 'https://u:pw@c'\n",
            "line 2: export.otlp.endpoint: expected a URL without user",
        ),
        (
            "[export.otlp]\ninterval = '10ms'\n",
            "line 2: export.otlp.interval is out of its range: expected 1s to 1h",
        ),
        (
            "[export.otlp]\nheaders_file = 'x'\n",
            "line 2: export.otlp.headers_file: expected an absolute path",
        ),
        ("[export.tensorboard]\nenabled = true\n", "there is no setting `export.tensorboard.enabled`"),
        ("[api]\nxprof_roots = '/home'\n", "expected a list, such as [\"a\", \"b\"]"),
        ("[api]\nxprof_roots = ['/home/../etc']\n", "expected a folder without `..`, got `/home/../etc`"),
        ("[api]\nxprof = '0.0.0.0:1'\n", "such as `127.0.0.1:PORT`"),
        ("[export.otlp]\nendpoin = 'off'\n", "(did you mean `endpoint`?)"),
        ("[export.oltp]\nendpoint = 'off'\n", "(did you mean `export.otlp`?)"),
    ] {
        assert!(fault(text).contains(says), "{text}: {}", fault(text));
    }
}
