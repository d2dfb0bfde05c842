//! Sessions on their way to destinations: captured by a running agent, from a profiler with the real wire.

mod agent;
mod bucket;
mod commands;
mod faults;
mod faults_access;
mod faults_disk;
mod faults_io;
mod file_destination;
mod found;
mod killed;
mod leaving;
mod target;

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use fakes::{
    command::{self, Ended},
    fake_gcs::{BUCKET, FakeGcs},
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::tpuscope,
    wait::{LIMIT, wait_with},
};
use proto::tensorflow::profiler::{XSpace, XStat, x_stat::Value};

use crate::{profiler_agent::Agent, schema::Schema};

/// A user without rights.
const NOBODY: u32 = 65534;
/// A trace that is sent in three parts.
const LARGE: usize = 17 << 20;

/// An agent with one profiler and these settings.
struct UploadHost {
    agent: Agent,
    _profiler: FakeProfiler,
}

impl UploadHost {
    fn start(trace: XSpace, settings: &str) -> Self {
        let profiler = FakeProfiler::start(Mode::Trace(trace));
        Self { agent: Agent::start_with(&[profiler.target()], settings), _profiler: profiler }
    }

    /// With a bucket `bucket` at the double, and the trace's objects below `x/`.
    fn with_bucket(gcs: &FakeGcs, trace: XSpace, more: &str) -> Self {
        let key = gcs.credentials_file();
        let settings = format!(
            "[[destination]]\nname = 'bucket'\nurl = 'gs://{BUCKET}/x'\ncredentials = '{}'\n{more}\n",
            key.display()
        );
        Self::start(trace, &settings)
    }

    /// As a user without rights.
    fn ask_as_nobody(&self, arguments: &[&str]) -> Ended {
        for path in [self.agent.home.path().to_owned(), self.agent.home.path().join("agent.sock")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut command = Command::new(tpuscope());
        command.args(self.agent.arguments(arguments)).current_dir("/").uid(NOBODY).gid(NOBODY);
        command::start_as(command).end()
    }

    fn capture(&self, session: &str, arguments: &[&str]) -> Ended {
        let usual = ["capture", "--duration", "100ms", "--session", session];
        self.agent.ask(&[&usual, arguments].concat())
    }

    /// A file of a session in the agent's store.
    fn stored(&self, session: &str, file: &str) -> Vec<u8> {
        let folder = self.agent.home.path().join("state/sessions/plugins/profile").join(session);
        fs::read(folder.join(file)).unwrap()
    }

    /// The files of a session in the agent's store.
    fn files(&self, session: &str) -> Vec<String> {
        files(&self.agent.home.path().join("state/sessions/plugins/profile").join(session))
    }

    fn uploads(&self) -> Vec<serde_json::Value> {
        let listed = self.agent.ask(&["uploads", "list", "--json"]).json();
        Schema::open("uploads-list").admits(&listed);
        listed["uploads"].as_array().unwrap().clone()
    }

    /// Waits until an upload is as `wanted`.
    fn until_upload(&self, what: &str, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        wait_with(
            what,
            LIMIT,
            || format!("{:?}\n{}", self.uploads(), self.agent.log()),
            || self.uploads().into_iter().find(|upload| wanted(upload)),
        )
    }

    /// Whether each file of the session is at the double below `prefix`, byte for byte, and nothing else.
    fn is_whole(&self, gcs: &FakeGcs, session: &str, prefix: &str) {
        let objects = gcs.objects();
        let there: Vec<_> = objects.keys().filter_map(|name| name.strip_prefix(prefix)).collect();
        assert_eq!(there, self.files(session));
        for file in there {
            assert!(objects[&format!("{prefix}{file}")].content() == self.stored(session, file), "{file}");
        }
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A trace of at least so many bytes.
fn trace_of(bytes: usize) -> XSpace {
    let mut large = trace();
    let piece = |n: u8| XStat { metadata_id: 1, value: Some(Value::BytesValue(vec![n; 1 << 20])) };
    // Each piece of another byte, so that none can stand for another.
    large.planes[0].stats.extend((0..=u8::MAX).cycle().take(bytes.div_ceil(1 << 20)).map(piece));
    large
}

/// A folder that an agent may write to, and the settings for it.
fn folder_destination() -> (tempfile::TempDir, PathBuf, String) {
    let dir = tempfile::tempdir().unwrap();
    let settings =
        format!("[[destination]]\nname = 'folder'\nurl = 'file://{}/{{user}}'\n", dir.path().display());
    let there = dir.path().join("_none");
    fs::create_dir(&there).unwrap();
    (dir, there, settings)
}
