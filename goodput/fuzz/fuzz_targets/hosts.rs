//! Arbitrary slots of several hosts into their combination: no panic, and the seconds add up.
#![no_main]

use goodput::proxy::{HostSlots, combine};
use libfuzzer_sys::fuzz_target;

// Per host: first second, number of slots, number of bytes, bytes. Both numbers may disagree.
fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let mut hosts = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<6>() {
        let first = i64::from(i16::from_le_bytes([head[0], head[1]]));
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (bits, tail) = tail.split_at(usize::from(head[4]).min(tail.len()));
        // The ends of the numbers, too.
        let first = if head[5] == 255 { i64::MAX - first.abs() } else { first };
        hosts.push(HostSlots { first, length, bits: bits.to_vec() });
        rest = tail;
    }
    let far = hosts.iter().any(|host| host.first > 1 << 40) && hosts.iter().any(|host| host.first < 1 << 40);
    if far || hosts.len() > 16 {
        return;
    }
    let Some(combined) = combine(&hosts) else { return };
    let sum = combined.productive_s + combined.down_s + combined.idle_s + combined.unknown_s;
    assert_eq!(sum, combined.elapsed_s);
    assert!((0.0..=1.0).contains(&combined.coverage));
    assert!(combined.proxy_runtime_goodput.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
});
