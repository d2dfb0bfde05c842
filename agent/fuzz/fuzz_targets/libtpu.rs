//! What comes from the libtpu child: frames of any bytes, and the SDK's texts as values of every metric.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{
    catalog::METRICS,
    device::{Chip, ChipIndex},
    sample::{Origin, Value},
};
use sampling::sources::libtpu::{decode_replies, decode_values};

fuzz_target!(|data: &[u8]| {
    let _ = decode_replies(data);
    let values: Vec<String> = String::from_utf8_lossy(data).split('\n').map(str::to_owned).collect();
    let chips = [0, 1].map(|index| Chip { index: ChipIndex(index), ..Chip::default() });
    let wires = METRICS.iter().flat_map(|metric| metric.wires);
    for wire in wires.filter(|wire| wire.origin == Origin::Libtpu) {
        for sample in decode_values(wire.name, &values, &chips) {
            assert!(matches!(sample.value, Value::Gauge(value) if !value.is_nan()), "{}", wire.name);
        }
    }
});
