//! The end of a capture: one session of what all hosts have, or nothing.

use std::{collections::BTreeSet, sync::Arc};

use tokio::{task::spawn_blocking, time::timeout};
use xprof::session::{Manifest, PartWriter, Window};

use super::{
    super::{
        CapturedHost, CoordinatorError, HostFault, HostResult, KeptCapture, SessionLocation,
        collect::Collection,
        conversation::{Happened, HostCommand, SessionIdentity},
        machine::HostNumber,
    },
    LATE, Run, RunningHost, folder_at, panicked,
};
use crate::{joined_manifest, manifest_messages};

impl Run {
    /// The manifest of the whole session.
    fn manifest(&self) -> Manifest {
        let traces = self.hosts.iter().map(|host| {
            let trace = host.trace.as_ref().filter(|_| host.stored.is_some());
            (
                &host.given,
                trace.ok_or_else(|| host.fault.as_ref().map(ToString::to_string).unwrap_or_default()),
            )
        });
        let traces: Vec<_> = traces.collect();
        let start = self.machine.start();
        let window = start.and_then(|start| {
            let stop = start.plus(self.capture.request.window());
            Some(Window { start: start.into(), stop: stop.into() })
                .filter(|window| window.start <= window.stop)
        });
        let late = self.capture.start.zip(start).map(|(wished, start)| wished.age(start));
        let late = late.filter(|late| *late > LATE).map(|late| {
            format!(
                "the window began {:.3} s after the start that was asked for: not all hosts were ready before",
                late.as_secs_f64()
            )
        });
        let created = self.common.clock.now().into();
        let SessionIdentity { name, id } = &self.common.identity;
        joined_manifest::joined(name, Some(id.clone()), window, created, &traces, late.into_iter().collect())
    }

    /// Makes the session visible.
    pub(super) async fn keep(&mut self) -> Result<KeptCapture, CoordinatorError> {
        let manifest = self.manifest();
        let location = match &self.common.collection {
            Collection::Copied { writer, .. } => {
                let writer = Arc::clone(writer);
                let parts: Vec<PartWriter> = self
                    .hosts
                    .iter_mut()
                    .filter_map(|host| host.stored.as_mut())
                    .flat_map(std::mem::take)
                    .collect();
                let written = manifest.clone();
                let published = spawn_blocking(move || writer.publish(parts, written));
                let published = published.await.map_err(panicked)?;
                let unwritten = |error| CoordinatorError::Unwritten { error, left: self.left() };
                SessionLocation::Folder(published.map_err(unwritten)?.folder)
            }
            Collection::Uploaded { .. } => {
                let destination = self.put_manifest(&manifest).await?;
                SessionLocation::Url(folder_at(&destination, &self.common.identity.name))
            }
        };
        Ok(KeptCapture { manifest, location, hosts: self.results() })
    }

    /// The first agent that can, puts the manifest.
    async fn put_manifest(&mut self, manifest: &Manifest) -> Result<String, CoordinatorError> {
        let mut failed = HostFault::BadAnswer("no session");
        for number in 0..self.hosts.len() {
            if self.hosts[number].stored.is_none() {
                continue;
            }
            let message = Box::new(manifest_messages::manifest(manifest.clone()));
            self.hosts[number].tell(HostCommand::PutManifest(message));
            match self.manifest_put(number).await {
                Ok(url) => return Ok(url),
                Err(fault) => failed = fault,
            }
        }
        Err(CoordinatorError::Manifest { fault: Box::new(failed), left: self.left() })
    }

    async fn manifest_put(&mut self, number: HostNumber) -> Result<String, HostFault> {
        loop {
            match self.events.recv().await {
                Some((host, Happened::ManifestPut(put))) if host == number => return put,
                Some((host, Happened::Failed(fault))) if host == number => return Err(fault),
                Some(_) => {}
                None => return Err(HostFault::BadAnswer("no answer")),
            }
        }
    }

    fn results(&mut self) -> Vec<HostResult> {
        let result = |host: &mut RunningHost| {
            let captured = host.ready.as_ref().zip(host.trace.as_ref()).filter(|_| host.stored.is_some());
            let result = match captured {
                Some((ready, trace)) => Ok(CapturedHost {
                    name: trace.label.clone(),
                    clock: ready.clock,
                    failures: std::mem::take(&mut host.failures),
                }),
                None => Err(host.fault.take().unwrap_or(HostFault::Overall)),
            };
            HostResult { host: host.given.clone(), result }
        };
        self.hosts.iter_mut().map(result).collect()
    }

    /// Removes what agents have recorded.
    pub(super) async fn keep_nothing(&mut self) -> CoordinatorError {
        let remaining = self.hosts.iter().filter(|host| host.fault.is_none()).count();
        let left = self.left();
        let mut keeping = Vec::new();
        let mut removing: BTreeSet<HostNumber> = BTreeSet::new();
        for (number, host) in self.hosts.iter_mut().enumerate() {
            // What was copied is dropped.
            host.stored = None;
            let began = host.recorded || self.machine.is_recording(number);
            if began && !host.leave.is_cancelled() {
                host.tell(HostCommand::Remove);
                removing.insert(number);
            } else {
                if host.may_have_recorded() {
                    keeping.push(host.given.clone());
                }
                host.leave.cancel();
            }
        }
        let removed = async {
            while !removing.is_empty() {
                match self.events.recv().await {
                    Some((host, Happened::Removed | Happened::Failed(_))) => {
                        removing.remove(&host);
                    }
                    Some(_) => {}
                    None => return,
                }
            }
        };
        // Agents apply the limits of their stores to what stays.
        let _ = timeout(self.common.limit, removed).await;
        let needed = self.capture.min_hosts.max(1);
        CoordinatorError::TooFewHosts { remaining, needed, keeping, left }
    }
}
