//! The host's VBARControl service: utilization by chip, throttling, health of the inter-chip links.
//!
//! Must never call anything but GetHostMetrics: the service's other calls change the state of the host.

#![expect(clippy::cast_precision_loss, reason = "a sample is an f64, and scores are small")]

use std::{collections::HashSet, future::Future, pin::Pin};

use model::{
    catalog,
    device::Chip,
    label::{CHIP, Labels},
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    untrusted::clean_label,
    workload::{Address, EndpointKind},
};
use prost::Message;
use proto::libtpu::tpunetd::{GetHostMetricsRequest, MetricType, UtilizationMetricData};
use tokio::time::Instant;
use xprof::wire::Fields;

use super::{
    Absence, Reading, Source, Tick,
    grpc::{GrpcCallError, GrpcConnection, Malformed, UnaryCall},
    retry::Retry,
    tray_chip::{self, TrayChips},
};

const GET: &str = "/libtpu.tpunetd.VBARControl/GetHostMetrics";
/// More chips than any host has.
const MOST_CHIPS: usize = 256;
/// The most values that are taken from one reply.
const MOST_VALUES: usize = 4096;

/// The source.
pub struct HostServiceSource {
    call: UnaryCall,
    address: Option<Address>,
    connection: Option<GrpcConnection>,
    retry: Retry,
    fault: Option<String>,
}

impl Default for HostServiceSource {
    fn default() -> Self {
        Self {
            call: UnaryCall::new(GET, &GetHostMetricsRequest {}),
            address: None,
            connection: None,
            retry: Retry::default(),
            fault: None,
        }
    }
}

impl HostServiceSource {
    /// The first endpoint that can be reached, or why there is none.
    fn choose(&mut self, tick: &Tick) -> Result<(), Absence> {
        let mut unreachable = None;
        for (_, endpoint) in tick.endpoints(EndpointKind::HostService) {
            match &endpoint.unreachable {
                Some(why) => unreachable = unreachable.or(Some((endpoint.address.to_string(), why.clone()))),
                None => {
                    if self.address.as_ref() != Some(&endpoint.address) {
                        *self = Self { address: Some(endpoint.address.clone()), ..Self::default() };
                    }
                    return Ok(());
                }
            }
        }
        if self.address.is_some() {
            *self = Self::default();
        }
        let (what, why) = unreachable.unwrap_or_else(|| {
            let why =
                "no host service was found: it listens on 127.0.0.1:8353, on hosts that have it".to_owned();
            ("host service".to_owned(), why)
        });
        Err(Absence::new(what, why))
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
        if let Err(absence) = self.choose(tick) {
            return Reading { samples: Vec::new(), absent: vec![absence] };
        }
        let mut reading = Reading::default();
        match self.ask().await {
            Ok(None) => {}
            Ok(Some(reply)) => {
                self.retry.succeeded();
                self.fault = samples(&reply, tick, &mut reading.samples).err().map(|error| error.to_string());
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
    samples(reply, tick, &mut decoded).ok()?;
    Some(decoded)
}

/// The samples of a GetHostMetricsResponse.
fn samples(reply: &[u8], tick: &Tick, samples: &mut Vec<Sample>) -> Result<(), Malformed> {
    let mut seen = HashSet::new();
    let mut names = TrayChips::default();
    let mut chips = 0;
    Fields::new(reply, 0).each(1, |entry| -> Result<(), Malformed> {
        chips += 1;
        if chips > MOST_CHIPS {
            return Ok(());
        }
        let entry = UtilizationMetricData::decode(entry)?;
        let of_chip = chip_labels(&entry.chip_identifier, chips - 1, &tick.host.chips);
        let at = measured(&entry, tick.at);
        for (name, labels, value) in values(&entry, &of_chip) {
            let Some((metric, named)) = catalog::by_origin(Origin::HostService, name) else { continue };
            if !value.is_finite()
                || samples.len() >= MOST_VALUES
                || !seen.insert((named.name, labels.clone()))
            {
                continue;
            }
            samples.push(gauge(metric, labels, named.scale.apply(value), at));
        }
        tray_chips(&entry).for_each(|name| names.add(name, of_chip.number(CHIP)));
        Ok(())
    })?;
    let info = |labels| gauge(&catalog::TPU_TRAY_CHIP_INFO, labels, 1.0, tick.at);
    samples.extend(names.series().map(info));
    Ok(())
}

fn gauge(metric: &'static Descriptor, labels: Labels, value: f64, at: Timestamp) -> Sample {
    let value = SampleValue::Gauge(value);
    Sample { metric: metric.into(), labels, value, origin: Origin::HostService, at, workload: None }
}

/// The values of an entry: name in the reply, labels, value.
fn values(entry: &UtilizationMetricData, of_chip: &Labels) -> Vec<(&'static str, Labels, f64)> {
    let mut values: Vec<_> = entry
        .metrics
        .iter()
        .filter(|metric| metric.metric_type() != MetricType::Unspecified)
        .map(|metric| (metric.metric_type().as_str_name(), of_chip.clone(), metric.utilization.into()))
        .collect();
    let Some(health) = &entry.tpu_health_metrics else { return values };
    if let Some(it) = &health.chip_throttling_metric {
        let labels = tray_chip::labels(&tray_chip::name(it.tray_id, it.chip_id));
        values.push(("throttling_score", labels, it.throttling_score as f64));
    }
    for link in &health.ici_link_metrics {
        values.push(("link_health", tray_chip::link_labels(&link.port_id), link.link_health as f64));
    }
    values
}

/// What the entry calls its chip where it speaks of throttling and links.
fn tray_chips(entry: &UtilizationMetricData) -> impl Iterator<Item = String> {
    entry.tpu_health_metrics.iter().flat_map(|health| {
        let throttled =
            health.chip_throttling_metric.iter().map(|it| tray_chip::name(it.tray_id, it.chip_id));
        throttled.chain(health.ici_link_metrics.iter().filter_map(|link| tray_chip::of_link(&link.port_id)))
    })
}

/// The chip, if the identifier is its position or its PCI address; else the identifier as it is. Where a chip was removed
/// or added, nothing tells which one the service counts as which.
fn chip_labels(identifier: &str, position: usize, chips: &[Chip]) -> Labels {
    let by_pci = chips.iter().find(|chip| !identifier.is_empty() && chip.pci == identifier);
    let by_index = || {
        let position: u32 = identifier.parse().ok()?;
        let counted = (0..).zip(chips).all(|(position, chip)| chip.index.0 == position);
        chips.iter().find(|chip| counted && chip.index.0 == position)
    };
    match by_pci.or_else(by_index) {
        Some(chip) => Labels::chip(chip.index),
        None if identifier.is_empty() => Labels::one("chip_id", format!("entry {position}")),
        None => Labels::one("chip_id", clean_label(identifier)),
    }
}

/// When an entry was measured: as it says, if that is within a minute before now.
fn measured(entry: &UtilizationMetricData, read: Timestamp) -> Timestamp {
    let Some(said) = &entry.timestamp else { return read };
    super::said_at(said.seconds, said.nanos, read)
}

#[cfg(test)]
mod tests {
    use model::snapshot::HostSnapshot;
    use proto::libtpu::tpunetd::{
        ChipThrottlingMetric, GetHostMetricsResponse, IciLinkMetric, TpuHealthMetrics, UtilizationMetric,
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
        samples(&reply.encode_to_vec(), &tick(), &mut found).unwrap();
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

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = samples(&bytes, &tick(), &mut Vec::new());
        }
    }
}
