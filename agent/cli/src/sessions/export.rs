//! `tpuscope sessions export`.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use indicatif::HumanBytes;
use xprof::{
    analysis::{Report, Rules},
    export::{ExportError, HostTrace, TraceEvents, operations_csv, steps_csv, trace_events},
    input::FileInput,
    session::Part,
    wire,
};

use super::{
    Outcome, interrupt, load,
    outfile::{OutFile, unwritten},
    progress::Progress,
};
use crate::{
    exit::{Exit, Failure, one_line},
    output,
};

/// Arguments of `sessions export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A session folder, a logdir (its newest session is exported), or one .xplane.pb file
    path: PathBuf,
    /// What to write
    #[arg(long, value_enum)]
    format: Format,
    /// Where: a file for perfetto (plain if its name ends in .json, else gzip), a folder for csv
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// Trace events that ui.perfetto.dev and chrome://tracing open
    Perfetto,
    /// steps.csv and operations.csv
    Csv,
}

/// The JSON answer.
#[derive(Debug, Default, serde::Serialize)]
struct Answer {
    session: String,
    files: Vec<Written>,
    hosts: Vec<Placed>,
    missing: Vec<xprof::analysis::MissingPart>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<TraceEvents>,
}

#[derive(Debug, serde::Serialize)]
struct Written {
    path: PathBuf,
    bytes: u64,
}

/// A host, and what was added to its times.
#[derive(Debug, serde::Serialize)]
struct Placed {
    host: String,
    file: String,
    offset_ps: i64,
}

pub(super) fn run(args: &Args) -> Outcome {
    let loaded = load::parts(&args.path)?;
    let found = loaded.session.parts.clone();
    let inputs: Vec<&Path> = found.iter().map(|part| part.path.as_path()).collect();
    let mut answer = Answer {
        session: loaded.session.name.clone(),
        warnings: loaded.warnings.clone(),
        ..Answer::default()
    };
    match args.format {
        Format::Perfetto => {
            let (out, file) = OutFile::create(&args.output, &inputs)?;
            // One part lies on its own time line: nothing to align, nothing to analyse.
            let parts = match found.as_slice() {
                [part] => {
                    answer.missing = loaded.missing;
                    vec![(part, 0)]
                }
                parts => aligned(parts, &loaded.analysed(&args.path, Rules::True, None)?, &mut answer),
            };
            answer.hosts = parts.iter().map(|(part, offset)| Placed::of(part, *offset)).collect();
            answer.events = Some(perfetto(&parts, &file, &args.output)?);
            answer.finish(out, &file, &args.output)?;
        }
        Format::Csv => {
            let report = loaded.analysed(&args.path, Rules::True, None)?;
            answer.hosts = report
                .hosts
                .iter()
                .zip(&report.alignment.offsets)
                .map(|(host, offset)| Placed {
                    host: host.host.clone(),
                    file: host.file.clone(),
                    offset_ps: offset.offset_ps,
                })
                .collect();
            answer.csv(&report, &inputs, &args.output)?;
            answer.missing = report.missing;
        }
    }
    if args.json {
        output::json(&answer)?;
    } else {
        output::print(&answer.text())?;
    }
    Ok(if answer.missing.is_empty() { Exit::Ok } else { Exit::Partial })
}

/// The parts that could be read, and what brings each onto the first one's time line.
fn aligned<'p>(parts: &'p [Part], report: &Report, answer: &mut Answer) -> Vec<(&'p Part, i64)> {
    answer.missing.clone_from(&report.missing);
    let offsets = report.hosts.iter().zip(&report.alignment.offsets);
    offsets
        .filter_map(|(host, offset)| {
            let part = parts.iter().find(|part| load::file_name(&part.path) == host.file)?;
            Some((part, offset.offset_ps))
        })
        .collect()
}

fn perfetto(parts: &[(&Part, i64)], file: &File, place: &Path) -> Result<TraceEvents, Failure> {
    let files: Vec<_> = parts.iter().map(|(part, _)| FileInput::new(&part.path)).collect();
    let hosts: Vec<_> = parts
        .iter()
        .zip(&files)
        .map(|((part, offset_ps), input)| HostTrace { host: &part.name, input, offset_ps: *offset_ps })
        .collect();
    let mut progress = Progress::new("exporting");
    let mut at = |done, all| progress.at(done, all);
    let mut out = BufWriter::new(file);
    let plain = place.extension().is_some_and(|ending| ending == "json");
    let exported = if plain {
        trace_events(&hosts, &mut out, &mut at)
    } else {
        let mut zip = GzEncoder::new(&mut out, Compression::fast());
        trace_events(&hosts, &mut zip, &mut at).and_then(|events| {
            zip.finish()?;
            Ok(events)
        })
    };
    let flushed = exported.and_then(|events| {
        out.flush()?;
        Ok(events)
    });
    flushed.map_err(|error| failure(&error, place))
}

fn failure(error: &ExportError, place: &Path) -> Failure {
    match error {
        ExportError::Write(error) => unwritten(place, error),
        ExportError::Read { source, .. } => {
            let exit = super::unopened_exit(source);
            Failure::new(exit, error).remedy(super::unopened_remedy(exit))
        }
        ExportError::NoTrace { file, why } => super::no_trace(file, *why),
        ExportError::Input { source: wire::Error::Io { .. }, .. } => Failure::new(Exit::Internal, error),
        ExportError::Input { file, .. } => super::foreign::foreign(Path::new(file)).unwrap_or_else(|| {
            Failure::new(Exit::BadInput, error)
                .remedy("copy or capture the file again; it must be an .xplane.pb as the profiler wrote it")
        }),
    }
}

/// Sees to it that the folder is there; whether it was made for this.
fn made(folder: &Path) -> Result<bool, Failure> {
    match fs::create_dir(folder) {
        Ok(()) => {
            interrupt::leaves(folder);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Failure::new(Exit::Conflict, format_args!("{} is not a folder", folder.display()))
                .remedy("csv is two files: name a folder after -o"))
        }
        Err(error) => Err(unwritten(folder, &error)),
    }
}

impl Placed {
    fn of(part: &Part, offset_ps: i64) -> Self {
        Self { host: part.host.clone(), file: load::file_name(&part.path), offset_ps }
    }
}

impl Answer {
    fn csv(&mut self, report: &Report, inputs: &[&Path], folder: &Path) -> Result<(), Failure> {
        let ours = made(folder)?;
        let tables = self.tables(report, inputs, folder);
        if tables.is_err() && ours {
            // Stays only where something else was put in it meanwhile.
            let _ = fs::remove_dir(folder);
        }
        tables
    }

    fn tables(&mut self, report: &Report, inputs: &[&Path], folder: &Path) -> Result<(), Failure> {
        let mut written = Vec::new();
        for (name, table) in [
            ("steps.csv", steps_csv as fn(&Report, &mut dyn Write) -> io::Result<()>),
            ("operations.csv", operations_csv),
        ] {
            let place = folder.join(name);
            let (out, file) = OutFile::create(&place, inputs)?;
            let mut buffer = BufWriter::new(&file);
            table(report, &mut buffer)
                .and_then(|()| buffer.flush())
                .map_err(|error| unwritten(&place, &error))?;
            drop(buffer);
            written.push((out, file, place));
        }
        for (out, file, place) in written {
            self.finish(out, &file, &place)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: OutFile, file: &File, place: &Path) -> Result<(), Failure> {
        out.finish(file)?;
        let bytes = file.metadata().map_err(|error| unwritten(place, &error))?.len();
        self.files.push(Written { path: place.to_owned(), bytes });
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            text += &format!("{}: {}\n", one_line(&file.path.display().to_string()), HumanBytes(file.bytes));
        }
        if let Some(events) = &self.events {
            text += &format!(
                "{} events on {} threads of {} processes\n",
                events.events, events.threads, events.processes
            );
            if events.timeless > 0 {
                text += &format!("{} aggregated events have no time and are left out\n", events.timeless);
            }
            if events.overfull > 0 {
                text += &format!(
                    "{} events may not be shown: they overlap others, or their line is long and out of order\n",
                    events.overfull
                );
            }
        }
        for host in self.hosts.iter().filter(|host| host.offset_ps != 0) {
            text +=
                &format!("{}: times moved by {:.3} ms\n", one_line(&host.file), host.offset_ps as f64 / 1e9);
        }
        for missing in &self.missing {
            text += &format!("missing: {} {}\n", one_line(&missing.file), one_line(&missing.why));
        }
        for warning in &self.warnings {
            text += &format!("warning: {}\n", one_line(warning));
        }
        text
    }
}
