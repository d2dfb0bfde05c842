//! A reply of GetRuntimeMetric, taken apart series by series.
//!
//! The outer messages are walked by hand: a hostile reply of many empty series would otherwise grow a hundredfold
//! when decoded. Must never give more than [`MOST_SERIES`], or let one bad series hide the others.

#![expect(clippy::cast_precision_loss, reason = "a sample is an f64, and counts below 2^53 are exact")]

use model::{label::SmolStr, untrusted::clean_label};
use prost::Message;
use proto::tpu::monitoring::runtime::{
    AttrValue, Attribute, Metric, SupportedMetric, attr_value::Attr, gauge, metric::Measure,
};
use xprof::wire::Fields;

use crate::sources::grpc::Malformed;

/// The most series of one metric that are taken from one endpoint.
pub(super) const MOST_SERIES: usize = 512;
/// The most metric names that are taken from a list.
pub(super) const MOST_NAMES: usize = 256;

/// What a reply holds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SeriesOfMetric {
    /// The series that can be read.
    pub(super) good: Vec<Metric>,
    /// How many could not be read.
    pub(super) bad: usize,
    /// How many were beyond the limit.
    pub(super) beyond: usize,
}

/// The series of a MetricResponse.
pub(super) fn series(reply: &[u8]) -> Result<SeriesOfMetric, Malformed> {
    let mut found = SeriesOfMetric::default();
    Fields::new(reply, 0).each(1, |metric| -> Result<(), Malformed> {
        Fields::new(metric, 0).each(3, |series| {
            if found.good.len() == MOST_SERIES {
                found.beyond += 1;
                return Ok(());
            }
            match Metric::decode(series) {
                Ok(series) => found.good.push(series),
                Err(_) => found.bad += 1,
            }
            Ok(())
        })
    })?;
    Ok(found)
}

/// The names of a ListSupportedMetricsResponse.
pub(super) fn names(reply: &[u8]) -> Result<Vec<String>, Malformed> {
    let mut names = Vec::new();
    Fields::new(reply, 0).each(1, |entry| -> Result<(), Malformed> {
        if names.len() < MOST_NAMES {
            names.push(SupportedMetric::decode(entry)?.metric_name);
        }
        Ok(())
    })?;
    Ok(names)
}

/// The number of a gauge or counter; `None` when it has none, or one that is not finite.
pub(super) fn number(measure: &Measure) -> Option<f64> {
    use proto::tpu::monitoring::runtime::counter;
    let number = match measure {
        Measure::Gauge(gauge) => match gauge.value.as_ref()? {
            gauge::Value::AsDouble(number) => *number,
            gauge::Value::AsInt(number) => *number as f64,
            gauge::Value::AsBool(set) => f64::from(u8::from(*set)),
            gauge::Value::AsString(text) => text.trim().parse().ok()?,
        },
        Measure::Counter(counter) => match counter.value.as_ref()? {
            counter::Value::AsDouble(number) => *number,
            counter::Value::AsInt(number) => *number as f64,
        },
        Measure::Distribution(_) | Measure::Summary(_) => return None,
    };
    number.is_finite().then_some(number)
}

/// The device that a series is about: a bare number, or `device_ordinal` of a list, spelled or not.
pub(super) fn device(attribute: Option<&Attribute>) -> Option<u32> {
    let value = attribute?.value.as_ref()?;
    match value.attr.as_ref()? {
        Attr::KvlistAttr(list) => {
            let ordinal = |one: &&Attribute| one.key.starts_with("device");
            whole(list.attributes.iter().find(ordinal)?.value.as_ref()?)
        }
        _ => whole(value),
    }
}

fn whole(value: &AttrValue) -> Option<u32> {
    match value.attr.as_ref()? {
        Attr::IntAttr(number) => u32::try_from(*number).ok(),
        Attr::StringAttr(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// The text of the pair `key` in a list, spelled with `-` or `_`; with `first` that of the first attribute where there
/// is no such pair.
pub(super) fn label(attribute: Option<&Attribute>, key: &str, first: bool) -> Option<SmolStr> {
    let value = attribute?.value.as_ref()?;
    match value.attr.as_ref()? {
        Attr::KvlistAttr(list) => {
            let named = list.attributes.iter().find(|one| is_spelling_of(&one.key, key));
            let chosen = if first { named.or(list.attributes.first()) } else { named };
            text(chosen?.value.as_ref()?)
        }
        _ if first => text(value),
        _ => None,
    }
}

/// Whether a key of the wire is this label: `buffer-size` is `buffer_size`.
fn is_spelling_of(key: &str, label: &str) -> bool {
    let underscored = key.bytes().map(|byte| if byte == b'-' { b'_' } else { byte });
    underscored.eq(label.bytes())
}

fn text(value: &AttrValue) -> Option<SmolStr> {
    match value.attr.as_ref()? {
        Attr::StringAttr(text) => Some(clean_label(text)),
        Attr::IntAttr(number) => Some(number.to_string().into()),
        Attr::BoolAttr(set) => Some(set.to_string().into()),
        Attr::DoubleAttr(number) => Some(number.to_string().into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::tpu::monitoring::runtime::{
        Gauge, KeyValueList, ListSupportedMetricsResponse, MetricResponse, TpuMetric,
    };

    use super::*;

    fn gauge(device: i64, value: f64) -> Metric {
        let attr = Some(AttrValue { attr: Some(Attr::IntAttr(device)) });
        Metric {
            attribute: Some(Attribute { key: "device-id".into(), value: attr }),
            measure: Some(Measure::Gauge(Gauge { value: Some(gauge::Value::AsDouble(value)) })),
            ..Metric::default()
        }
    }

    fn response(metrics: Vec<Metric>) -> Vec<u8> {
        let metric = TpuMetric { name: "n".into(), description: "d".into(), metrics };
        MetricResponse { metric: Some(metric) }.encode_to_vec()
    }

    #[test]
    fn series_are_bounded_and_a_bad_one_hides_no_other() {
        let many = response((0..600).map(|d| gauge(d, 1.0)).collect());
        let found = series(&many).unwrap();
        assert_eq!((found.good.len(), found.beyond), (MOST_SERIES, 600 - MOST_SERIES));

        // A TPUMetric of a good series, one whose content is no Metric, and another good one.
        let good = gauge(3, 2.5).encode_to_vec();
        let mut metric = Vec::new();
        for part in [good.as_slice(), &[0xff, 0xff], good.as_slice()] {
            metric.extend([0x1a, u8::try_from(part.len()).unwrap()]);
            metric.extend(part);
        }
        let mut reply = vec![0x0a, u8::try_from(metric.len()).unwrap()];
        reply.extend(metric);
        let found = series(&reply).unwrap();
        assert_eq!((found.good, found.bad), (vec![gauge(3, 2.5), gauge(3, 2.5)], 1));
    }

    #[test]
    fn labels_of_old_and_new_libtpu() {
        let pairs = |ordinal: Attr| {
            let attribute =
                |key: &str, attr| Attribute { key: key.into(), value: Some(AttrValue { attr: Some(attr) }) };
            let attributes = vec![
                attribute("device_ordinal", ordinal),
                attribute("core_type", Attr::StringAttr("tensorcore".into())),
            ];
            attribute("core", Attr::KvlistAttr(KeyValueList { attributes }))
        };
        for ordinal in [Attr::IntAttr(5), Attr::StringAttr("5".into())] {
            let attribute = pairs(ordinal);
            assert_eq!(device(Some(&attribute)), Some(5));
            assert_eq!(label(Some(&attribute), "core_type", false).as_deref(), Some("tensorcore"));
            assert_eq!(label(Some(&attribute), "buffer_size", false), None);
        }
        assert_eq!(device(None), None);
        assert_eq!(device(Some(&pairs(Attr::IntAttr(-1)))), None);
    }

    #[test]
    fn names_come_out_of_the_list() {
        let entry = |name: &str| SupportedMetric { metric_name: name.into() };
        let list = ListSupportedMetricsResponse { supported_metric: vec![entry("a.b"), entry("c")] };
        assert_eq!(names(&list.encode_to_vec()).unwrap(), ["a.b", "c"]);
        assert_eq!(names(&[]).unwrap(), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = series(&bytes);
            let _ = names(&bytes);
        }

        #[test]
        fn what_is_sent_is_read(values in prop::collection::vec((0_i64..1000, any::<f64>()), 0..20)) {
            let sent: Vec<_> = values.iter().map(|&(d, v)| gauge(d, v)).collect();
            let found = series(&response(sent)).unwrap();
            for (series, (device_id, value)) in found.good.iter().zip(values) {
                prop_assert_eq!(device(series.attribute.as_ref()), u32::try_from(device_id).ok());
                let read = series.measure.as_ref().and_then(number);
                prop_assert_eq!(read, value.is_finite().then_some(value));
            }
        }
    }
}
