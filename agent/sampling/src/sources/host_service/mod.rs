//! The host's VBARControl service: utilization by chip, throttling, health of the inter-chip links.
//!
//! Must never call anything but GetHostMetrics: the service's other calls change the state of the host.

mod named_series;

use std::{future::Future, pin::Pin};

use model::{
    catalog,
    label::Labels,
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    workload::{Address, EndpointKind, EndpointOrigin},
};
use named_series::NamedSeries;
use prost::Message;
use proto::libtpu::tpunetd::{GetHostMetricsRequest, UtilizationMetricData};
use tokio::time::Instant;
use xprof::wire::Fields;

use super::{
    Absence, Reading, Source, Tick,
    grpc::{GrpcCallError, GrpcConnection, Malformed, UnaryCall},
    retry::Retry,
};

const GET: &str = "/libtpu.tpunetd.VBARControl/GetHostMetrics";
/// More chips than any host has.
const MOST_CHIPS: usize = 256;

const NOT_FOUND: &str = "no host service was found: it listens on 127.0.0.1:8353, on hosts that have it";

/// The source.
pub struct HostServiceSource {
    call: UnaryCall,
    address: Option<Address>,
    /// Where the host's own service was found last. A host that had it does not cease to have it.
    own: Option<Address>,
    connection: Option<GrpcConnection>,
    retry: Retry,
    fault: Option<String>,
    named: NamedSeries,
}

impl Default for HostServiceSource {
    fn default() -> Self {
        Self {
            call: UnaryCall::new(GET, &GetHostMetricsRequest {}),
            address: None,
            own: None,
            connection: None,
            retry: Retry::default(),
            fault: None,
            named: NamedSeries::default(),
        }
    }
}

impl HostServiceSource {
    /// Takes the first endpoint that can be reached. The error is the reading without one.
    fn choose(&mut self, tick: &Tick) -> Result<(), Reading> {
        let mut unreachable = None;
        for (_, endpoint) in tick.endpoints(EndpointKind::HostService) {
            match &endpoint.unreachable {
                Some(why) => {
                    let absence = || Absence::of_endpoint(&endpoint.address, why.clone());
                    unreachable = unreachable.or_else(|| Some(absence()));
                }
                None => {
                    let address = Some(endpoint.address.clone());
                    if endpoint.origin == EndpointOrigin::KnownDefault {
                        self.own.clone_from(&address);
                    }
                    if self.address != address {
                        *self = Self { address, own: self.own.take(), ..Self::default() };
                    }
                    return Ok(());
                }
            }
        }
        if self.address.is_some() {
            *self = Self { own: self.own.take(), ..Self::default() };
        }
        let own = self.own.as_ref().filter(|_| !tick.host.chips.is_empty());
        let gone = || own.map(|own| Absence::of_endpoint(own, "the host service no longer listens there"));
        Err(match unreachable.or_else(gone) {
            Some(absence) => Reading { absent: vec![absence], ..Reading::default() },
            None => Reading::unused(NOT_FOUND),
        })
    }

    /// The reply; `None` while the next try is not due.
    async fn ask(&mut self) -> Result<Option<prost::bytes::Bytes>, GrpcCallError> {
        if self.connection.as_ref().is_none_or(GrpcConnection::is_broken) {
            self.connection = None;
        }
        let Some(address) = &self.address else { return Ok(None) };
        if !self.retry.due(Instant::now()) {
            return Ok(None);
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(GrpcConnection::open(address).await?),
        };
        connection.all(&[&self.call]).await.pop().unwrap_or(Err(GrpcCallError::Deadline)).map(Some)
    }

    async fn read(&mut self, tick: &Tick) -> Reading {
        if let Err(reading) = self.choose(tick) {
            return reading;
        }
        let mut reading = Reading::default();
        match self.ask().await {
            Ok(None) => {}
            Ok(Some(reply)) => {
                self.retry.succeeded();
                let read = samples(&reply, tick, &mut self.named, &mut reading.samples);
                self.fault = read.err().map(|error| error.to_string());
            }
            Err(error) => {
                self.retry.failed(Instant::now());
                self.fault = Some(error.to_string());
            }
        }
        if let (Some(why), Some(address)) = (&self.fault, &self.address) {
            reading.absent.push(Absence::of_endpoint(address, why.clone()));
        }
        reading
    }
}

impl Source for HostServiceSource {
    fn origin(&self) -> Origin {
        Origin::HostService
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(Self::read(self, tick))
    }
}

/// The samples of a reply to GetHostMetrics, without I/O; `None` where it cannot be read.
pub fn decode_reply(reply: &[u8], tick: &Tick) -> Option<Vec<Sample>> {
    let mut decoded = Vec::new();
    samples(reply, tick, &mut NamedSeries::default(), &mut decoded).ok()?;
    Some(decoded)
}

/// The samples of a GetHostMetricsResponse. `named` is what the reply before named, and is renewed where this one differs.
fn samples(
    reply: &[u8],
    tick: &Tick,
    named: &mut NamedSeries,
    samples: &mut Vec<Sample>,
) -> Result<(), Malformed> {
    let mut entries = Vec::with_capacity(named.entries());
    Fields::new(reply, 0).each(1, |entry| -> Result<(), Malformed> {
        if entries.len() < MOST_CHIPS {
            entries.push(UtilizationMetricData::decode(entry)?);
        }
        Ok(())
    })?;
    named.follow(&mut entries, &tick.host.chips);
    samples.reserve(named.len());
    for (value, at, series) in named.values(tick.at) {
        if value.is_finite() {
            samples.push(gauge(series.metric, series.labels.clone(), series.scale.apply(value), at));
        }
    }
    let info = |labels: &Labels| gauge(&catalog::TPU_TRAY_CHIP_INFO, labels.clone(), 1.0, tick.at);
    samples.extend(named.infos().iter().map(info));
    Ok(())
}

fn gauge(metric: &'static Descriptor, labels: Labels, value: f64, at: Timestamp) -> Sample {
    let value = SampleValue::Gauge(value);
    Sample { metric: metric.into(), labels, value, origin: Origin::HostService, at, workload: None }
}

#[cfg(test)]
mod tests {
    use model::{device::Chip, snapshot::HostSnapshot};
    use proto::libtpu::tpunetd::{
        ChipThrottlingMetric, GetHostMetricsResponse, IciLinkMetric, MetricType, TpuHealthMetrics,
        UtilizationMetric,
    };

    use super::*;

    fn chip(index: u32, pci: &str) -> Chip {
        Chip {
            index: model::device::ChipIndex(index),
            generation: model::device::Generation::V6e,
            name: "v6e".into(),
            pci: pci.into(),
            cores: Some(1),
            ..Chip::default()
        }
    }

    fn tick() -> Tick {
        let chips = [chip(0, "0000:00:04"), chip(1, "0000:00:05")];
        let host = HostSnapshot { chips: chips.into(), ..HostSnapshot::default() };
        Tick { at: Timestamp(5_000_000_000), host }
    }

    fn used(kind: MetricType, utilization: f32) -> UtilizationMetric {
        UtilizationMetric { metric_type: kind.into(), utilization, ..UtilizationMetric::default() }
    }

    #[test]
    fn utilization_throttling_and_links_get_their_labels() {
        let entry = |identifier: &str, tray: i64| UtilizationMetricData {
            metrics: vec![used(MetricType::Tensorcore, 50.0), used(MetricType::Unspecified, 1.0)],
            chip_identifier: identifier.into(),
            tpu_health_metrics: Some(TpuHealthMetrics {
                chip_throttling_metric: Some(ChipThrottlingMetric {
                    tray_id: tray,
                    chip_id: 0,
                    throttling_score: 3,
                }),
                ici_link_metrics: vec![IciLinkMetric {
                    port_id: format!("tray{tray}.chip0.ici0.int"),
                    link_health: 5,
                }],
            }),
            ..UtilizationMetricData::default()
        };
        let reply = GetHostMetricsResponse {
            metrics_data: vec![entry("1", 0), entry("0000:00:04", 1), entry("x\n", 1)],
        };
        let mut found = Vec::new();
        let mut named = NamedSeries::default();
        samples(&reply.encode_to_vec(), &tick(), &mut named, &mut found).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|sample| {
                let labels: Vec<_> =
                    sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                (sample.metric.name.as_ref(), labels.join(","), sample.value.clone())
            })
            .collect();
        let util = "tpu_chip_tensorcore_utilization_ratio";
        let (throttle, link, info) =
            ("tpu_chip_throttle_score", "tpu_ici_link_health_score", "tpu_tray_chip_info");
        assert_eq!(
            shown,
            [
                (util, "chip=1".to_owned(), SampleValue::Gauge(0.5)),
                (throttle, "tray_chip=0-0".to_owned(), SampleValue::Gauge(3.0)),
                (link, "link=tray0.chip0.ici0.int,tray_chip=0-0".to_owned(), SampleValue::Gauge(5.0)),
                (util, "chip=0".to_owned(), SampleValue::Gauge(0.5)),
                (throttle, "tray_chip=1-0".to_owned(), SampleValue::Gauge(3.0)),
                (link, "link=tray1.chip0.ici0.int,tray_chip=1-0".to_owned(), SampleValue::Gauge(5.0)),
                (util, "chip_id=x\u{fffd}".to_owned(), SampleValue::Gauge(0.5)),
                // One entry of a known chip has the name; the other is named by two entries, one of them of an unknown chip.
                (info, "tray_chip=0-0,chip=1".to_owned(), SampleValue::Gauge(1.0)),
                (info, "tray_chip=1-0,chip=unknown".to_owned(), SampleValue::Gauge(1.0)),
            ]
        );
    }

    #[test]
    fn a_reply_that_names_others_than_the_last_gets_their_series() {
        let entry =
            |identifier: &str, kinds: &[MetricType], links: &[&str], value: f32| UtilizationMetricData {
                metrics: kinds.iter().map(|kind| used(*kind, value)).collect(),
                chip_identifier: identifier.into(),
                tpu_health_metrics: Some(TpuHealthMetrics {
                    chip_throttling_metric: None,
                    ici_link_metrics: links
                        .iter()
                        .map(|link| IciLinkMetric { port_id: (*link).into(), link_health: 1 })
                        .collect(),
                }),
                ..UtilizationMetricData::default()
            };
        let (cores, memory) = (&[MetricType::Tensorcore][..], &[MetricType::Hbm][..]);
        let links = ["tray0.chip0.ici0.int", "tray0.chip0.ici1.int"];
        let replies = [
            vec![entry("0", cores, &links[..1], 1.0), entry("1", cores, &[], 2.0)],
            vec![entry("0", cores, &links[..1], 3.0), entry("1", cores, &[], 4.0)],
            vec![entry("1", cores, &links[..1], 5.0), entry("0", cores, &[], 6.0)],
            vec![entry("1", memory, &links[..1], 5.0), entry("0", cores, &[], f32::NAN)],
            vec![entry("1", memory, &links, 5.0), entry("0", cores, &[], 6.0)],
            vec![entry("1", memory, &links[1..], 5.0)],
            vec![],
        ];
        let mut named = NamedSeries::default();
        let mut tick = tick();
        for (position, metrics_data) in replies.into_iter().enumerate() {
            if position == 5 {
                tick.host.chips = [chip(1, "0000:00:05")].into();
            }
            let reply = GetHostMetricsResponse { metrics_data }.encode_to_vec();
            let (mut again, mut anew) = (Vec::new(), Vec::new());
            samples(&reply, &tick, &mut named, &mut again).unwrap();
            samples(&reply, &tick, &mut NamedSeries::default(), &mut anew).unwrap();
            assert_eq!(again, anew, "reply {position}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = samples(&bytes, &tick(), &mut NamedSeries::default(), &mut Vec::new());
        }
    }
}
