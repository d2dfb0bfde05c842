//! Arbitrary observations into the proxy: no panic, and the buckets add up.
#![no_main]

use goodput::proxy::{HostSlots, Slots, HostObservations, combine, proxy};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(observed) = serde_json::from_slice::<HostObservations>(data) else { return };
    // Long windows are right but slow here.
    let first = observed.opens.iter().map(|open| open.2).fold(observed.now, f64::min);
    if observed.now - first > 100_000.0 {
        return;
    }
    let Ok(answer) = proxy(&observed) else { return };
    let b = answer.buckets;
    let sum = b.productive + b.init + b.prep + b.stall + b.partial + b.recovery + b.unknown;
    assert_eq!(sum, answer.elapsed_s);
    for ratio in [answer.proxy_runtime_goodput, answer.scheduling_goodput, answer.proxy_minus_wasted] {
        assert!(ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
    }
    if let Ok(slots) = Slots::new(&observed) {
        let combined = combine(&[HostSlots::from(&slots)]).expect("one host");
        assert_eq!(combined.productive_s, b.productive);
    }
});
