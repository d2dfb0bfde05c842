//! The host from procfs and sysfs: CPU, memory, network, disks, pressure, the control groups of the workloads, and the
//! chips as the snapshot has them.
//!
//! Must never fail as a whole: a file that is missing, unreadable or of another shape is one absence. Reads are bounded,
//! and files are kept open so that a tick costs a few system calls.

mod cgroup;
mod chips;
mod kernel_files;
mod proc_text;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cgroup::Cgroups;
use host::settings::paths::Paths;
use kernel_files::{KernelFiles, RealDevices};
use model::{
    label::Labels,
    metric::{Descriptor, MetricKind},
    sample::{Origin, Sample, SampleValue},
    untrusted::{MESSAGE, clean, clean_label},
    workload::Workload,
};
use proc_text::TextError;

use super::{Absence, Reading, Source, Tick, blocking::BlockingSlots};

/// How long the files of the kernel may take to answer.
const DEADLINE: Duration = Duration::from_secs(4);

/// The source. Its files are read on a blocking thread.
pub struct HostSource {
    reader: Arc<Mutex<HostReader>>,
    slots: BlockingSlots,
}

/// Reads the files, and keeps them open.
struct HostReader {
    paths: Paths,
    files: KernelFiles,
    disks: RealDevices,
    networks: RealDevices,
    cgroups: Cgroups,
}

/// The numbers in a text of procfs, without I/O. `file` is its path below `/proc`; `None` where the text cannot be read
/// or the source does not read that file.
pub fn decode_text(file: &str, text: &str) -> Option<Vec<f64>> {
    let values = match file {
        "stat" => proc_text::cpu(text),
        "loadavg" => proc_text::load(text),
        "meminfo" => proc_text::memory(text),
        "net/dev" => proc_text::network(text, &BTreeSet::from(["eth0".to_owned()])),
        "diskstats" => proc_text::disks(text, &BTreeSet::from(["sda".to_owned()])),
        "pressure/io" => proc_text::pressure(text, "io"),
        _ => return None,
    };
    Some(values.ok()?.into_iter().map(|one| one.value).collect())
}

/// A value of the host before it becomes a sample.
pub(super) struct HostValue {
    pub(super) metric: &'static Descriptor,
    pub(super) labels: Labels,
    pub(super) value: f64,
    pub(super) workload: Option<Arc<Workload>>,
}

impl HostValue {
    pub(super) fn plain(metric: &'static Descriptor, value: f64) -> Self {
        Self { metric, labels: Labels::none(), value, workload: None }
    }

    pub(super) fn of(metric: &'static Descriptor, name: &'static str, label: &str, value: f64) -> Self {
        Self { labels: Labels::one(name, clean_label(label)), ..Self::plain(metric, value) }
    }
}

impl HostSource {
    /// The host below these roots.
    pub fn new(paths: &Paths) -> Self {
        Self { reader: Arc::new(Mutex::new(HostReader::new(paths))), slots: BlockingSlots::new(1) }
    }
}

impl HostReader {
    fn new(paths: &Paths) -> Self {
        Self {
            files: KernelFiles::default(),
            disks: RealDevices::new(paths.sysfs.join("block")),
            networks: RealDevices::new(paths.sysfs.join("class/net")),
            cgroups: Cgroups::new(paths),
            paths: paths.clone(),
        }
    }

    fn collect(&mut self, tick: &Tick) -> Reading {
        let mut found = Vec::with_capacity(64);
        let mut absent = Vec::new();
        let proc = self.paths.procfs.clone();
        self.file(&proc.join("stat"), &mut found, &mut absent, proc_text::cpu);
        self.file(&proc.join("loadavg"), &mut found, &mut absent, proc_text::load);
        self.file(&proc.join("meminfo"), &mut found, &mut absent, proc_text::memory);
        // Process 1 is in the network namespace of the host (or of the pod).
        let network = [proc.join("1/net/dev"), proc.join("net/dev")];
        let network = network.iter().find(|path| self.files.readable(path)).unwrap_or(&network[1]);
        let networks = self.networks.names().clone();
        self.file(network, &mut found, &mut absent, |text| proc_text::network(text, &networks));
        let disks = self.disks.names().clone();
        self.file(&proc.join("diskstats"), &mut found, &mut absent, |text| proc_text::disks(text, &disks));
        for resource in ["cpu", "memory", "io"] {
            let path = proc.join("pressure").join(resource);
            self.file(&path, &mut found, &mut absent, |text| proc_text::pressure(text, resource));
        }
        self.cgroups.collect(tick, &mut self.files, &mut found, &mut absent);
        chips::collect(&tick.host, &mut found);
        let samples = found.into_iter().map(|found| sample(found, tick)).collect();
        Reading { samples, absent, unused: None }
    }

    fn file(
        &mut self,
        path: &Path,
        found: &mut Vec<HostValue>,
        absent: &mut Vec<Absence>,
        parse: impl FnOnce(&str) -> Result<Vec<HostValue>, TextError>,
    ) {
        match self.files.read(path).map(parse) {
            Ok(Ok(values)) => found.extend(values),
            Ok(Err(error)) => absent.push(Absence::new(
                path.display().to_string(),
                format!("it cannot be parsed: {}", clean(&error.to_string(), MESSAGE)),
            )),
            Err(error) => absent.push(missing(path, &error)),
        }
    }
}

fn missing(path: &Path, error: &std::io::Error) -> Absence {
    Absence::new(path.display().to_string(), format!("it cannot be read: {error}"))
}

fn sample(found: HostValue, tick: &Tick) -> Sample {
    let counts = found.metric.kind == MetricKind::Counter;
    Sample {
        metric: found.metric.into(),
        labels: found.labels,
        value: if counts { SampleValue::Counter(found.value) } else { SampleValue::Gauge(found.value) },
        origin: Origin::Host,
        at: tick.at,
        workload: found.workload,
    }
}

impl Source for HostSource {
    fn origin(&self) -> Origin {
        Origin::Host
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        let (reader, tick) = (Arc::clone(&self.reader), tick.clone());
        Box::pin(async {
            let work = move || reader.lock().unwrap_or_else(PoisonError::into_inner).collect(&tick);
            self.slots.run(DEADLINE, work).await.unwrap_or_else(|error| Reading {
                absent: vec![Absence::new("host", error.to_string())],
                ..Reading::default()
            })
        })
    }
}
