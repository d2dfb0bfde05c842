//! Windows of real JAX jobs: when they begin, what is in them, how long they are.

use fakes::jax_job::JaxJob;

use super::{LONG, RecorderAgent, SHORT, jax, next_window, recorded, seconds, unique};
use crate::schema::Schema;

#[test]
fn periodic_windows_are_kept_with_their_steps_and_their_cost() {
    let (agent, _job, id) = recorded("windows", SHORT);
    let windows = agent.windows(&id, 3);
    let next = next_window(&agent, &id);
    for window in &windows {
        // How long after an instant of the grid it began: a machine may be slow.
        let late = (seconds(&window["start"]) - next).rem_euclid(5.0);
        assert!(late < 2.5, "one begins each 5 s: {late} s late, {windows:?}");
    }
    for window in &windows {
        let length = seconds(&window["stop"]) - seconds(&window["start"]);
        assert!(length >= 0.4 && window["steps"].as_u64().unwrap() > 10, "{window}");
    }
    let status = agent.ask(&["recorder", "status", "--job", &id, "--json"]).json();
    Schema::open("recorder-status").admits(&status);
    let process = &status["processes"][0];
    assert_eq!((&process["recorded"], &process["strategy"]), (&true.into(), &"periodic".into()));
    assert!(process["segments"].as_u64().unwrap() >= 3 && process["bytes"].as_u64().unwrap() > 0);
    // Steps are numbered, so what is between the windows is known too.
    let cost = &process["cost"];
    assert!(cost["between_step_seconds"].as_f64().unwrap() > 0.009, "{cost}");
    assert!(cost["windows"].as_u64().unwrap() >= 3, "{cost}");
    let timeline = agent.ask(&["recorder", "timeline", "--json"]).json();
    Schema::open("recorder-timeline").admits(&timeline);
    let page = agent.ask(&["recorder", "status", "--job", &id]).stdout;
    assert!(page.contains("recorded, periodic") && page.contains("cost, measured in"), "{page}");
    assert!(page.contains("a program that traces itself fails"), "{page}");
    let page = agent.ask(&["recorder", "timeline", "--job", &id]).stdout;
    assert!(page.contains("steps ") && page.contains("window"), "{page}");
    // Segments are compressed, and no raw trace stays.
    let names: Vec<String> = agent
        .segment_files()
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().filter(|name| !name.ends_with(".xplane.pb.gz")).count() <= 1, "{names:?}");

    let off = agent.ask(&["recorder", "off", "--job", &id, "--json"]).json();
    assert_eq!(off["processes"][0]["reason_code"], "switched_off");
    Schema::open("recorder-status").admits(&off);
}

#[test]
fn eight_workloads_of_one_job_record_the_same_windows() {
    const COUNT: usize = 8;
    let id = unique("eight");
    let jobs: Vec<_> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..COUNT).map(|_| scope.spawn(|| jax(&id).step_ms(50).start())).collect();
        starting.into_iter().map(|job| job.join().unwrap()).collect()
    });
    let agent = RecorderAgent::start(SHORT);
    fakes::wait::until("all to be found", || {
        agent.ask(&["recorder", "on", "--job", &id]);
        let status = agent.ask(&["recorder", "status", "--job", &id, "--json"]).json();
        status["processes"].as_array().unwrap().iter().filter(|process| process["recorded"] == true).count()
            == COUNT
    });
    fakes::wait::until("windows of all", || {
        let processes = agent.timeline(&id);
        processes.len() == COUNT
            && processes.iter().all(|process| process["segments"].as_array().unwrap().len() >= 2)
    });
    let starts: Vec<Vec<f64>> = agent
        .timeline(&id)
        .iter()
        .map(|process| {
            let segments = process["segments"].as_array().unwrap();
            segments.iter().map(|segment| seconds(&segment["start"])).collect()
        })
        .collect();
    // The newest may not be kept of all when it is asked, and the machine may be slow.
    for others in &starts[1..] {
        let common = starts[0].iter().filter(|start| others.iter().any(|other| (other - *start).abs() < 2.0));
        assert!(common.count() >= 2, "the windows of one are those of the others: {starts:?}");
    }
    let ended = agent.ask(&["snapshot", "--last", "10m", "--job", &id, "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["parts"].as_array().unwrap().len(), COUNT, "each has its part");
    drop(jobs);
}

#[test]
fn a_window_that_is_shorter_than_a_step_is_lengthened_and_that_is_said() {
    let id = unique("long");
    let port = fakes::jax_job::free_port();
    let job = JaxJob::new().port(port).variable("TPUSCOPE_PROFILER_PORT", &port.to_string());
    let _job = job.variable("TPUSCOPE_JOB_ID", &id).step_ms(700).start();
    let agent = RecorderAgent::start("every = '5s'\nwindow = '300ms'\nmax_window = '2400ms'\n");
    agent.record(&id);
    // 300 ms, 600 ms, 1.2 s, 2.4 s: at the latest the last holds a whole step of 0.7 s, wherever it begins.
    let windows = agent.windows(&id, 5);
    assert!(windows.iter().any(|window| window["steps"].as_u64().unwrap() > 0), "{windows:?}");
    let status = agent.status(&id);
    assert!(status["window_reason"].as_str().unwrap().contains("a step takes 0.7"), "{status}");
    assert!(status["window_seconds"].as_f64().unwrap() >= 1.4, "{status}");
    let page = agent.ask(&["recorder", "status", "--job", &id]).stdout;
    assert!(page.contains("window lengthened: a step takes"), "{page}");
}

#[test]
fn a_capture_goes_first_and_what_was_recorded_is_kept() {
    let (agent, job, id) = recorded("precedence", LONG);
    agent.windows(&id, 1);
    let pid = job.pid().to_string();
    // On a slow machine a window may be over before the capture comes: then the next one is tried.
    let cut = (0..5).find_map(|_| {
        let due = next_window(&agent, &id);
        super::wait_for_time(due + 0.4);
        let ended = agent.ask(&["capture", "--pid", &pid, "--duration", "100ms"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let window = fakes::wait::eventually("the window", || {
            let mut windows = agent.windows(&id, 1).into_iter();
            windows.find(|window| (seconds(&window["start"]) - due).abs() < 2.0)
        });
        (seconds(&window["stop"]) - seconds(&window["start"]) < 2.3).then_some(window)
    });
    let cut = cut.expect("what was recorded before the capture is kept");
    let gaps = agent.gaps(&id);
    assert!(gaps.iter().any(|reason| reason.contains("a capture asked for the profiler")), "{gaps:?}");
    // It goes on.
    let cut_at = seconds(&cut["start"]);
    let later = |window: &serde_json::Value| seconds(&window["start"]) > cut_at + 4.0;
    fakes::wait::until("the next window", || agent.windows(&id, 2).iter().any(later));
    let status = agent.status(&id);
    assert_eq!((&status["recorded"], &status["last_failure"]), (&true.into(), &"".into()));
}
