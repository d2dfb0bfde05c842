//! The same endpoint read by us and by tpu-info's own library: the values are equal.

use std::process::Command;

use fakes::{fake_runtime::FakeRuntime, harness::peer};
use model::{
    device::Generation,
    workload::{Address, EndpointKind},
};
use sampling::sources::{Reading, runtime::RuntimeSource};

use super::{chips, gauges, read, tick};

const SCRIPT: &str = "
import json, sys
from tpu_info import device, metrics
chip, address = device.TpuChip.V6E, sys.argv[1]
usages = metrics.get_chip_usage(chip, address)
print(json.dumps({
    'tpu_hbm_used_bytes': [[u.device_id, u.memory_usage] for u in usages],
    'tpu_hbm_total_bytes': [[u.device_id, u.total_memory] for u in usages],
    'tpu_tensorcore_duty_cycle_ratio': [[u.device_id, u.duty_cycle_pct / 100] for u in usages],
    'tpu_hlo_queue_size': [[q.device_id, q.queue_size] for q in metrics.get_hlo_queue_size(chip, address)],
}))
";

/// What tpu-info's library reads at the endpoint.
fn theirs(address: &str) -> serde_json::Value {
    let run = Command::new(peer("tpu-info/bin/python")).args(["-c", SCRIPT, address]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

fn ours(reading: &Reading, metric: &str) -> Vec<(u64, f64)> {
    let mut found: Vec<_> =
        gauges(reading, metric).iter().map(|(_, core, value)| (u64::from(core.unwrap()), *value)).collect();
    found.sort_by_key(|(core, _)| *core);
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn our_values_are_those_of_tpu_info() {
    let fake = FakeRuntime::with_devices(&[3, 0, 1, 2]);
    let address = fake.address();
    let mut tick = tick(EndpointKind::RuntimeMetrics, &[Address::Tcp(address)], &chips(Generation::V6e, 4));
    let reading = read(&mut RuntimeSource::default(), &mut tick).await;
    let theirs = theirs(&address.to_string());
    for (metric, values) in theirs.as_object().unwrap() {
        let ours = ours(&reading, metric);
        assert_eq!(ours.len(), 4, "{metric}");
        for ((core, value), their) in ours.iter().zip(values.as_array().unwrap()) {
            assert_eq!(Some(*core), their[0].as_u64(), "{metric}");
            assert!((value - their[1].as_f64().unwrap()).abs() <= value.abs() * 1e-12, "{metric} of {core}");
        }
    }
    assert_eq!(theirs.as_object().unwrap().len(), 4);
}
