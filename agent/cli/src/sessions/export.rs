//! `tpuscope sessions export`.

#![expect(clippy::cast_precision_loss, reason = "figures for people, rounded when printed")]

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use indicatif::HumanBytes;
use xprof::{
    analysis::{HostReport, PlacedPart, Report, Rules},
    export::{ExportedHost, TraceEvents, operations_csv, steps_csv, trace_events},
    input::Input,
    wording::counted,
};

use super::{
    CommandResult, interrupt,
    joined::{JoinedSessions, SourcePart},
    load,
    location::Location,
    outfile::{OutFile, is_a_folder_or_new},
    progress::ByteProgress,
};
use crate::{
    client,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    output_path, remedies,
};

/// Arguments of `sessions export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of a session of the agent; or a gs:// URL; or a path, which contains `/`, is `.` or ends in .xplane.pb. URLs and
    /// paths name a session folder, a logdir (its newest session is exported), or a file. Several are exported as one session:
    /// the hosts of one window
    #[arg(value_name = "SESSION", required = true, value_parser = Location::parser())]
    sessions: Vec<Location>,
    /// Output format
    #[arg(long, value_enum)]
    format: Format,
    /// Output path: a file for perfetto (compressed with gzip unless the name ends in .json), a folder for csv
    #[arg(short, long, value_name = "OUT", value_parser = output_path::parser())]
    output: PathBuf,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// Chrome trace events, for ui.perfetto.dev and chrome://tracing
    Perfetto,
    /// Two tables: steps.csv and operations.csv
    Csv,
}

/// The JSON answer.
#[derive(Debug, Default, serde::Serialize)]
struct ExportAnswer {
    session: String,
    files: Vec<WrittenFile>,
    hosts: Vec<ShiftedHost>,
    missing: Vec<xprof::analysis::MissingPart>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<TraceEvents>,
}

#[derive(Debug, serde::Serialize)]
struct WrittenFile {
    path: PathBuf,
    bytes: u64,
}

/// A host and the offset that was added to its times.
#[derive(Debug, serde::Serialize)]
struct ShiftedHost {
    host: String,
    file: String,
    offset_ps: i64,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let sessions = JoinedSessions::open(&args.sessions, &args.agent)?;
    let found = sessions.parts();
    let inputs: Vec<&Path> = found.iter().map(|part| part.file.path.as_path()).collect();
    let mut answer = ExportAnswer { session: sessions.name(), ..ExportAnswer::default() };
    match args.format {
        Format::Perfetto => {
            let (out, file) = OutFile::create(&args.output, &inputs)?;
            let report = sessions.analysed(Rules::True, Some(0))?;
            answer.tell(&report);
            let parts = named(&found, &report);
            answer.events = Some(perfetto(&parts, &file, &args.output)?);
            answer.finish(out, &file, &args.output)?;
        }
        Format::Csv => {
            let report = sessions.analysed(Rules::True, None)?;
            answer.tell(&report);
            answer.csv(&report, &inputs, &args.output)?;
        }
    }
    if args.json {
        output::json(&answer)?;
    } else {
        output::print(&answer.text())?;
    }
    Ok(if answer.missing.is_empty() { Exit::Ok } else { Exit::Partial })
}

/// A part that was read.
struct NamedPart<'p> {
    part: &'p SourcePart<'p>,
    /// What its processes are called.
    name: String,
    offset_ps: i64,
}

/// The readable parts, named as `sessions show` does: by their host, and by the file too where a host has several.
fn named<'p>(parts: &'p [SourcePart<'p>], report: &Report) -> Vec<NamedPart<'p>> {
    let (placed, _) = report.time_line();
    let label = |part: &HostReport| {
        let same = placed.iter().filter(|other| other.part.host == part.host).count();
        if same > 1 { format!("{} ({})", part.host, part.file) } else { part.host.clone() }
    };
    let named = placed.iter().filter_map(|placed| {
        let part = parts.iter().find(|part| part.label == placed.part.file)?;
        Some(NamedPart { part, name: label(placed.part), offset_ps: placed.offset_ps })
    });
    named.collect()
}

fn perfetto(parts: &[NamedPart<'_>], file: &File, path: &Path) -> Result<TraceEvents, Failure> {
    let files: Vec<Box<dyn Input + '_>> =
        parts.iter().map(|NamedPart { part, .. }| load::input(part.file, part.remote)).collect();
    let hosts: Vec<_> = parts
        .iter()
        .zip(&files)
        .map(|(part, input)| ExportedHost { host: &part.name, input: &**input, offset_ps: part.offset_ps })
        .collect();
    let mut progress = ByteProgress::new("exporting");
    let mut at = |done, all| progress.at(done, all);
    let mut out = BufWriter::new(file);
    let plain = path.extension().is_some_and(|ending| ending == "json");
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
    // A call that failed says nothing of the trace.
    let call = || parts.iter().find_map(|NamedPart { part, .. }| part.remote?.failure());
    flushed.map_err(|error| call().unwrap_or_else(|| remedies::export(error, path)))
}

/// Creates the folder. Returns false if it exists.
fn create_folder(folder: &Path) -> Result<bool, Failure> {
    if folder.as_os_str() == "-" {
        return Err(remedies::standard_output());
    }
    is_a_folder_or_new(folder)?;
    match fs::create_dir(folder) {
        Ok(()) => {
            interrupt::remove_on_interrupt(folder);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(false),
        Err(error) => Err(remedies::unwritten(folder, &error)),
    }
}

impl ExportAnswer {
    /// What the parts are, where they lie, and what to know before trusting them; losses come first.
    fn tell(&mut self, report: &Report) {
        let (placed, note) = report.time_line();
        let several = placed.len() > 1;
        for PlacedPart { part, .. } in &placed {
            let told = part.losses.iter().map(|loss| match several {
                true => format!("{}: {loss}", part.file),
                false => loss.to_string(),
            });
            let left_out = part.left_out.iter().map(|text| match several {
                true => format!("{}: {text}", part.file),
                false => text.clone(),
            });
            self.warnings.extend(told.chain(left_out));
        }
        self.hosts = placed
            .iter()
            .map(|placed| ShiftedHost {
                host: placed.part.host.clone(),
                file: placed.part.file.clone(),
                offset_ps: placed.offset_ps,
            })
            .collect();
        self.warnings.extend(report.warnings.iter().cloned().chain(note));
        self.missing.clone_from(&report.missing);
    }

    fn csv(&mut self, report: &Report, inputs: &[&Path], folder: &Path) -> Result<(), Failure> {
        let created = create_folder(folder)?;
        let tables = self.tables(report, inputs, folder);
        if tables.is_err() && created {
            // The folder stays if another process put a file into it.
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
            let path = folder.join(name);
            let (out, file) = OutFile::create(&path, inputs)?;
            let mut buffer = BufWriter::new(&file);
            table(report, &mut buffer)
                .and_then(|()| buffer.flush())
                .map_err(|error| remedies::unwritten(&path, &error))?;
            drop(buffer);
            written.push((out, file, path));
        }
        for (out, file, path) in written {
            self.finish(out, &file, &path)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: OutFile, file: &File, path: &Path) -> Result<(), Failure> {
        out.finish(file)?;
        let bytes = file.metadata().map_err(|error| remedies::unwritten(path, &error))?.len();
        self.files.push(WrittenFile { path: path.to_owned(), bytes });
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            text += &format!("{}: {}\n", one_line(&file.path.display().to_string()), HumanBytes(file.bytes));
        }
        if let Some(events) = &self.events {
            text += &format!(
                "{} on {} of {}\n",
                counted(events.events, "event"),
                counted(events.threads, "thread"),
                counted(events.processes, "process")
            );
            if events.timeless > 0 {
                text +=
                    &format!("omitted: {} without a time\n", counted(events.timeless, "aggregated event"));
            }
            if events.far > 0 {
                text += &format!("left out: {} far outside the session\n", counted(events.far, "event"));
            }
            if events.overfull > 0 {
                text += &format!(
                    "perhaps not displayed: {}, which overlap others, or whose line is long and not in order\n",
                    counted(events.overfull, "event")
                );
            }
        }
        for host in self.hosts.iter().filter(|host| host.offset_ps != 0) {
            text += &format!(
                "{}: times shifted by {:.3} ms\n",
                one_line(&host.file),
                host.offset_ps as f64 / 1e9
            );
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
