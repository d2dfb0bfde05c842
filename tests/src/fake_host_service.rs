//! The host's VBARControl service; counts calls to anything but GetHostMetrics, which must never be made.

use std::sync::{Arc, Mutex};

use proto::libtpu::tpunetd::{
    ChipThrottlingMetric, GetHostMetricsResponse, IciLinkMetric, MetricType, TpuHealthMetrics,
    UtilizationMetric, UtilizationMetricData,
};

use crate::fake_grpc::{GrpcServer, Manner, Reply, ServerAddress};

const METRICS: &str = "/libtpu.tpunetd.VBARControl/GetHostMetrics";

/// The running service.
pub struct FakeHostService {
    server: GrpcServer,
    reply: Arc<Mutex<Reply>>,
}

impl FakeHostService {
    /// A service that knows `chips` chips.
    pub fn start(listen: ServerAddress, chips: u32) -> Self {
        let reply = Arc::new(Mutex::new(Reply::of(&metrics(chips, 1))));
        let answering = reply.clone();
        let handler = move |path: &str, _: &[u8]| match path {
            METRICS => answering.lock().unwrap().clone(),
            _ => Reply::Status(12, "state was changed".into()),
        };
        Self { server: GrpcServer::start(listen, Arc::new(handler)), reply }
    }

    /// Sets what it answers.
    pub fn set_reply(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    /// Where it listens, in words; empty for a Unix socket, whose path the caller gave.
    pub fn shown(&self) -> String {
        self.server.tcp_address().map(|address| address.to_string()).unwrap_or_default()
    }

    /// How connections accepted from now on are treated.
    pub fn set_manner(&self, manner: Manner) {
        self.server.set_manner(manner);
    }

    /// Calls to GetHostMetrics.
    pub fn asked(&self) -> u64 {
        self.server.calls().get(METRICS).copied().unwrap_or_default()
    }

    /// Calls to anything else: must be 0.
    pub fn forbidden(&self) -> u64 {
        self.server.calls().into_iter().filter(|(path, _)| path != METRICS).map(|(_, count)| count).sum()
    }
}

/// What a host with `chips` chips answers; values move with `step`.
pub fn metrics(chips: u32, step: u32) -> GetHostMetricsResponse {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let wave = |chip: u32, top: f32| top * (0.75 + 0.2 * ((step + 3 * chip) as f32 / 7.0).sin());
    let used = |kind: MetricType, utilization: f32| UtilizationMetric {
        metric_type: kind.into(),
        utilization,
        ..UtilizationMetric::default()
    };
    let one = |chip: u32| UtilizationMetricData {
        timestamp: None,
        metrics: vec![
            used(MetricType::Tensorcore, wave(chip, 70.0)),
            used(MetricType::Hbm, wave(chip, 50.0)),
            used(MetricType::Ici, wave(chip, 20.0)),
            used(MetricType::Sparsecore, wave(chip, 10.0)),
        ],
        chip_identifier: chip.to_string(),
        tpu_health_metrics: Some(TpuHealthMetrics {
            chip_throttling_metric: Some(ChipThrottlingMetric {
                tray_id: 0,
                chip_id: i64::from(chip),
                throttling_score: 0,
            }),
            ici_link_metrics: (0..4)
                .map(|link| IciLinkMetric {
                    port_id: format!("tray0.chip{chip}.ici{link}.int"),
                    link_health: 0,
                })
                .collect(),
        }),
    };
    GetHostMetricsResponse { metrics_data: (0..chips).map(one).collect() }
}
