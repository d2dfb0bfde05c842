//! The daemon's log: to the journal, with its fields, when standard error is the journal; else to standard error.

use std::{
    env, io,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, registry, util::SubscriberInitExt};

use super::terminal::may_be_styled;
use crate::settings::log::{Level, Log};

/// Starts logging for this process; a second call changes nothing.
pub fn start(log: &Log) {
    let level = filter(log.level);
    // What the libraries say below a warning is about themselves, not about the host.
    let targets = Targets::new().with_target("tpuscope", level).with_default(level.min(LevelFilter::WARN));
    // It fails only where a subscriber is set already.
    let _ = tracing_subscriber::registry().with(output().with_filter(targets)).try_init();
}

type Boxed = Box<dyn Layer<registry::Registry> + Send + Sync>;

fn output() -> Boxed {
    if stderr_is_the_journal()
        && let Ok(journal) = tracing_journald::layer()
    {
        // The syslog levels of the same names; the library's own choice is one louder.
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

/// systemd names the journal's stream by device and inode; a redirected standard error is another file.
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
