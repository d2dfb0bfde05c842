//! The child: the only process that ever loads a libtpu. It answers the agent's requests one by one until the
//! agent closes the socket, a libtpu ends it, or the agent does.
//!
//! Must never create a PJRT client, initialise the plugin, open a chip, or touch the libtpu lock file; holds
//! nothing that its death could lose.

use std::{
    ffi::CString,
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use nix::unistd;
use proto::tpuscope::v1::{
    ChildError, ChildReply, ChildRequest, LibraryInfo, MetricValue, MetricValues, PjrtExtension, PjrtInfo,
    child_reply::Result as Answer, child_request::Call,
};
use tpu_sys::{
    CallError, Library,
    legacy::Legacy,
    pjrt::Pjrt,
    sdk::{Client, Sdk},
    version::Version,
};

use super::{child_protocol as protocol, metric_names::metric_names, sandbox};

/// A client's metric handles go with it: after this many it is replaced.
const METRICS_PER_CLIENT: u32 = 256;

/// Why the child ended.
#[derive(Debug, thiserror::Error)]
pub enum ChildEnd {
    /// It could not drop its rights.
    #[error("no sandbox: {0}")]
    Sandbox(String),
    /// The conversation broke.
    #[error("the conversation with the agent broke: {0}")]
    Conversation(#[from] io::Error),
}

/// Runs the child of the process `parent`, with the socket as its standard input.
///
/// # Errors
/// When the sandbox cannot be made or the conversation breaks; its orderly end is no error.
pub fn run(parent: u32) -> Result<(), ChildEnd> {
    sandbox::enter(parent).map_err(|error| ChildEnd::Sandbox(error.to_string()))?;
    let mut agent = take_socket()?;
    let mut loaded = LoadedLibrary::default();
    while let Some(request) = protocol::receive::<ChildRequest>(&mut agent, protocol::MAX_REQUEST)? {
        let reply = ChildReply { id: request.id, result: Some(loaded.answer(request.call)) };
        protocol::send(&mut agent, &reply)?;
    }
    Ok(())
}

/// Moves the socket away from descriptor 0: a library may read or close that one.
fn take_socket() -> io::Result<UnixStream> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    unistd::dup2_stdin(&null)?;
    unistd::dup2_stdout(&null)?;
    Ok(UnixStream::from(socket))
}

#[derive(Default)]
struct LoadedLibrary {
    library: Option<&'static Library>,
    client: Option<Client<'static>>,
    sdk: Option<&'static Sdk<'static>>,
    /// Metrics that were requested from the client.
    asked: u32,
}

fn failed(message: impl ToString) -> ChildError {
    ChildError { code: 0, message: message.to_string() }
}

fn call_failed(error: CallError) -> ChildError {
    match error {
        CallError::Status { code, message } => ChildError { code, message },
        other => failed(other),
    }
}

impl LoadedLibrary {
    fn answer(&mut self, call: Option<Call>) -> Answer {
        let answer = match call {
            Some(Call::Probe(probe)) => self.probe(Path::new(&probe.path)).map(Answer::Library),
            Some(Call::Load(load)) => self.load(Path::new(&load.path)).map(Answer::Library),
            Some(Call::GetMetrics(get)) => self.metrics(get.names).map(Answer::Metrics),
            Some(Call::GetRuntimeStatus(get)) => {
                self.runtime_status(get.include_hlo_info).map(Answer::RuntimeStatus)
            }
            None => Err(failed("a request without a call")),
        };
        answer.unwrap_or_else(Answer::Error)
    }

    fn library(&mut self, path: &Path) -> Result<&'static Library, ChildError> {
        if let Some(library) = self.library {
            return Ok(library);
        }
        let library: &'static Library = Box::leak(Box::new(Library::open(path).map_err(failed)?));
        self.library = Some(library);
        Ok(library)
    }

    fn probe(&mut self, path: &Path) -> Result<LibraryInfo, ChildError> {
        let version = Version::of_library(path);
        let library = self.library(path)?;
        let (pjrt, fault) = match Pjrt::of(library) {
            Ok(pjrt) => (pjrt.map(describe), String::new()),
            Err(error) => (None, error.to_string()),
        };
        Ok(LibraryInfo {
            path: path.to_string_lossy().into_owned(),
            version: version.map_or_else(String::new, |version| version.to_string()),
            sdk_slots: 0,
            metric_names: Vec::new(),
            pjrt,
            legacy_profiler: Legacy::of(library).is_some(),
            sdk_export: library.exports(tpu_sys::sdk::ENTRY),
            fault,
        })
    }

    fn load(&mut self, path: &Path) -> Result<LibraryInfo, ChildError> {
        let version = Version::of_library(path);
        let mut info = self.probe(path)?;
        let library = self.library(path)?;
        match Sdk::load(library) {
            Ok(sdk) => {
                let names = metric_names(version.as_ref(), sdk.slots());
                info.sdk_slots = u32::try_from(sdk.slots()).unwrap_or(0);
                info.metric_names = names.into_iter().map(str::to_owned).collect();
                self.client = None;
                self.sdk = Some(Box::leak(Box::new(sdk)));
            }
            Err(error) => info.fault = error.to_string(),
        }
        Ok(info)
    }

    fn client(&mut self) -> Result<&Client<'static>, ChildError> {
        let sdk = self.sdk.ok_or_else(|| failed("no library is loaded"))?;
        if self.asked >= METRICS_PER_CLIENT {
            self.client = None;
        }
        if self.client.is_none() {
            self.client = Some(sdk.client().map_err(call_failed)?);
            self.asked = 0;
        }
        self.client.as_ref().ok_or_else(|| failed("no client"))
    }

    fn runtime_status(&mut self, include_hlo_info: bool) -> Result<Vec<u8>, ChildError> {
        let status = self.client()?.runtime_status(include_hlo_info).map_err(call_failed)?;
        if status.len() > protocol::MAX_STATUS {
            return Err(failed(format!("a runtime status of {} bytes is too large", status.len())));
        }
        Ok(status)
    }

    fn metrics(&mut self, names: Vec<String>) -> Result<MetricValues, ChildError> {
        let mut metrics = Vec::with_capacity(names.len());
        for name in names {
            let text = CString::new(name.as_str()).map_err(failed)?;
            let read = self.client()?.metric(&text);
            self.asked += 1;
            let mut value = MetricValue { name, ..MetricValue::default() };
            match read {
                Ok(metric) => (value.description, value.values) = (metric.description, metric.values),
                Err(error) => value.error = Some(call_failed(error)),
            }
            metrics.push(value);
        }
        Ok(MetricValues { metrics })
    }
}

fn describe(pjrt: Pjrt<'_>) -> PjrtInfo {
    let extensions = pjrt
        .extensions
        .iter()
        .map(|extension| PjrtExtension { r#type: extension.kind, size: extension.size as u64 })
        .collect();
    PjrtInfo {
        major: pjrt.major,
        minor: pjrt.minor,
        api_size: pjrt.api_size as u64,
        extensions,
        profiler_api_size: pjrt.profiler_api_size() as u64,
    }
}
