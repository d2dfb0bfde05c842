//! Trace files and sessions on disk: what cannot be read, and what cannot be written.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use sessions::fetch::FetchError;
use xprof::{
    export::ExportError, format::ForeignFormat, input::open_regular, merge::MergeError, reader::NoTrace,
    session::SessionError, wire,
};

use super::{
    capture::session_folder,
    connection::{call_timeout, refused},
};
use crate::{exit::Exit, failure::Failure};

const NOT_AN_XPLANE: &str = "name an .xplane.pb file as the profiler wrote it";
const UNPACK_TAR: &str = "unpack it with tar and name the folder or an .xplane.pb file in it";
const DAMAGED: &str =
    "copy or capture the file again; it must be an .xplane.pb file as the profiler wrote it";

/// A trace file that cannot be used.
#[derive(Debug)]
pub(crate) struct TraceFileError {
    pub(crate) path: PathBuf,
    pub(crate) fault: TraceFileFault,
}

/// What is wrong with a trace file. The text does not repeat the file's name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceFileFault {
    #[error("{0}")]
    Open(io::Error),
    #[error("{0}")]
    Read(wire::Error),
    #[error("{0}")]
    NoTrace(NoTrace),
    #[error("is {0}, not an XSpace")]
    Foreign(ForeignFormat),
}

impl TraceFileError {
    pub(crate) fn open(path: &Path, error: io::Error) -> Self {
        Self { path: path.to_owned(), fault: TraceFileFault::Open(error) }
    }

    /// A file that could not be read. Reads it again to recognise another format.
    pub(crate) fn read(path: &Path, error: wire::Error) -> Self {
        let fault = foreign_format(path).map_or(TraceFileFault::Read(error), TraceFileFault::Foreign);
        Self { path: path.to_owned(), fault }
    }

    /// A readable file without a trace. Reads it again to recognise another format.
    pub(crate) fn no_trace(path: &Path, why: NoTrace) -> Self {
        let format = if why == NoTrace::Foreign { foreign_format(path) } else { None };
        let fault = format.map_or(TraceFileFault::NoTrace(why), TraceFileFault::Foreign);
        Self { path: path.to_owned(), fault }
    }
}

impl fmt::Display for TraceFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = match self.fault {
            TraceFileFault::Open(_) | TraceFileFault::Read(_) => ":",
            TraceFileFault::NoTrace(_) | TraceFileFault::Foreign(_) => "",
        };
        write!(f, "{}{colon} {}", self.path.display(), self.fault)
    }
}

impl From<TraceFileError> for Failure {
    fn from(error: TraceFileError) -> Self {
        let (exit, remedy) = match &error.fault {
            TraceFileFault::Open(cause) => unopened(cause),
            TraceFileFault::Read(wire::Error::Io { .. }) => (Exit::Internal, DAMAGED),
            TraceFileFault::Read(_) => (Exit::BadInput, DAMAGED),
            TraceFileFault::NoTrace(NoTrace::Empty) => (Exit::BadInput, "copy or capture the file again"),
            TraceFileFault::NoTrace(NoTrace::Foreign) => (Exit::BadInput, NOT_AN_XPLANE),
            TraceFileFault::NoTrace(NoTrace::NoPlane) => {
                (Exit::EmptyTrace, "capture again while the workload runs")
            }
            TraceFileFault::Foreign(format) => (Exit::BadInput, foreign_remedy(format)),
        };
        Self::new(exit, error).remedy(remedy)
    }
}

fn foreign_format(path: &Path) -> Option<ForeignFormat> {
    ForeignFormat::of(open_regular(path).ok()?).ok()?
}

fn foreign_remedy(format: &ForeignFormat) -> &'static str {
    match format {
        ForeignFormat::Gzip(None) => "unpack it with gunzip and name the result",
        ForeignFormat::ChromeTrace => "name the .xplane.pb file beside it; Perfetto opens this one",
        ForeignFormat::Gzip(Some(inside)) => match **inside {
            ForeignFormat::ChromeTrace => "name the .xplane.pb file beside it; Perfetto opens this one",
            ForeignFormat::Tar => UNPACK_TAR,
            _ => NOT_AN_XPLANE,
        },
        ForeignFormat::Zip => "unpack it with unzip and name the folder or an .xplane.pb file in it",
        ForeignFormat::Zstd => "unpack it with unzstd and name the result",
        ForeignFormat::Bzip2 => "unpack it with bunzip2 and name the result",
        ForeignFormat::Xz => "unpack it with unxz and name the result",
        ForeignFormat::Tar => UNPACK_TAR,
        ForeignFormat::LfsPointer => "fetch the file itself: git lfs pull",
        ForeignFormat::Html => "download the file again: the server sent a web page",
        ForeignFormat::Xml => {
            "download the file again: storage servers send such a document instead of a file"
        }
        ForeignFormat::Json | ForeignFormat::Sqlite | ForeignFormat::Text => NOT_AN_XPLANE,
    }
}

fn unopened(error: &io::Error) -> (Exit, &'static str) {
    match error.kind() {
        io::ErrorKind::NotFound => (Exit::NotFound, "check the path"),
        io::ErrorKind::PermissionDenied => (Exit::Permission, "run as a user who can read it"),
        // Not a regular file.
        io::ErrorKind::InvalidInput => (Exit::BadInput, "save the trace to a file and name that"),
        _ => (Exit::Internal, ""),
    }
}

/// The name of a session that is also that of a trace or an archive in the current folder.
pub(crate) fn name_of_a_file(name: &str) -> Failure {
    Failure::new(
        Exit::Usage,
        format_args!("{name} is taken for the name of a session of the agent, and is a file here"),
    )
    .remedy(format_args!("for the file: ./{name}"))
}

/// A path without a session.
pub(crate) fn no_session(error: &SessionError) -> Failure {
    let failure = |exit| Failure::new(exit, error);
    match error {
        SessionError::NotFound(_) => failure(Exit::NotFound).remedy("check the path"),
        SessionError::NotAFile(_) => failure(Exit::BadInput).remedy("save the trace to a file and name that"),
        SessionError::NoSessions(_) => failure(Exit::NotFound)
            .remedy("name a session folder, a logdir with plugins/profile in it, or an .xplane.pb file"),
        SessionError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            failure(Exit::Permission).remedy("run as a user who can read it")
        }
        SessionError::Exists(_)
        | SessionError::Link(_)
        | SessionError::Elsewhere(_)
        | SessionError::Running(_)
        | SessionError::NoParts(_)
        | SessionError::Io { .. } => failure(Exit::Internal),
    }
}

/// Traces could not be merged into `output`.
pub(crate) fn merge(error: MergeError, output: &Path) -> Failure {
    let text = error.to_string();
    let failed = |exit| Failure::new(exit, text);
    match error {
        MergeError::Write(error) => unwritten(output, &error),
        MergeError::Read { source, .. } => {
            let (exit, remedy) = unopened(&source);
            failed(exit).remedy(remedy)
        }
        // A file that ends before its length is damaged, also if it was cut while it was read.
        MergeError::Input { source: wire::Error::Io { source, .. }, .. }
            if source.kind() != io::ErrorKind::UnexpectedEof =>
        {
            failed(Exit::Internal)
        }
        MergeError::NoTrace { file, why } => TraceFileError::no_trace(Path::new(&file), why).into(),
        MergeError::Input { file, .. } => match foreign_format(Path::new(&file)) {
            Some(format) => foreign(file, format),
            None => failed(Exit::BadInput).remedy(
                "leave it out, or copy or capture it again; it must be an .xplane.pb file as the profiler wrote it",
            ),
        },
        MergeError::NoStart(_) => {
            failed(Exit::BadInput).remedy("leave it out: its position among the others is unknown")
        }
        MergeError::NotOneProcess { .. } => failed(Exit::BadInput).remedy(
            "merge the files of each process separately; `tpuscope sessions export` aligns several hosts",
        ),
        MergeError::Nothing => failed(Exit::Usage),
    }
}

/// A folder instead of a segment.
pub(crate) fn segment_is_a_folder(path: &Path) -> Failure {
    Failure::new(Exit::NotFound, format_args!("{} is a folder", path.display()))
        .remedy("give the .xplane.pb files of one process")
}

/// A segment that is named twice.
pub(crate) fn segment_twice(path: &Path) -> Failure {
    Failure::new(Exit::Usage, format_args!("{} is given twice", path.display()))
        .remedy("give each segment once")
}

/// A trace file that cannot be read.
pub(crate) fn unreadable_trace(exit: Exit, path: &Path, why: impl fmt::Display) -> Failure {
    Failure::new(exit, format_args!("{} {why}", path.display())).remedy("copy or capture the file again")
}

/// A session of which no part can be read.
pub(crate) fn no_readable_part(exit: Exit, path: &Path, parts: impl fmt::Display) -> Failure {
    Failure::new(exit, format_args!("{}: no part can be read: {parts}", path.display()))
        .remedy("capture again, or name a part that is whole")
}

/// A session could not be exported to `output`.
pub(crate) fn export(error: ExportError, output: &Path) -> Failure {
    let text = error.to_string();
    match error {
        ExportError::Write(error) => unwritten(output, &error),
        ExportError::Read { source, .. } => {
            let (exit, remedy) = unopened(&source);
            Failure::new(exit, text).remedy(remedy)
        }
        ExportError::NoTrace { file, why } => TraceFileError::no_trace(Path::new(&file), why).into(),
        ExportError::Input { source: wire::Error::Io { .. }, .. } => Failure::internal(text),
        ExportError::Input { file, .. } => match foreign_format(Path::new(&file)) {
            Some(format) => foreign(file, format),
            None => Failure::new(Exit::BadInput, text).remedy(DAMAGED),
        },
    }
}

fn foreign(file: String, format: ForeignFormat) -> Failure {
    TraceFileError { path: file.into(), fault: TraceFileFault::Foreign(format) }.into()
}

/// Why a file cannot be replaced by an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutputConflict {
    #[error("is a link to a file that does not exist")]
    DanglingLink,
    #[error("is a folder")]
    Folder,
    #[error("is not a regular file and is not replaced")]
    NotRegular,
    #[error("is one of the inputs and is not overwritten")]
    Input,
}

/// The path of an output is taken.
pub(crate) fn output_conflict(path: &Path, conflict: OutputConflict) -> Failure {
    let remedy = match conflict {
        OutputConflict::DanglingLink | OutputConflict::NotRegular => "name a regular file with -o",
        OutputConflict::Folder => "name a file with -o",
        OutputConflict::Input => "name another file with -o",
    };
    Failure::new(Exit::Conflict, format_args!("{} {conflict}", path.display())).remedy(remedy)
}

/// The output must be a folder and is a file.
pub(crate) fn not_a_folder(path: &Path) -> Failure {
    Failure::new(Exit::Conflict, format_args!("{} is not a folder", path.display()))
        .remedy("name a folder, or one that does not exist yet")
}

/// `-` as an output.
pub(crate) fn standard_output() -> Failure {
    Failure::new(Exit::Usage, "`-`: the output is a file, not standard output")
        .remedy("name a file with -o; `./-` is a file of that name")
}

/// A file or folder that cannot be written.
pub(crate) fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let failure = |exit| Failure::new(exit, format_args!("cannot write {}: {error}", path.display()));
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failure(Exit::NoSpace).remedy("free disk space, or write to another disk")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            failure(Exit::Permission).remedy("write to a folder that you can write to")
        }
        io::ErrorKind::NotFound => failure(Exit::NotFound).remedy("create the folder first"),
        _ => failure(Exit::Internal),
    }
}

/// A session that cannot be copied below `output`.
pub(crate) fn session_copy(error: SessionError, output: &Path) -> Failure {
    match error {
        SessionError::Running(name) => Failure::new(
            Exit::Conflict,
            format_args!("session {name} is being written below {}", output.display()),
        )
        .remedy("wait until it is finished, or name another folder with --output"),
        SessionError::Exists(at) => {
            Failure::new(Exit::Conflict, format_args!("{} already exists", at.display()))
                .remedy(format_args!("name another folder than {} with --output", output.display()))
        }
        error => session_folder(error),
    }
}

/// The files of a session did not arrive, or cannot be written below `output`.
pub(crate) fn fetch(error: FetchError, output: &Path) -> Failure {
    match error {
        FetchError::Call(status) => refused(&status),
        FetchError::Late(limit) => call_timeout(limit),
        FetchError::Disk(error) => session_copy(error, output),
        FetchError::Damaged(file) => damaged_copy(&file),
        FetchError::Missing(file) => missing_copy(&file),
        FetchError::Wrong(_) | FetchError::Panicked(_) => Failure::internal(error),
    }
}

/// A copied session whose files could not be checked.
pub(crate) fn unchecked_copy() -> Failure {
    Failure::new(Exit::Partial, "the session has no readable manifest: its files were not checked")
        .remedy("`tpuscope sessions show` shows their content")
}

/// A file that the manifest of a copied session contradicts.
pub(crate) fn damaged_copy(file: &str) -> Failure {
    Failure::new(
        Exit::BadInput,
        format_args!("{file} does not match its manifest: it was changed or damaged"),
    )
    .remedy(OTHER_COPY)
}

/// A file that the manifest of a copied session names, and that is not there.
pub(crate) fn missing_copy(file: &str) -> Failure {
    Failure::new(Exit::BadInput, format_args!("{file} is named by the manifest and missing"))
        .remedy(OTHER_COPY)
}

/// Where else a session may be whole.
const OTHER_COPY: &str = "if `tpuscope sessions list` shows that the session was uploaded, fetch it from there; else capture again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_bad_input() {
        let exit = |kind: io::ErrorKind| {
            let source = wire::Error::Io { offset: 7, source: kind.into() };
            merge(MergeError::Input { file: "a".to_owned(), source }, Path::new("out")).exit
        };
        assert_eq!(exit(io::ErrorKind::UnexpectedEof), Exit::BadInput);
        assert_eq!(exit(io::ErrorKind::Other), Exit::Internal);
    }

    #[test]
    fn a_fault_does_not_repeat_the_name_of_the_file() {
        let error = TraceFileError::open(Path::new("/a/b.xplane.pb"), io::ErrorKind::NotFound.into());
        assert_eq!(error.fault.to_string(), "entity not found");
        let failure = Failure::from(error);
        assert_eq!(
            (failure.exit, failure.what.as_str()),
            (Exit::NotFound, "/a/b.xplane.pb: entity not found")
        );
    }
}
