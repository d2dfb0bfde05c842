//! The recorder and the calculator of the real library beside the agent.

use serde_json::Value;

use super::{MarkedHost, Program};
use crate::goodput::{assert_same, differences, file, line, run};

/// The first version whose recorder may be given a sink, the first that names it otherwise, the last that writes at once,
/// the first that writes in the background, and the newest, which is in the environment; each with the entries that it
/// writes. The first two have no custom events.
const VERSIONS: [(Option<&str>, u64); 5] =
    [(Some("0.0.4"), 30), (Some("0.0.6"), 30), (Some("0.0.16"), 32), (Some("0.2.0"), 32), (None, 32)];

#[test]
fn recorders_of_all_versions_reach_the_agent_without_credentials() {
    let host = MarkedHost::new("");
    let job = |version: Option<&str>| format!("job of {}", version.unwrap_or("the newest"));
    let start = |(version, _)| Program::start(host.socket(), "record", &[&job(version)], version);
    let programs = VERSIONS.map(start);
    for ((version, events), program) in VERSIONS.into_iter().zip(programs) {
        let (job, said) = (job(version), program.last());
        // The second logger has them too; what it raises does not reach the program.
        let entries = said["entries"].as_array().unwrap();
        assert_eq!(entries.len() as u64, events, "{job}: {said}");
        assert!(said["also_failed"].as_u64().unwrap() > 0, "{job}: {said}");
        assert_eq!(said["stats"]["stored"], events, "{job}: {said}");
        assert_eq!(host.counts(&job), (events, 0, 0), "{job}");
        let folder = tempfile::tempdir().unwrap();
        let lines = entries.iter().map(|entry| {
            let time = entry["log_timestamp"].as_f64().unwrap();
            line(time, &entry["insert_id"].to_string(), &entry["payload"].to_string())
        });
        let log = file(folder.path(), "log", lines.collect::<Vec<_>>().join("\n"));
        let now = (entries.last().unwrap()["log_timestamp"].as_f64().unwrap() + 1.0).to_string();
        let arguments = ["--job", &job, "--json", "--now", &now];
        let wanted = run(&[&["--from-log", &log], &arguments[..]].concat()).json();
        let mut out = Vec::new();
        let got = host.goodput(&job, &["--now", &now]);
        for key in ["goodput_percent", "unproductive_seconds", "productive_seconds", "total_elapsed_seconds"]
        {
            differences(&format!("{job} {key}"), &wanted[key], &got[key], &mut out);
        }
        assert_same(&out);
    }
}

/// Random jobs through the sink, as many as are quick.
const COUNT: &str = "40";

#[test]
fn the_agent_says_what_the_library_s_own_calculator_says() {
    let host = MarkedHost::new("[marks]\nmax_rate = 100000\n");
    let mut program = host.program("random", &["0", COUNT]);
    let (mut out, mut answers, mut errors) = (Vec::new(), 0, 0);
    for _ in 0..COUNT.parse().unwrap() {
        let said = program.says();
        let job = said["job"].as_str().unwrap();
        assert_eq!((&said["stats"]["waiting"], &said["stats"]["refused"]), (&0.into(), &0.into()), "{said}");
        let asked = said["queries"].as_array().unwrap().iter().zip(said["outputs"].as_array().unwrap());
        for (query, wanted) in asked {
            let mut wanted = wanted.clone();
            wanted.as_object_mut().unwrap().remove("details_failed");
            errors += u32::from(wanted.get("error").is_some());
            let arguments = arguments(query, said["elastic"] == true);
            let got = host.goodput(job, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
            differences(&format!("{job} {query}"), &wanted, &got, &mut out);
            answers += 1;
        }
    }
    assert!(answers == 160 && errors < answers / 2, "{answers} answers, {errors} of them errors");
    assert_same(&out);
}

/// The query as arguments.
fn arguments(query: &Value, elastic: bool) -> Vec<String> {
    let keys: &[&str] = if query["kind"] == "interval" { &["start", "end"] } else { &["now"] };
    let times = keys.iter().flat_map(|key| [format!("--{key}"), query[*key].as_f64().unwrap().to_string()]);
    times.chain(elastic.then(|| "--elastic".to_owned())).collect()
}
