//! Event files read by real TensorBoard: of logs, and of an agent whose jobs run.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use fakes::{
    command::{Ended, start_as},
    harness::{peer, tpuscope, workspace},
    running_agent::{Home, RunningAgent},
    small_disk::SmallDisk,
    wait::eventually,
};
use nix::{
    mount::{MsFlags, mount},
    sys::signal::Signal,
};

use crate::goodput::{self, file, golden, live::JobHost, vector};

/// Of each run its tags, of these steps, values and wall times in the order of the file.
type Board = BTreeMap<String, BTreeMap<String, Vec<(i64, f64, f64)>>>;

/// What TensorBoard reads: `files` by EventAccumulator, `server` by its web server.
fn read(how: &str, logdir: &Path) -> Board {
    let mut command = Command::new(peer("tensorboard/bin/python"));
    command.arg(workspace().join("tests/peers/tensorboard_peer.py")).arg(how).arg(logdir);
    let output = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// TensorBoard keeps f32.
fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * one.abs().max(1.0)
}

/// The event files below a folder.
fn event_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { event_files(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

#[test]
fn logs_have_the_scalars_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let boards = folder.path().join("boards");
    let mut wanted = Vec::new();
    for path in golden("goodput") {
        let vector = vector(&path);
        let case = &vector.cases[0];
        if case["query"]["kind"] != "cumulative" {
            continue;
        }
        let log = file(folder.path(), "log.jsonl", vector.lines.join("\n"));
        let now = case["query"]["now"].as_f64().unwrap();
        let board = boards.join(&vector.name);
        let to = board.to_str().unwrap();
        let words = [
            "--from-log",
            &log,
            "--job",
            &vector.job,
            "--now",
            &now.to_string(),
            "--tensorboard",
            to,
            "--json",
        ];
        let ended = goodput::run(&words);
        assert_eq!(ended.code, Some(0), "{}: {}", vector.name, ended.stderr);
        let output = case["output"].clone();
        match output["tensorboard_scalars"].as_array() {
            Some(scalars) => wanted.push((vector.name, now, scalars.clone(), output)),
            None => {
                assert!(ended.stderr.contains("no event file was written"), "{}", ended.stderr);
                assert_eq!(event_files(&board), [""; 0].map(PathBuf::from));
            }
        }
    }
    assert!(wanted.len() > 20);
    let board = read("files", &boards);
    for (name, now, scalars, output) in &wanted {
        let run = &board[&format!("{name}/goodput")];
        for scalar in scalars {
            let (tag, value) = (scalar[0].as_str().unwrap(), scalar[1].as_f64().unwrap());
            let [(step, found, wall)] = run[tag][..] else { panic!("{name} {tag}: {:?}", run[tag]) };
            assert_eq!(step, scalar[2].as_i64().unwrap(), "{name} {tag}");
            // The command takes microseconds.
            assert!((wall - now).abs() < 2e-6, "{name} {tag}: {wall} {now}");
            assert!(is_close(found, value), "{name} {tag}: {found} {value}");
        }
        let all = ["step_deviations", "step_deviations_tail"].map(|key| output[key].as_array());
        let mut deviations: Vec<(i64, f64)> = all
            .into_iter()
            .flatten()
            .next()
            .into_iter()
            .flatten()
            .map(|each| (each[0].as_i64().unwrap(), each[1].as_f64().unwrap()))
            .collect();
        deviations.sort_by_key(|(step, _)| *step);
        let none = Vec::new();
        let found = run.get("step_deviation").unwrap_or(&none);
        assert_eq!(found.len(), deviations.len(), "{name}");
        for ((step, value, _), wanted) in found.iter().zip(&deviations) {
            assert!(*step == wanted.0 && is_close(*value, wanted.1), "{name}: {step} {value} {wanted:?}");
        }
        assert_eq!(run.len(), scalars.len() + usize::from(!deviations.is_empty()), "{name}");
    }
}

#[test]
fn a_mistake_is_one_line_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let a_file = file(folder.path(), "file", "");
    let log = "tests/data/documented/one-lost.jsonl";
    let log = workspace().join(log).display().to_string();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), folder.path().join("goodput")).unwrap();
    let of_log = ["--from-log", &log, "--job", "one-lost", "--now", "2026-03-01T00:07:03Z", "--tensorboard"];
    for (words, code, says) in [
        (vec!["--tensorboard", dir], 2, "--job"),
        (vec!["--job", "j", "--tensorboard", dir, "--window", "1h"], 2, "--window"),
        ([&of_log[..], &[dir, "--start", "1", "--end", "2"]].concat(), 2, "--start"),
        ([&of_log[..], &["gs://bucket/x"]].concat(), 2, "a URL"),
        ([&of_log[..], &[&a_file]].concat(), 4, "cannot write an event file"),
        // A link where the run's folder would be.
        ([&of_log[..], &[dir]].concat(), 4, "goodput is a link"),
    ] {
        let mut command = Command::new(tpuscope());
        command.arg("goodput").args(&words);
        start_as(command).end().failed(code, says);
    }
    assert_eq!(event_files(folder.path()), [Path::new(&a_file)]);
    assert_eq!(event_files(elsewhere.path()), [""; 0].map(PathBuf::from));
}

/// A host of a job that has chips open and sends marks, whose agent writes event files.
struct Boards {
    host: JobHost,
    settings: String,
    directory: PathBuf,
}

impl Boards {
    fn new(directory: &Path) -> Self {
        let settings =
            format!("[export.tensorboard]\ndirectory = '{}'\ninterval = '1s'\n", directory.display());
        Self { host: JobHost::new(), settings, directory: directory.to_owned() }
    }

    fn agent(&self, home: Home) -> RunningAgent {
        self.host.agent_with(home, &self.settings)
    }

    fn files(&self, part: &str) -> Vec<PathBuf> {
        let files = event_files(&self.directory).into_iter();
        files.filter(|path| path.to_string_lossy().contains(part)).collect()
    }

    /// The sizes of the files, once there is one and it has grown.
    fn grown(&self, part: &str, than: u64) -> u64 {
        let size = || self.files(part).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        eventually(part, || Some(size()).filter(|size: &u64| *size > than))
    }
}

fn ask(agent: &RunningAgent, words: &[&str]) -> Ended {
    let mut command = Command::new(tpuscope());
    command.args(words).arg("--socket").arg(agent.home().socket()).env_remove("SLURM_JOB_ID");
    start_as(command).end()
}

fn marks(agent: &RunningAgent, words: &[&str]) {
    let ended = ask(agent, &[&["mark", "--strict", "--job", "train run"], words].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn jobs_that_run_have_event_files_that_outlive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let boards = Boards::new(directory.path());
    let agent = boards.agent(Home::new());
    let _job = boards.host.job();
    marks(&agent, &["JOB", "--start"]);
    for step in ["0", "1", "2"] {
        marks(&agent, &["STEP", "--step", step]);
    }
    let (marked, observed) = ("/goodput/", "/proxy-");
    let first = (boards.grown(marked, 0), boards.grown(observed, 0));
    boards.grown(marked, first.0);
    boards.grown(observed, first.1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for path in boards.files("") {
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o640, 0o750), "{}", path.display());
    }
    let page = agent.get("/metrics", "").body;
    assert!(
        page.contains("tpuscope_export_points_total{exporter=\"tensorboard\",result=\"dropped\"} 0"),
        "{page}"
    );
    assert!(!page.contains("tpuscope_export_failures_total{exporter=\"tensorboard\""), "{page}");

    // What a kill leaves is whole but for its end, and so it is if that is torn.
    agent.signal(Signal::SIGKILL);
    let (_, home) = agent.end();
    let before = boards.files("");
    for path in &before {
        let mut torn = fs::OpenOptions::new().append(true).open(path).unwrap();
        torn.write_all(&[24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f]).unwrap();
    }
    let agent = boards.agent(home);
    marks(&agent, &["STEP", "--step", "3"]);
    marks(&agent, &["STEP", "--step", "4"]);
    let with_new = |part| eventually(part, || (boards.files(part).len() >= 2).then_some(()));
    with_new(marked);
    with_new(observed);
    let ended = ["JOB", "--end"];
    marks(&agent, &ended);

    for how in ["files", "server"] {
        // The last point is that of the end.
        let board = eventually("the end of the job", || {
            let board = read(how, directory.path());
            let run =
                board.iter().find(|(run, _)| run.starts_with("train_run-") && run.ends_with("-u0/goodput"));
            let last = run.and_then(|(_, tags)| tags.get("goodput/goodput")?.last().copied());
            last.is_some_and(|(step, ..)| step == 4).then_some(board)
        });
        let (_, run) = board.iter().find(|(run, _)| run.ends_with("/goodput")).unwrap();
        let points = &run["goodput/goodput"];
        assert!(
            points.iter().any(|(step, ..)| *step <= 2),
            "{how}: what was before the kill is there: {points:?}"
        );
        assert!(points.iter().all(|(_, percent, _)| (0.0..=100.0).contains(percent)), "{points:?}");
        assert!(points.is_sorted_by_key(|(_, _, wall)| *wall), "{points:?}");
        assert!(run.contains_key("badput/other") && run.contains_key("badput/tpu_initialization"), "{run:?}");
        let (name, proxy) = board.iter().find(|(run, _)| run.contains("/proxy-")).unwrap();
        assert!(name.starts_with("slurm-77-u0/proxy-"), "{name}");
        assert!(proxy["goodput/coverage"].len() >= 2, "{proxy:?}");
        assert!(proxy["goodput/coverage"].is_sorted_by_key(|(_, _, wall)| *wall), "{proxy:?}");
    }

    // The same job once, by the command.
    let once = tempfile::tempdir().unwrap();
    let to = once.path().to_str().unwrap();
    for more in
        [&["--job", "train run"][..], &["--job", "train run", "--strict"], &["--job", "slurm:77", "--proxy"]]
    {
        let ended = ask(&agent, &[&["goodput", "--tensorboard", to], more].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("tpuscope: wrote {to}/")), "{ended:?}");
    }
    let board = read("files", once.path());
    let runs: Vec<&str> =
        board.keys().map(|run| run.split_once('-').map_or(run.as_str(), |(run, _)| run)).collect();
    assert_eq!(runs, ["goodput", "proxy", "strict"]);
    assert_eq!(board["goodput"]["goodput/goodput"][0].0, 4);
}

#[test]
fn a_folder_that_cannot_be_written_is_said_once_and_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("boards");
    let boards = Boards::new(&there);
    let agent = boards.agent(Home::new());
    // Before there is a job.
    let unusable = "event files for TensorBoard cannot be written";
    eventually("the log says so", || agent.log().contains(unusable).then_some(()));
    marks(&agent, &["JOB", "--start"]);
    marks(&agent, &["STEP", "--step", "0"]);
    marks(&agent, &["STEP", "--step", "1"]);
    let failures = |reason: &str| -> f64 {
        let page = agent.get("/metrics", "").body;
        let series =
            format!("tpuscope_export_failures_total{{exporter=\"tensorboard\",reason=\"{reason}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&*series));
        line.map_or(0.0, |value| value.parse().unwrap())
    };
    eventually("three failures", || (failures("folder") >= 3.0).then_some(()));
    let said = agent.log().matches(unusable).count();
    assert_eq!(said, 1, "{}", agent.log());
    // Somebody else's link in the place of the job's folder.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::create_dir(&there).unwrap();
    eventually("a file", || boards.files("/goodput/").first().cloned());
    eventually("the log says so", || {
        agent.log().contains("event files for TensorBoard are written again").then_some(())
    });
    let job = fs::read_dir(&there).unwrap().next().unwrap().unwrap().path();
    fs::rename(&job, directory.path().join("moved")).unwrap();
    fs::remove_dir_all(directory.path().join("moved")).unwrap();
    symlink(elsewhere.path(), &job).unwrap();
    eventually("a link is refused", || (failures("link") > 0.0).then_some(()));
    assert!(agent.log().contains("is a link or no folder"), "{}", agent.log());
    assert_eq!(event_files(elsewhere.path()), [""; 0].map(PathBuf::from));
}

#[test]
fn two_agents_share_a_folder_once_it_is_not_read_only_any_more() {
    let disk = SmallDisk::new();
    let mounted = |flags: MsFlags| {
        mount(None::<&str>, disk.path(), None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    };
    mounted(MsFlags::MS_RDONLY);
    let boards = Boards::new(disk.path());
    let agents = [Home::new(), Home::new()].map(|home| boards.agent(home));
    for agent in &agents {
        for words in [&["JOB", "--start"][..], &["STEP", "--step", "0"], &["STEP", "--step", "1"]] {
            marks(agent, words);
        }
    }
    for agent in &agents {
        eventually("the log says so", || agent.log().contains("Read-only file system").then_some(()));
        assert!(agent.log().contains("ReadWritePaths="), "{}", agent.log());
    }
    mounted(MsFlags::empty());
    // Each has a file of its own in the run of the job, and TensorBoard shows the points of both.
    let points = || {
        let sizes = boards.files("/goodput/").into_iter().map(|path| fs::metadata(path).unwrap().len());
        sizes.collect::<Vec<_>>()
    };
    let first = eventually("two files", || Some(points()).filter(|sizes| sizes.len() == 2));
    eventually("both grow", || points().iter().zip(&first).all(|(now, before)| now > before).then_some(()));
    let board = read("files", disk.path());
    let (_, run) = board.iter().find(|(run, _)| run.ends_with("/goodput")).unwrap();
    assert!(run["goodput/goodput"].len() >= 4, "{run:?}");
}

#[test]
fn a_full_disk_loses_points_and_nothing_else() {
    let disk = SmallDisk::new();
    let boards = Boards::new(disk.path());
    let mut agent = boards.agent(Home::new());
    marks(&agent, &["JOB", "--start"]);
    marks(&agent, &["STEP", "--step", "0"]);
    marks(&agent, &["STEP", "--step", "1"]);
    let first = boards.grown("/goodput/", 0);
    let filler = disk.path().join("filler");
    let mut full = fs::File::create(&filler).unwrap();
    while full.write_all(&[0; 4096]).is_ok() {}
    eventually("the log says so", || agent.log().contains("No space left on device").then_some(()));
    assert!(agent.alive());
    drop(full);
    fs::remove_file(&filler).unwrap();
    boards.grown("/goodput/", boards.grown("/goodput/", first));
    eventually("the log says so", || {
        agent.log().contains("event files for TensorBoard are written again").then_some(())
    });
    let board = read("files", disk.path());
    let points: Vec<&Vec<_>> = board.values().filter_map(|run| run.get("goodput/goodput")).collect();
    assert!(points.iter().any(|points| points.len() >= 2), "{board:?}");
}
