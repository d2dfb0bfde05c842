//! A packet of the marks socket, and each mark in it.
#![no_main]

use goodput::{entry::Payload, time::Nanos};
use libfuzzer_sys::fuzz_target;
use marks::{
    mark_line::MarkLine,
    packet::{PACKET_MARKS, Packet},
};

fuzz_target!(|data: &[u8]| {
    let _ = MarkLine::parse(data);
    let Ok(packet) = Packet::parse(data) else { return };
    let mut marks = 0;
    for line in packet.lines() {
        marks += 1;
        let Ok(mark) = MarkLine::parse(line) else { continue };
        let payload = Payload::parse(mark.payload.as_bytes()).expect("it was checked");
        assert_eq!(payload.job(), mark.job.as_deref());
        let entry = payload.entry(Nanos(mark.at.0), "".into());
        for at in entry.events.as_slice().iter().filter_map(|event| event.at()) {
            assert!(at.is_finite() && at >= 0.0, "{at}");
        }
    }
    assert!((1..=PACKET_MARKS).contains(&marks) && packet.first > 0);
});
