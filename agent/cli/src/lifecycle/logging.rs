//! The daemon's log: to the journal, with fields, if standard error is connected to it; otherwise to standard error.

use std::{
    env, io,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, registry, util::SubscriberInitExt};

use super::terminal::may_be_styled;
use crate::settings::log::{Level, Settings};

/// Starts logging in this process. A second call has no effect.
pub fn start(log: &Settings) {
    let level = filter(log.level);
    // Messages of libraries below warnings are about the libraries themselves.
    let targets = Targets::new().with_target("tpuscope", level).with_default(level.min(LevelFilter::WARN));
    // Fails only if a subscriber is already set.
    let _ = tracing_subscriber::registry().with(output().with_filter(targets)).try_init();
}

type Boxed = Box<dyn Layer<registry::Registry> + Send + Sync>;

fn output() -> Boxed {
    if stderr_is_the_journal()
        && let Ok(journal) = tracing_journald::layer()
    {
        // The syslog levels of the same names. The library's default is one level higher.
        let priorities = PriorityMappings {
            info: Priority::Informational,
            debug: Priority::Debug,
            trace: Priority::Debug,
            ..PriorityMappings::new()
        };
        return Box::new(
            journal.with_syslog_identifier("tpuscope".into()).with_priority_mappings(priorities),
        );
    }
    plain()
}

fn plain<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> registry::LookupSpan<'a>,
{
    Box::new(tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(may_be_styled(&io::stderr())))
}

/// systemd names the journal's stream by device and inode. A redirected standard error is another file.
fn stderr_is_the_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else { return false };
    let metadata = std::fs::File::from(stderr).metadata();
    metadata.is_ok_and(|metadata| stream == format!("{}:{}", metadata.dev(), metadata.ino()))
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
