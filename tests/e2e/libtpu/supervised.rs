//! The source over a library that fails: one metric never hides the others, and a broken library is given up.

use std::{collections::BTreeSet, fs, path::Path};

use fakes::libtpu::{Staged, hasty, read, read_until, source, tick};
use sampling::sources::{Reading, libtpu::child_lifecycle::ChildPolicy};

fn has(reading: &Reading, metric: &str) -> bool {
    reading.samples.iter().any(|sample| sample.metric.name == metric)
}

fn why(reading: &Reading) -> String {
    reading.absent.iter().map(|absence| format!("{}: {}\n", absence.what, absence.why)).collect()
}

#[tokio::test]
async fn all_metrics_become_samples() {
    let staged = Staged::new(Some("0.0.52"), "");
    let mut source = source(&staged.library(), hasty(), false);
    let reading = read_until(&mut source, |reading| !reading.samples.is_empty()).await;
    assert_eq!(why(&reading), "");
    assert!(
        has(&reading, "tpu_ici_link_health_score")
            && has(&reading, "grain_python_data_loader_iterator_get_next")
    );
    assert!(has(&reading, "tpu_collective_end_to_end_lifetime_p999_seconds"));
}

#[tokio::test]
async fn a_metric_that_ends_the_child_does_not_hide_the_others() {
    for behavior in ["abort", "segfault", "hang", "scribble"] {
        let staged = Staged::new(Some("0.0.52"), &format!("duty_cycle_pct = {behavior}"));
        let mut source = source(&staged.library(), hasty(), false);
        // It is not the last one: the first round ends there, and says so.
        let first = read_until(&mut source, |reading| !reading.samples.is_empty()).await;
        assert!(why(&first).contains("when it was asked for duty_cycle_pct"), "{behavior}: {}", why(&first));
        let next = read_until(&mut source, |reading| has(reading, "tpu_hbm_used_bytes")).await;
        assert!(!has(&next, "tpu_tensorcore_duty_cycle_ratio"));
        assert!(
            why(&next).contains("libtpu duty_cycle_pct: asking for it ended libtpu's process"),
            "{}",
            why(&next)
        );
        assert!(has(&next, "grain_python_data_loader_iterator_get_next"), "{behavior}");
    }
}

#[tokio::test]
async fn a_library_that_always_dies_is_given_up() {
    let staged = Staged::new(Some("0.0.52"), "sdk = abort");
    let mut source = source(&staged.library(), hasty(), false);
    let given_up = read_until(&mut source, |reading| why(reading).contains("after repeated failures")).await;
    assert!(why(&given_up).contains("SIGABRT"), "{}", why(&given_up));
    // It rests, though the library would be well by now.
    staged.set("");
    let resting = read(&mut source, &tick(0)).await;
    assert!(resting.samples.is_empty() && source.child_pid().is_none(), "{}", why(&resting));
}

#[tokio::test]
async fn a_leaking_child_is_replaced() {
    let staged = Staged::new(Some("0.0.52"), "hbm_util = leak 60000000");
    let policy = ChildPolicy { max_memory: 150 << 20, ..hasty() };
    let mut source = source(&staged.library(), policy, false);
    read_until(&mut source, |reading| !reading.samples.is_empty()).await;
    let first = source.child_pid().unwrap();
    let mut pids = vec![first];
    for _ in 0..12 {
        let reading =
            read_until(&mut source, |reading| has(reading, "tpu_chip_hbm_bandwidth_utilization_ratio")).await;
        assert!(has(&reading, "tpu_hbm_used_bytes"));
        pids.extend(source.child_pid().filter(|pid| !pids.contains(pid)));
    }
    assert!(pids.len() >= 3, "twelve reads leak 720 MB in all: {pids:?}");
    assert!(!Path::new(&format!("/proc/{first}")).exists(), "the first child is still there");
}

#[tokio::test]
async fn a_library_replaced_on_disk_is_loaded_anew() {
    let staged = Staged::new(Some("0.0.52"), "");
    let mut source = source(&staged.library(), hasty(), false);
    read_until(&mut source, |reading| !reading.samples.is_empty()).await;
    let first = source.child_pid().unwrap();
    // As a package manager does it: a new file, renamed over the old.
    let fresh = staged.library().with_extension("new");
    fs::copy(staged.library(), &fresh).unwrap();
    fs::rename(&fresh, staged.library()).unwrap();
    read_until(&mut source, |reading| !reading.samples.is_empty()).await;
    assert_ne!(source.child_pid().unwrap(), first);
}

#[tokio::test]
async fn an_old_library_is_asked_for_its_own_names_only() {
    // It aborts at any other.
    let staged =
        Staged::new(Some("0.0.21"), "slots = 12\nunknown = abort\nhbm_util = abort\nidle_duration = abort");
    let mut source = source(&staged.library(), hasty(), false);
    let reading = read_until(&mut source, |reading| !reading.samples.is_empty()).await;
    assert_eq!(why(&reading), "");
    assert!(has(&reading, "tpu_collective_end_to_end_lifetime_mean_seconds"));
    // Without metadata nothing is certain about this table: nothing is asked.
    let unknown = Staged::new(None, "slots = 12\nunknown = abort");
    let mut source = fakes::libtpu::source(&unknown.library(), hasty(), false);
    let reading = read_until(&mut source, |reading| why(reading).contains("no metrics to ask for")).await;
    assert!(reading.samples.is_empty());
}

#[tokio::test]
async fn a_slow_library_keeps_the_read_short() {
    let slow = [
        ("tensorcore_util", "tpu_chip_tensorcore_utilization_ratio"),
        ("duty_cycle_pct", "tpu_tensorcore_duty_cycle_ratio"),
        ("hbm_capacity_total", "tpu_hbm_total_bytes"),
        ("hbm_capacity_usage", "tpu_hbm_used_bytes"),
        ("hlo_queue_size", "tpu_hlo_queue_size"),
    ];
    let settings = slow.map(|(name, _)| format!("{name} = slow 1000\n")).concat();
    let staged = Staged::new(Some("0.0.52"), &settings);
    let mut source = source(&staged.library(), hasty(), false);
    let first = read_until(&mut source, |reading| !reading.samples.is_empty()).await;
    assert!(why(&first).contains("wait for the next read"), "{}", why(&first));
    assert!(!has(&first, "grain_python_data_loader_iterator_get_next"));
    // The reads after it go on where the one before stopped.
    let mut seen = BTreeSet::new();
    for _ in 0..8 {
        let next = read(&mut source, &tick(0)).await;
        // The sampler gives up a read after 5 s: after three answers of a second each, a fourth may come too late.
        let answers = slow.iter().filter(|(_, metric)| has(&next, metric)).count();
        assert!(answers <= 3, "{answers} slow answers in one read");
        seen.extend(next.samples.into_iter().map(|sample| sample.metric.to_string()));
    }
    assert!(
        seen.contains("grain_python_data_loader_iterator_get_next") && seen.contains("tpu_hlo_queue_size")
    );
}

#[tokio::test]
async fn without_a_tpu_or_a_library_it_says_why() {
    use sampling::{
        settings::libtpu::Settings,
        sources::libtpu::{LibtpuSource, locate::LibrarySearch},
    };
    let root = tempfile::tempdir().unwrap();
    let nowhere = LibrarySearch { root: root.path().to_owned(), named: vec![], home: None, venv: None };
    let mut source = LibtpuSource::new(Settings::default(), nowhere, fakes::libtpu::launch());
    let reading = read(&mut source, &tick(0)).await;
    assert_eq!(reading.absent, []);
    assert!(reading.unused.is_some_and(|why| why.contains("this host shows no TPU")));
    let no_library = "no libtpu was found; libtpu.path names one";
    let reading = read(&mut source, &tick(4)).await;
    assert_eq!(reading.absent, []);
    assert!(reading.unused.is_some_and(|why| why.contains(no_library)));
    // Who asks for it misses it.
    let asked = Settings { path: Some(root.path().join("libtpu.so")), ..Settings::default() };
    let nowhere = LibrarySearch { root: root.path().to_owned(), named: vec![], home: None, venv: None };
    let reading = read(&mut LibtpuSource::new(asked, nowhere, fakes::libtpu::launch()), &tick(4)).await;
    assert!(!reading.absent.is_empty() && reading.unused.is_none(), "{reading:?}");
}
