//! What comes from the libtpu child: frames of any bytes, and the SDK's texts as values of every metric.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{
    catalog,
    device::{Chip, ChipIndex},
    sample::{Origin, SampleValue},
};
use sampling::sources::libtpu::{decode_replies, decode_values};

fuzz_target!(|data: &[u8]| {
    let _ = decode_replies(data);
    let values: Vec<String> = String::from_utf8_lossy(data).split('\n').map(str::to_owned).collect();
    let chips = [0, 1].map(|index| Chip { index: ChipIndex(index), ..Chip::default() });
    for (_, named) in catalog::of_origin(Origin::Libtpu) {
        for sample in decode_values(named.name, &values, &chips) {
            let (SampleValue::Gauge(value) | SampleValue::Counter(value)) = sample.value else {
                panic!("{}: {sample:?}", named.name)
            };
            assert!(value.is_finite(), "{}: {value}", named.name);
        }
    }
});
