//! SIGHUP: reads the settings again. What can change while the agent runs does; what cannot is named in the log. Settings
//! with a fault change nothing.

use std::{sync::Arc, time::Duration};

use ::jobs::Jobs;
use server::remote::{RemoteListener, settings::RemoteSettings};
use sessions::capture_runner::CaptureRunner;
use store::{AsyncStore, uploads::Uploads};
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
    time::timeout,
};
use tracing::{info, warn};

use super::{
    Args,
    mark_services::MarkServices,
    session_services::{Past, upload_settings},
};
use crate::{
    exit::Exit,
    failure::Failure,
    lifecycle::{
        logging::LogLevel,
        signals::ReloadSignals,
        task_supervisor::{OnEnd, Stage, TaskSupervisor},
    },
    settings::{self, Config},
    settings_args::{self, READ_LIMIT},
};

/// The parts of the agent whose settings can change while it runs.
pub(super) struct Reloadable {
    pub(super) log_level: LogLevel,
    pub(super) allowed_hosts: watch::Sender<Vec<String>>,
    pub(super) captures: Arc<CaptureRunner>,
    pub(super) store: AsyncStore,
    pub(super) uploads: Uploads,
    pub(super) past: Past,
    pub(super) jobs: Jobs,
    pub(super) marks: MarkServices,
    pub(super) remote: Option<Arc<RemoteListener>>,
}

struct Reloader {
    args: Args,
    /// The settings in force.
    config: Config,
    parts: Reloadable,
    signals: ReloadSignals,
    reads: BoundedReads,
}

/// Starts the task that waits for SIGHUP.
pub(super) fn start(
    supervisor: &mut TaskSupervisor,
    args: &Args,
    config: &Config,
    parts: Reloadable,
    signals: ReloadSignals,
) {
    let reloader = Reloader {
        args: args.clone(),
        config: config.clone(),
        parts,
        signals,
        reads: BoundedReads::default(),
    };
    let reloader = Arc::new(Mutex::new(reloader));
    supervisor.task(Stage::Listeners, "reload", OnEnd::Restart, move |stop| {
        let reloader = reloader.clone();
        async move {
            let mut reloader = reloader.lock().await;
            stop.run_until_cancelled(reloader.run()).await;
            Ok(())
        }
    });
}

impl Reloader {
    async fn run(&mut self) {
        loop {
            self.signals.next().await;
            let args = self.args.clone();
            match self.reads.run(READ_LIMIT, move || read_again(&args)).await {
                Ok(config) => self.apply(&config).await,
                Err(failure) => {
                    warn!("settings not reloaded, the earlier ones stay in force: {}", failure.what);
                }
            }
        }
    }

    async fn apply(&mut self, read: &Config) {
        let config = with_reloadable_of(&self.config, read);
        let changed = differences(&self.config, &config);
        let at_restart = differences(&config, read);
        self.parts.log_level.set(&config.log);
        self.parts.allowed_hosts.send_replace(config.api.allowed_hosts.clone());
        self.parts.captures.set_settings(config.capture.clone());
        self.parts.uploads.set_settings(upload_settings(&config));
        self.parts.past.set_settings(&config);
        self.parts.jobs.set_settings(&config.jobs);
        self.parts.marks.set_settings(&config);
        if let Some(remote) = &self.parts.remote {
            remote.set_settings(&config.api_remote);
        }
        let limits = config.store.clone();
        if let Err(error) = self
            .parts
            .store
            .call(move |store| {
                store.set_limits(limits);
                Ok(())
            })
            .await
        {
            warn!("the limits of the store were not reloaded: {error}");
        }
        self.config = config;
        info!(
            "settings reloaded; changed: {}; changed at the next start: {}",
            list(&changed),
            list(&at_restart)
        );
    }
}

/// Reads of the settings. The file may be on a file system that does not answer, and the user database a directory server.
#[derive(Default)]
struct BoundedReads {
    /// A read that was not finished in time.
    late: Option<JoinHandle<Result<Config, Failure>>>,
}

impl BoundedReads {
    /// The result of `read`, which blocks, within `limit`. A thread that hangs cannot be stopped, so that there is at most
    /// one of them.
    async fn run(
        &mut self,
        limit: Duration,
        read: impl FnOnce() -> Result<Config, Failure> + Send + 'static,
    ) -> Result<Config, Failure> {
        if self.late.as_ref().is_some_and(|late| !late.is_finished()) {
            return Err(Failure::new(
                Exit::Timeout,
                "the read of an earlier reload still waits for its files",
            ));
        }
        let mut reading = tokio::task::spawn_blocking(read);
        if let Ok(read) = timeout(limit, &mut reading).await {
            return read.unwrap_or_else(|error| Err(Failure::internal(error)));
        }
        self.late = Some(reading);
        let what = format!("the settings could not be read within {} s", limit.as_secs());
        Err(Failure::new(Exit::Timeout, what))
    }
}

fn read_again(args: &Args) -> Result<Config, Failure> {
    let config = args.load_unbounded()?.config;
    match settings_args::check_here(&config).into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(config),
    }
}

/// The settings of `running`, but those that can change while the agent runs from `read`.
fn with_reloadable_of(running: &Config, read: &Config) -> Config {
    let mut config = running.clone();
    config.log = read.log.clone();
    config.store = read.store.clone();
    config.upload = read.upload.clone();
    config.recorder = read.recorder.clone();
    config.jobs = read.jobs.clone();
    config.destination = read.destination.clone();
    config.api.allowed_hosts.clone_from(&read.api.allowed_hosts);
    // Another address needs another listener.
    config.api_remote = RemoteSettings { listen: running.api_remote.listen, ..read.api_remote.clone() };
    // Whether there is a socket is decided at the start.
    if running.marks.max_size.get() > 0 && read.marks.max_size.get() > 0 {
        config.marks =
            ::marks::settings::Settings { socket: running.marks.socket.clone(), ..read.marks.clone() };
    }
    config.capture =
        sessions::settings::Settings { max_captures: running.capture.max_captures, ..read.capture.clone() };
    config
}

/// The names of the settings that differ.
fn differences(one: &Config, other: &Config) -> Vec<String> {
    // Both were read from TOML, which can therefore hold them.
    let (Ok(one), Ok(other)) = (settings::values(one), settings::values(other)) else { return Vec::new() };
    let pairs = one.into_iter().zip(other).flat_map(|((section, one), (_, other))| {
        let changed = one.into_iter().zip(other).filter(|(one, other)| one != other);
        changed.map(move |((key, _), _)| settings::setting_name(section, key)).collect::<Vec<_>>()
    });
    pairs.collect()
}

fn list(settings: &[String]) -> String {
    if settings.is_empty() { "none".into() } else { settings.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Layers, load};

    fn config(flags: &[&str]) -> Config {
        let flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
        load(&Layers { flags: &flags, ..Layers::default() }).unwrap().config
    }

    #[tokio::test]
    async fn a_read_that_hangs_does_not_hang_later_reloads() {
        let mut reads = BoundedReads::default();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            let _ = wait.recv();
            Ok(Config::default())
        };
        let late = reads.run(Duration::from_millis(1), hangs).await.unwrap_err();
        assert!(late.what.contains("could not be read within"), "{}", late.what);
        let second = reads.run(READ_LIMIT, || Ok(Config::default())).await.unwrap_err();
        assert!(second.what.contains("an earlier reload still waits"), "{}", second.what);
        drop(end);
        while reads.late.as_ref().is_some_and(|late| !late.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(reads.run(READ_LIMIT, || Ok(Config::default())).await.unwrap(), Config::default());
    }

    #[test]
    fn what_can_change_changes_and_the_rest_is_named() {
        let running = config(&["agent.host=a"]);
        let read = config(&[
            "agent.host=b",
            "log.level=debug",
            "store.max_age=1h",
            "api.allowed_hosts=['x']",
            "api.remote.allow=[{san='spiffe://x/y', role='viewer'}]",
            "capture.max_duration=7s",
            "capture.max_captures=9",
            "sampler.interval=5s",
            "device.extra=[]",
            "upload.parallel=3",
            "recorder.mode=on",
            "jobs.max_age=30d",
            "marks.max_rate=7",
            "marks.socket=/run/other.sock",
            "destination=[{name='a', url='file:///mnt'}]",
        ]);
        let in_force = with_reloadable_of(&running, &read);
        let changed = [
            "api.allowed_hosts",
            "api.remote.allow",
            "log.level",
            "capture.max_duration",
            "recorder.mode",
            "jobs.max_age",
            "marks.max_rate",
            "store.max_age",
            "upload.parallel",
            "destination",
        ];
        assert_eq!(differences(&running, &in_force), changed);
        let at_restart = ["agent.host", "sampler.interval", "capture.max_captures", "marks.socket"];
        assert_eq!(differences(&in_force, &read), at_restart);
        assert_eq!(differences(&read, &read), [""; 0]);
        let without = with_reloadable_of(&running, &config(&["marks.max_size=0B"]));
        assert_eq!(differences(&running, &without), [""; 0], "the socket is there until the next start");
    }
}
