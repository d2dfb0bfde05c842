//! The labels of a job that tests ask about.

use goodput::export::SeriesLabels;

pub(crate) fn labels() -> SeriesLabels {
    SeriesLabels {
        location: "here".into(),
        workload_id: "j".into(),
        replica_id: "0".into(),
        accelerator_type: "TPU-v6e".into(),
        cluster_name: None,
    }
}
