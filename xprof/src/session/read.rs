//! Reads anyone's session folder: tpuscope's, XProf's, or a lone file.
//!
//! What is damaged or missing becomes a [`Fault`] beside what is there; only a path that leads to no trace
//! at all is an error. Everything that is read is bounded.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{
    FinishedSession, MANIFEST_FILE, MANIFEST_VERSION, Manifest, PART_SUFFIX, SessionError, failed,
    sessions_folder,
};
use crate::input::open_regular;

/// The largest manifest that is read: 16 MiB describe some 30,000 parts.
const MAX_MANIFEST: u64 = 16 << 20;
/// The most entries that are looked at in one folder.
const MAX_ENTRIES: usize = 100_000;

/// One session and what was found of it.
#[derive(Debug, Clone)]
pub struct Session {
    /// Its folder's name; a lone file's session is called after the file.
    pub name: String,
    /// Where its parts lie.
    pub folder: PathBuf,
    /// What its writer said of it.
    pub manifest: Option<Manifest>,
    /// The parts that are there, by file name.
    pub parts: Vec<PartFile>,
    /// What is wrong with the others.
    pub faults: Vec<Fault>,
}

/// One part's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFile {
    /// The file name without its ending: `<host>` or `<host>_<port>`.
    pub name: String,
    /// The host: as the manifest has it, else the part's name.
    pub host: String,
    /// Path of the trace.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
}

/// Something that is not as it should be, and does not stop a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file it is about.
    pub file: String,
    /// What it is.
    pub kind: FaultKind,
}

/// The kinds of [`Fault`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The manifest names it, the folder lacks it.
    #[error("is named by the manifest and missing")]
    Missing,
    /// A file of 0 bytes.
    #[error("is empty (0 bytes)")]
    Empty,
    /// Not to be opened.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// Not the length that was written.
    #[error("has {found} bytes, the manifest says {expected}")]
    Size {
        /// As the manifest has it.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// The manifest is no manifest.
    #[error("is damaged: {0}")]
    BadManifest(String),
    /// Written by a newer tpuscope.
    #[error("has version {0}, this build knows up to {MANIFEST_VERSION}: it is left aside")]
    NewerManifest(u32),
    /// The manifest is not there, and an upload of tpuscope has the session's name: it comes last.
    #[error(
        "is not there: the session is unfinished, its upload did not end or its capture over several hosts ended early"
    )]
    Unfinished,
    /// Never arrived, as the manifest itself says.
    #[error("was not captured: {0}")]
    NotCaptured(String),
}

impl Fault {
    /// Whether it is about the manifest alone: every part may be there.
    pub fn of_manifest(&self) -> bool {
        self.file == MANIFEST_FILE
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.file, self.kind)
    }
}

/// The sessions that `path` leads to, by name: one for a session folder or a single file, all for a logdir,
/// its `plugins` or its `plugins/profile`.
///
/// # Errors
/// When nothing is there, when it cannot be read, or when no session is found.
pub fn resolve(path: &Path) -> Result<Vec<Session>, SessionError> {
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => SessionError::NotFound(path.to_owned()),
        _ => failed("read", path)(error),
    })?;
    if !meta.is_dir() {
        return match open_regular(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(SessionError::NotAFile(path.to_owned()))
            }
            Err(error) => Err(failed("read", path)(error)),
            Ok(_) => Ok(vec![single(path, meta.len())]),
        };
    }
    if let Some(session) = Session::open(path)? {
        return Ok(vec![session]);
    }
    for folder in [sessions_folder(path), path.join("profile"), path.to_owned()] {
        let sessions = below(&folder)?;
        if !sessions.is_empty() {
            return Ok(sessions);
        }
    }
    Err(SessionError::NoSessions(path.to_owned()))
}

fn below(folder: &Path) -> Result<Vec<Session>, SessionError> {
    let mut sessions = Vec::new();
    if !folder.is_dir() {
        return Ok(sessions);
    }
    let mut unreadable = None;
    for entry in entries(folder)? {
        if !hidden(&entry) && entry.is_dir() {
            // An unreadable session must not hide the others.
            match Session::open(&entry) {
                Ok(session) => sessions.extend(session),
                Err(error) => unreadable = Some(error),
            }
        }
    }
    match unreadable {
        Some(error) if sessions.is_empty() => Err(error),
        _ => Ok(sessions),
    }
}

/// The file that keeps the name of the session in `folder` for its upload, if it lies at a destination of uploads.
fn claim_of(folder: &Path) -> Option<PathBuf> {
    let whole = folder.canonicalize().ok()?;
    claim_path(whole.to_str()?).map(PathBuf::from)
}

/// The object that keeps the name of a session for its upload, from the path of the session's folder; none where the folder
/// does not lie in `plugins/profile`.
pub fn claim_path(folder: &str) -> Option<String> {
    let (logdir, session) = folder.trim_end_matches('/').rsplit_once('/')?;
    let logdir = logdir.strip_suffix("plugins/profile")?;
    (logdir.is_empty() || logdir.ends_with('/')).then(|| format!("{logdir}.tpuscope/{session}"))
}

/// A file by itself. Not a fault in its name, whatever it is called: the user named it.
fn single(path: &Path, size: u64) -> Session {
    let file = file_name(path);
    let name = file.strip_suffix(PART_SUFFIX).unwrap_or(&file).to_owned();
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut session =
        Session { name: name.clone(), folder, manifest: None, parts: Vec::new(), faults: Vec::new() };
    session.add(PartFile { host: name.clone(), name, path: path.to_owned(), size });
    session
}

impl Session {
    /// The session in `folder`; none where the folder holds neither a part nor a manifest.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn open(folder: &Path) -> Result<Option<Self>, SessionError> {
        let mut session = Self {
            name: folder.canonicalize().map_or_else(|_| file_name(folder), |whole| file_name(&whole)),
            folder: folder.to_owned(),
            manifest: None,
            parts: Vec::new(),
            faults: Vec::new(),
        };
        let mut files = Vec::new();
        let mut manifest = None;
        for path in entries(folder)? {
            if path.file_name().is_some_and(|name| name == MANIFEST_FILE) {
                manifest = Some(path);
            } else if !hidden(&path) && file_name(&path).ends_with(PART_SUFFIX) {
                files.push(path);
            }
        }
        if let Some(path) = manifest.as_deref() {
            session.read_manifest(path);
        }
        if files.is_empty() && session.manifest.is_none() {
            return Ok(None);
        }
        let hosts = session.hosts_by_file();
        for path in files {
            session.add_file(&path, &hosts);
        }
        session.compare_with_manifest();
        if manifest.is_none() && claim_of(folder).is_some_and(|claim| claim.is_file()) {
            session.note_unfinished();
        }
        Ok(Some(session))
    }

    /// Notes that its manifest has not come yet.
    pub fn note_unfinished(&mut self) {
        self.faults.push(Fault { file: MANIFEST_FILE.to_owned(), kind: FaultKind::Unfinished });
    }

    /// Whether its manifest has not come yet, as far as is known.
    pub fn is_unfinished(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == FaultKind::Unfinished)
    }

    /// The session that was just finished, without reading it again.
    pub fn finished(finished: &FinishedSession) -> Self {
        let FinishedSession { manifest, folder, .. } = finished;
        let entries = manifest.hosts.iter().flat_map(|host| host.parts.iter().map(move |part| (host, part)));
        let mut parts: Vec<PartFile> = entries
            .map(|(host, entry)| PartFile {
                name: entry.file.strip_suffix(PART_SUFFIX).unwrap_or(&entry.file).to_owned(),
                host: host.host.clone(),
                path: folder.join(&entry.file),
                size: entry.size,
            })
            .collect();
        parts.sort_by(|a, b| a.path.cmp(&b.path));
        Self {
            name: manifest.session.clone(),
            folder: folder.clone(),
            manifest: Some(manifest.clone()),
            parts,
            faults: not_captured(manifest).collect(),
        }
    }

    /// The session of a folder that is not on this machine: what its manifest is, and its files with their lengths. None
    /// where there is neither a part nor a manifest. No I/O.
    pub fn listed(
        folder: &Path,
        manifest: Option<Result<Manifest, FaultKind>>,
        files: impl IntoIterator<Item = (String, u64)>,
    ) -> Option<Self> {
        let (name, folder) = (file_name(folder), folder.to_owned());
        let mut session = Self { name, folder, manifest: None, parts: Vec::new(), faults: Vec::new() };
        match manifest {
            None => {}
            Some(Ok(manifest)) => session.manifest = Some(manifest),
            Some(Err(kind)) => session.faults.push(Fault { file: MANIFEST_FILE.to_owned(), kind }),
        }
        let hosts = session.hosts_by_file();
        let mut files: Vec<(String, u64)> = files
            .into_iter()
            .filter(|(file, _)| !file.starts_with('.') && file.ends_with(PART_SUFFIX))
            .collect();
        files.sort();
        if files.is_empty() && session.manifest.is_none() {
            return None;
        }
        for (file, size) in files {
            if size == 0 {
                session.faults.push(Fault { file, kind: FaultKind::Empty });
                continue;
            }
            let name = file.strip_suffix(PART_SUFFIX).unwrap_or(&file).to_owned();
            let host = hosts.get(&file).unwrap_or(&name).clone();
            session.parts.push(PartFile { host, name, path: session.folder.join(&file), size });
        }
        session.compare_with_manifest();
        Some(session)
    }

    fn read_manifest(&mut self, path: &Path) {
        let kind = match load_manifest(path) {
            Ok(manifest) => return self.manifest = Some(manifest),
            Err(kind) => kind,
        };
        self.faults.push(Fault { file: MANIFEST_FILE.to_owned(), kind });
    }

    fn hosts_by_file(&self) -> BTreeMap<String, String> {
        let hosts = self.manifest.iter().flat_map(|manifest| &manifest.hosts);
        hosts.flat_map(|host| host.parts.iter().map(|part| (part.file.clone(), host.host.clone()))).collect()
    }

    fn add_file(&mut self, path: &Path, hosts: &BTreeMap<String, String>) {
        let file = file_name(path);
        match fs::metadata(path) {
            Ok(meta) if meta.is_file() => {
                let name = file.strip_suffix(PART_SUFFIX).unwrap_or(&file).to_owned();
                let host = hosts.get(&file).unwrap_or(&name).clone();
                self.add(PartFile { host, name, path: path.to_owned(), size: meta.len() });
            }
            Ok(_) => {
                let kind = FaultKind::Unreadable("not a regular file".to_owned());
                self.faults.push(Fault { file, kind });
            }
            Err(error) => {
                self.faults.push(Fault { file, kind: FaultKind::Unreadable(error.to_string()) });
            }
        }
    }

    /// Keeps a part that can be opened and is not empty; notes a fault else.
    fn add(&mut self, part: PartFile) {
        let kind = match open_regular(&part.path) {
            Err(error) => FaultKind::Unreadable(error.to_string()),
            Ok(_) if part.size == 0 => FaultKind::Empty,
            Ok(_) => return self.parts.push(part),
        };
        self.faults.push(Fault { file: file_name(&part.path), kind });
    }

    fn compare_with_manifest(&mut self) {
        let Some(manifest) = &self.manifest else { return };
        for entry in manifest.hosts.iter().flat_map(|host| &host.parts) {
            let file = &entry.file;
            let found = self.parts.iter().find(|part| file_name(&part.path) == *file);
            let kind = match found {
                Some(part) if part.size == entry.size => continue,
                Some(part) => FaultKind::Size { expected: entry.size, found: part.size },
                None if self.faults.iter().any(|fault| fault.file == *file) => continue,
                None => FaultKind::Missing,
            };
            self.faults.push(Fault { file: file.clone(), kind });
        }
        self.faults.extend(not_captured(manifest));
    }
}

/// What never arrived, as the manifest itself says.
fn not_captured(manifest: &Manifest) -> impl Iterator<Item = Fault> {
    manifest.missing.iter().map(|missing| {
        let file = match &missing.process {
            Some(process) => format!("{} {process}", missing.host),
            None => missing.host.clone(),
        };
        Fault { file, kind: FaultKind::NotCaptured(missing.why.clone()) }
    })
}

fn load_manifest(path: &Path) -> Result<Manifest, FaultKind> {
    let unreadable = |error: io::Error| FaultKind::Unreadable(error.to_string());
    let mut text = Vec::new();
    open_regular(path)
        .and_then(|file| file.take(MAX_MANIFEST + 1).read_to_end(&mut text))
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_MANIFEST {
        return Err(FaultKind::BadManifest(format!("it is larger than {MAX_MANIFEST} bytes")));
    }
    parse_manifest(&text)
}

/// The manifest in the bytes of its file.
pub fn parse_manifest(text: &[u8]) -> Result<Manifest, FaultKind> {
    let bad = |error: serde_json::Error| FaultKind::BadManifest(error.to_string());
    let json: serde_json::Value = serde_json::from_slice(text).map_err(bad)?;
    if !json.is_object() {
        return Err(FaultKind::BadManifest("it is not a JSON object".to_owned()));
    }
    // Asked first: a newer manifest may have another shape altogether.
    let version = json.get("version").and_then(serde_json::Value::as_u64);
    if let Some(newer) = version.filter(|&version| version > u64::from(MANIFEST_VERSION)) {
        return Err(FaultKind::NewerManifest(u32::try_from(newer).unwrap_or(u32::MAX)));
    }
    serde_json::from_value(json).map_err(bad)
}

/// The paths in `folder`, sorted as XProf sorts them.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, SessionError> {
    let list = fs::read_dir(folder).map_err(failed("list", folder))?;
    let mut paths = Vec::new();
    for entry in list.take(MAX_ENTRIES) {
        paths.push(entry.map_err(failed("list", folder))?.path());
    }
    paths.sort();
    Ok(paths)
}

fn hidden(path: &Path) -> bool {
    file_name(path).starts_with('.')
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
