//! A library on a disk that does not answer.

use std::{
    path::{Path, PathBuf},
    sync::{Condvar, Mutex},
    time::Duration,
};

use model::{
    snapshot::HostSnapshot,
    time::{ManualClock, Timestamp},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{sampler::Sampler, settings, sources::sim::SimSource};

/// A disk that answers nothing before it is released, and counts the threads that wait for it.
#[derive(Debug, Default)]
struct HungDisk {
    waiting: Mutex<(usize, bool)>,
    released: Condvar,
}

impl HungDisk {
    fn wait(&self) {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.0 += 1;
        let _answer = self.released.wait_while(waiting, |(_, released)| !*released).unwrap();
    }

    fn release(&self) {
        self.waiting.lock().unwrap().1 = true;
        self.released.notify_all();
    }

    /// Returns the number of threads that have called, once there is one.
    fn threads(&self) -> usize {
        loop {
            match self.waiting.lock().unwrap().0 {
                0 => std::thread::yield_now(),
                threads => return threads,
            }
        }
    }
}

/// Releases the disk in any case: the end of the test waits for its blocking threads.
struct ReleaseAtEnd(Arc<HungDisk>);

impl Drop for ReleaseAtEnd {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl LibraryFiles for HungDisk {
    fn find(&self, _: &Settings, _: &LibrarySearch, _: &Workloads) -> Result<Trusted, StartError> {
        self.wait();
        Err(StartError::NotFound)
    }

    fn identity(&self, _: &Path) -> Option<FileIdentity> {
        self.wait();
        None
    }
}

fn source(disk: &Arc<HungDisk>) -> LibtpuSource {
    let settings = Settings { enabled: Enabled::On, ..Settings::default() };
    let search = LibrarySearch { root: PathBuf::from("/"), named: vec![], home: None, venv: None };
    LibtpuSource { files: disk.clone(), ..LibtpuSource::new(settings, search, ChildCommand::default()) }
}

#[tokio::test(start_paused = true)]
async fn a_search_that_hangs_moves_no_tick_and_takes_one_thread() {
    const SECONDS: u64 = 180;
    let disk = Arc::new(HungDisk::default());
    let _release = ReleaseAtEnd(disk.clone());
    let clock = Arc::new(ManualClock::at(Timestamp(0)));
    let settings = settings::sampler::Settings { sim_chips: 1, ..Default::default() };
    let sampler = Sampler::new(&settings, clock.clone());
    let (_sender, snapshot) = watch::channel(HostSnapshot::default());
    let stop = CancellationToken::new();
    let second = Duration::from_secs(1);
    let drive = |source: Box<dyn Source>| {
        let (sampler, snapshot, stop) = (sampler.clone(), snapshot.clone(), stop.clone());
        tokio::spawn(async move { sampler.drive(source, second, snapshot, stop).await })
    };
    let tasks = [drive(Box::new(source(&disk))), drive(Box::new(SimSource::new(1)))];
    for passed in 0..SECONDS {
        let read = |view: &crate::sampler::View| {
            view.source(Origin::Sim).is_some_and(|sim| sim.counters.reads == passed + 1)
        };
        // Paused time does not advance by itself while a blocking call runs.
        while !read(&sampler.view()) {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(second).await;
        clock.advance(second);
    }
    let view = sampler.view();
    let sim = view.source(Origin::Sim).unwrap();
    assert_eq!((sim.counters.missed, sim.counters.overruns), (0, 0), "{:?}", sim.counters);
    let libtpu = view.source(Origin::Libtpu).unwrap();
    assert!(
        libtpu.absent().iter().any(|absence| absence.why.contains("the file system does not answer")),
        "{:?}",
        libtpu.absent()
    );
    assert_eq!(disk.threads(), 1);
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_check_of_the_file_hangs_the_child_stays_in_use() {
    let disk = Arc::new(HungDisk::default());
    let _release = ReleaseAtEnd(disk.clone());
    let mut source = source(&disk);
    let child =
        ChildProcess::start(&ChildCommand { program: PathBuf::from("/bin/true"), ..ChildCommand::default() });
    source.child = ChildState::Loaded(Box::new(LoadedChild {
        child: child.unwrap(),
        library: Trusted { path: PathBuf::from("/mnt/libtpu.so"), user: None },
        file: Some((1, 2, 3)),
        info: LibraryInfo::default(),
        names: Arc::from([]),
        next: 0,
    }));
    for _ in 0..3 {
        let time = tokio::time::advance(2 * FILE_CHECK);
        tokio::join!(source.replace_for_new_file(), time);
        assert!(matches!(source.child, ChildState::Loaded(_)));
    }
    assert_eq!(disk.threads(), 1);
    disk.release();
    // It answers again: the file is another one.
    while matches!(source.child, ChildState::Loaded(_)) {
        source.replace_for_new_file().await;
        tokio::task::yield_now().await;
    }
}
