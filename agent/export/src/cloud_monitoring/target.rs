//! Where the points go: the project, and what the labels say of this machine.
//!
//! What the settings do not say is read from the machine's metadata server.

use std::fmt::Display;

use cluster::hosts::GceMetadata;
use goodput::export::{SeriesLabels, accelerator_type, given_accelerator_type};

use super::{
    failure::{ExportFailure, ExportFailureKind},
    series::MonitoredResource,
    settings::CloudMonitoringSettings,
};

/// The project and the labels of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExportTarget {
    pub(super) project: String,
    pub(super) location: String,
    pub(super) accelerator_type: String,
}

impl ExportTarget {
    /// Of the settings and the metadata server.
    ///
    /// # Errors
    /// If neither says the project or the location.
    pub(super) async fn find(
        settings: &CloudMonitoringSettings,
        metadata: &GceMetadata,
    ) -> Result<Self, ExportFailure> {
        let read = async |setting: &str, key: &str, path: &str| {
            if setting.is_empty() { value(metadata, key, path).await } else { Ok(setting.to_owned()) }
        };
        let accelerator = &settings.accelerator_type;
        Ok(Self {
            project: read(&settings.project, "project", "project/project-id").await?,
            location: read(&settings.location, "location", "instance/zone").await?,
            accelerator_type: if accelerator.is_empty() {
                accelerator_type(&value(metadata, "accelerator_type", "instance/machine-type").await?)
                    .to_owned()
            } else {
                given_accelerator_type(accelerator)
            },
        })
    }

    /// The URL of the requests.
    pub(super) fn url(&self, endpoint: &str) -> String {
        format!("{endpoint}/v3/projects/{}/timeSeries", self.project)
    }

    /// The labels of the series of a job.
    pub(super) fn labels(&self, job: &str, settings: &CloudMonitoringSettings) -> SeriesLabels {
        let cluster = &settings.cluster_name;
        SeriesLabels {
            location: self.location.clone(),
            workload_id: job.to_owned(),
            replica_id: settings.replica_id.clone(),
            accelerator_type: self.accelerator_type.clone(),
            cluster_name: (!cluster.is_empty()).then(|| cluster.clone()),
        }
    }

    /// This host, for series that are about it.
    pub(super) fn host(&self, host: &str) -> MonitoredResource {
        MonitoredResource {
            kind: "generic_node",
            labels: vec![
                ("project_id", self.project.clone()),
                ("location", self.location.clone()),
                ("namespace", "tpuscope".to_owned()),
                ("node_id", host.to_owned()),
            ],
        }
    }
}

/// The last segment of a value of the metadata server, for the setting `key`: zones and machine types are named by their
/// path there.
async fn value(metadata: &GceMetadata, key: &str, path: &str) -> Result<String, ExportFailure> {
    let unknown = |why: &dyn Display| {
        let what = format_args!("export.cloud_monitoring.{key} is not set, and {why}");
        ExportFailure::new(ExportFailureKind::Project, what)
    };
    let found = metadata.value(path).await.map_err(|error| unknown(&error))?.unwrap_or_default();
    let last = found.trim().rsplit('/').next().unwrap_or_default();
    let is_sound = !last.is_empty() && last.len() <= 200 && last.chars().all(|c| c.is_ascii_graphic());
    if is_sound {
        Ok(last.to_owned())
    } else {
        Err(unknown(&format_args!("the metadata server has no {path}")))
    }
}
