//! The daemon's log: to the journal, with fields, if standard error is connected to it; otherwise to standard error.
//!
//! An entry is one line, whatever a value in it quotes: a job or a peer must never write a line of its own.

use std::{
    env,
    fmt::Debug,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use tracing::{Subscriber, field::Field, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, field::MakeExt, filter::Targets, fmt, layer::SubscriberExt, registry, reload,
    util::SubscriberInitExt,
};

use super::{journal::Journal, terminal::may_be_styled};
use crate::{
    output::one_line,
    settings::log::{Level, Settings},
};

/// The level of the log of this process.
#[derive(Debug)]
pub struct LogLevel(reload::Handle<Targets, registry::Registry>);

impl LogLevel {
    /// Applies the settings to later messages.
    pub fn set(&self, log: &Settings) {
        // Fails only if the subscriber is gone. Then there is no log.
        let _ = self.0.reload(targets(filter(log.level)));
    }
}

/// Starts logging in this process. A second call has no effect.
pub fn start(log: &Settings) -> LogLevel {
    let (filter, level) = reload::Layer::new(targets(filter(log.level)));
    // Fails only if a subscriber is already set.
    let _ = tracing_subscriber::registry().with(output().with_filter(filter)).try_init();
    LogLevel(level)
}

/// The crates of the agent. Their log targets start with these names. `libtpu` is what the library prints.
const CRATES: [&str; 11] =
    ["cli", "cluster", "export", "host", "jobs", "marks", "model", "sampling", "server", "sessions", "store"];

/// Messages of libraries below warnings are about the libraries themselves.
fn targets(level: LevelFilter) -> Targets {
    let libraries = Targets::new().with_default(level.min(LevelFilter::WARN));
    CRATES
        .into_iter()
        .chain(["xprof", "goodput", "libtpu"])
        .fold(libraries, |targets, name| targets.with_target(name, level))
}

type Boxed = Box<dyn Layer<registry::Registry> + Send + Sync>;

fn output() -> Boxed {
    if stderr_is_the_journal()
        && let Ok(journal) = Journal::connect()
    {
        return Box::new(journal);
    }
    plain()
}

fn plain<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> registry::LookupSpan<'a>,
{
    let layer = fmt::layer().fmt_fields(fields()).with_writer(io::stderr);
    Box::new(layer.with_ansi(may_be_styled(&io::stderr())))
}

/// The message and the fields of an entry, each on its line.
fn fields() -> impl for<'w> fmt::FormatFields<'w> + 'static {
    let field = |writer: &mut fmt::format::Writer<'_>, field: &Field, value: &dyn Debug| {
        let value = one_line(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
            name => write!(writer, "{name}={value}"),
        }
    };
    fmt::format::debug_fn(field).delimited(" ")
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

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        sync::{Arc, Mutex},
    };

    use tracing::Level as TracingLevel;

    use super::*;

    #[test]
    fn every_crate_of_the_agent_logs_at_the_level_of_the_settings() {
        let targets = targets(LevelFilter::INFO);
        let folders = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap();
        let crates = folders.map(Result::unwrap).filter(|folder| folder.path().join("src/lib.rs").exists());
        for name in crates.map(|folder| folder.file_name().into_string().unwrap()) {
            assert!(targets.would_enable(&format!("{name}::module"), &TracingLevel::INFO), "{name}");
        }
        assert!(!targets.would_enable("h2::proto", &TracingLevel::INFO));
        assert!(targets.would_enable("h2::proto", &TracingLevel::WARN));
    }

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_an_entry_quotes_starts_no_line_and_steers_no_terminal() {
        let forged = "\n2026-12-01T04:00:00Z  INFO cli::agent: forged uid=0 \x1b[31mRED\x1b[2J\u{202e}";
        for ansi in [false, true] {
            let lines = Lines::default();
            let writer = lines.clone();
            let layer = fmt::layer().fmt_fields(fields()).with_writer(move || writer.clone()).with_ansi(ansi);
            let subscriber = tracing_subscriber::registry().with(layer);
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(error = %forged, quoted = forged, bytes = 7, "cannot read {forged}");
            });
            let bytes = lines.0.lock().unwrap().clone();
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true), "{text}");
            assert!(
                !text.contains("\x1b[31m") && !text.contains("\x1b[2J") && !text.contains('\u{202e}'),
                "{text:?}"
            );
            let shown = r"\n2026-12-01T04:00:00Z  INFO cli::agent: forged uid=0 \u{1b}[31mRED";
            assert_eq!(text.matches(shown).count(), 3, "{text}");
            assert!(ansi || text.ends_with(" bytes=7\n") && text.contains(" error=\\n2026"), "{text}");
        }
    }

    /// Adds the text of all source files below `folder`.
    fn add_sources(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.extension() {
                _ if entry.is_dir() => add_sources(&entry, text),
                Some(extension) if extension == "rs" => {
                    text.push_str(&std::fs::read_to_string(entry).unwrap());
                }
                _ => {}
            }
        }
    }

    #[test]
    fn the_lines_in_the_docs_are_those_of_the_sources() {
        let docs = include_str!("../../../../docs/status.md");
        let (_, table) = docs.split_once("| text | level | fields |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.map(|row| row.split('|').nth(1).unwrap());
        let texts: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let mut sources = String::new();
        let agent = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        for name in CRATES {
            add_sources(&agent.join(name).join("src"), &mut sources);
        }
        assert!(texts.len() > 20, "{texts:?}");
        for text in texts {
            let (first, verb) = text.rsplit_once(' ').unwrap();
            // `workload {what}` has its last word as an argument.
            let found = sources.contains(&format!("\"{text}"))
                || (sources.contains(&format!("\"{first} {{what}}"))
                    && sources.contains(&format!("\"{verb}\"")));
            assert!(found, "`{text}` is not logged");
        }
    }
}
