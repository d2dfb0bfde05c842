//! What to do about an exporter whose points do not arrive. The agent has it in its log.

use export::{cloud_monitoring::ExportFailureKind, tensorboard::live::EventFileFault};

/// What to do about a failure of `[export.cloud_monitoring]`.
pub(crate) fn cloud_monitoring(kind: ExportFailureKind) -> &'static str {
    match kind {
        ExportFailureKind::Project => {
            "set export.cloud_monitoring.project, location and accelerator_type; or, on Google Cloud, let the agent's unit \
             reach the metadata server: docs/storage.md has the drop-in"
        }
        ExportFailureKind::Credentials => {
            "name a key file in export.cloud_monitoring.credentials that the agent's user can read; or give the machine a \
             service account, and let the agent's unit reach the metadata server: docs/storage.md has the drop-in"
        }
        ExportFailureKind::NoProject => {
            "correct export.cloud_monitoring.project: the service does not know it, or not by this endpoint"
        }
        ExportFailureKind::Account => {
            "the service refuses this account: see that it exists and is not disabled, and that its key was not deleted; a new key \
             file is read at the next try"
        }
        ExportFailureKind::Scope => {
            "give the machine the access scope monitoring.write or cloud-platform (the machine has to be stopped for \
             that), or name a key file in export.cloud_monitoring.credentials"
        }
        ExportFailureKind::Disabled => {
            "switch the service on: `gcloud services enable monitoring.googleapis.com --project PROJECT`"
        }
        ExportFailureKind::Permission => "grant the account roles/monitoring.metricWriter on the project",
        ExportFailureKind::Quota => {
            "raise export.cloud_monitoring.interval, or the project's quota of time series ingestion requests"
        }
        ExportFailureKind::Clock => {
            "set the clock of this host, and keep it set (chrony or systemd-timesyncd)"
        }
        ExportFailureKind::Refused => {
            "the service names the reason; switch off another writer of the same series, such as the library's own \
             uploader; after a clock was set back, points are taken again once it has passed the last one"
        }
        ExportFailureKind::Server => "the service fails; nothing has to be done here",
        ExportFailureKind::Unreachable => {
            "check the network and the unit's rules: IPAddressAllow=, docs/storage.md has the drop-in"
        }
        ExportFailureKind::Tls => {
            "the certificate of export.cloud_monitoring.endpoint has to be one that this host trusts (a proxy may have put its own in \
             the way), and its URL https:// only where TLS is spoken"
        }
        ExportFailureKind::Timeout => {
            "check the network between this host and export.cloud_monitoring.endpoint"
        }
        ExportFailureKind::Answer => {
            "check export.cloud_monitoring.endpoint, and whether a proxy answers in its place"
        }
        ExportFailureKind::Marks => {
            "`tpuscope goodput --job NAME` says what is wrong; check the disk of agent.state_dir"
        }
        ExportFailureKind::TooMany => {
            "the others are left out; fewer custom events, or distributions = false, make room"
        }
        ExportFailureKind::SameName => "give the jobs of this host names of their own",
    }
}

/// What to do about event files that cannot be written.
pub(crate) fn event_files(fault: EventFileFault) -> &'static str {
    match fault {
        EventFileFault::Marks => {
            "`tpuscope goodput --job NAME` says what is wrong; check the disk of agent.state_dir"
        }
        EventFileFault::Link => {
            "remove the link or the file that has the name of a job's folder: no link is followed there"
        }
        EventFileFault::NoSpace => "free disk space at export.tensorboard.directory, or lower its max_size",
        EventFileFault::Folder => {
            "the folder of export.tensorboard.directory must be there, the agent's user must be able to write to it, and under \
             systemd ReadWritePaths= of the unit must name it (docs/export.md)"
        }
    }
}
