//! Replies of a workload's runtime metric service: every metric, two replies of any bytes one after the other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{
    catalog::METRICS,
    device::{Chip, ChipIndex},
    sample::{Origin, Value},
};
use sampling::sources::runtime::{decode_names, decode_replies};

fuzz_target!(|data: &[u8]| {
    let _ = decode_names(data);
    let [which, cut, rest @ ..] = data else { return };
    let names: Vec<_> = METRICS
        .iter()
        .flat_map(|metric| metric.wires)
        .filter(|wire| wire.origin == Origin::Runtime)
        .map(|wire| wire.name)
        .collect();
    let name = names[usize::from(*which) % names.len()];
    let chips = [0, 1].map(|index| Chip { index: ChipIndex(index), cores: Some(2), ..Chip::default() });
    let (first, second) = rest.split_at(rest.len() * usize::from(*cut) / 255);
    let Some(samples) = decode_replies(name, &[first, second], &chips) else { return };
    for sample in samples {
        if let Value::Gauge(value) = sample.value {
            assert!(!value.is_nan(), "{name}");
        }
    }
});
