//! Replies of the host's own metric service.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use model::{
    device::{Chip, ChipIndex},
    sample::Value,
    time::Timestamp,
    workload::Workloads,
};
use sampling::sources::{Tick, host_service::decode_reply};

fuzz_target!(|data: &[u8]| {
    let chip = |index| Chip { index: ChipIndex(index), ..Chip::default() };
    let tick = Tick {
        at: Timestamp(1_795_000_000_000_000_000),
        chips: [chip(0), chip(1)].into(),
        workloads: Arc::new(Workloads::default()),
    };
    for sample in decode_reply(data, &tick).unwrap_or_default() {
        assert!(matches!(sample.value, Value::Gauge(value) if value.is_finite()));
    }
});
