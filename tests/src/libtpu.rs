//! Libraries to load, and the libtpu source to load them with.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::{
    device::{Chip, ChipIndex},
    time::{Clock, SystemClock},
    workload::Workloads,
};
use sampling::{
    settings::libtpu::{Enabled, Libtpu as Settings},
    sources::{
        Reading, Source, Tick,
        libtpu::{Libtpu, locate::Surroundings, process::Launch, supervisor::Policy},
    },
};
use tempfile::TempDir;

use crate::{
    harness::{artifact, tpuscope},
    wait::eventually_async,
};

/// A copy of the stand-in libtpu in a folder of its own, laid out like a wheel.
pub struct Staged {
    dir: TempDir,
}

impl Staged {
    /// With these lines of settings; a version gives it a wheel's metadata.
    pub fn new(version: Option<&str>, settings: &str) -> Self {
        let staged = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(staged.dir.path().join("libtpu")).unwrap();
        fs::copy(artifact("libfake_libtpu.so"), staged.library()).unwrap();
        if let Some(version) = version {
            let info = staged.dir.path().join(format!("libtpu-{version}.dist-info"));
            fs::create_dir(&info).unwrap();
            let metadata = format!("Metadata-Version: 2.4\nName: libtpu\nVersion: {version}\n");
            fs::write(info.join("METADATA"), metadata).unwrap();
        }
        staged.set(settings);
        staged
    }

    /// The library.
    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libtpu/libtpu.so")
    }

    /// Replaces its settings; they are read at each call.
    pub fn set(&self, settings: &str) {
        fs::write(self.dir.path().join("libtpu/libtpu.so.conf"), settings).unwrap();
    }

    /// Gives everything to another user.
    pub fn give_to(&self, uid: u32) {
        let inside = self.dir.path().join("libtpu");
        for path in [self.dir.path(), &inside, &self.library(), &inside.join("libtpu.so.conf")] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("root runs these tests");
        }
    }
}

/// How the built binary is started as a child.
pub fn launch() -> Launch {
    Launch { program: tpuscope(), ..Launch::default() }
}

/// A supervisor that hardly waits.
pub fn hasty() -> Policy {
    Policy {
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(2),
        least_age: Duration::ZERO,
        ..Policy::default()
    }
}

/// A source for this library alone.
pub fn source(library: &Path, policy: Policy, owner_copies: bool) -> Libtpu {
    let settings = Settings {
        enabled: Enabled::On,
        path: Some(library.to_owned()),
        owner_copies,
        ..Settings::default()
    };
    Libtpu::with_policy(settings, Surroundings::of_this_process(), launch(), policy)
}

/// A tick of a host with so many chips and no workload.
pub fn tick(chips: u32) -> Tick {
    let chip = |index| Chip { index: ChipIndex(index), ..Chip::default() };
    Tick {
        at: SystemClock.now(),
        chips: (0..chips).map(chip).collect::<Vec<_>>().into(),
        workloads: Arc::new(Workloads::default()),
    }
}

/// Reads once.
pub async fn read(source: &mut Libtpu, tick: &Tick) -> Reading {
    Source::read(source, tick).await
}

/// Reads until `wanted`.
///
/// # Panics
/// When it does not come.
pub async fn read_until(source: &mut Libtpu, wanted: impl Fn(&Reading) -> bool) -> Reading {
    let reading = eventually_async("a reading as wanted", async || {
        let reading = read(source, &tick(0)).await;
        let instead = || format!("{} samples, absent: {:#?}", reading.samples.len(), reading.absent);
        if wanted(&reading) { Ok(reading) } else { Err(instead()) }
    });
    reading.await
}
