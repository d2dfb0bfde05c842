//! The records of an event file: length, checksum of the length, data, checksum of the data. A reader stops at a record
//! that is torn, and has all before it.

/// What is added to a rotated checksum, so that the checksum of data that contains checksums differs from theirs.
const MASK: u32 = 0xa282_ead8;

/// Appends one record with this data.
pub(super) fn push(data: &[u8], records: &mut Vec<u8>) {
    let length = (data.len() as u64).to_le_bytes();
    records.extend_from_slice(&length);
    records.extend_from_slice(&masked_checksum(&length).to_le_bytes());
    records.extend_from_slice(data);
    records.extend_from_slice(&masked_checksum(data).to_le_bytes());
}

fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_length_and_two_masked_checksums() {
        // The first record of a file that TensorFlow wrote: wall time 1.5e9 and `brain.Event:2`.
        let event = b"\x09\x00\x00\x00\x00\xc0\x5a\xd6\x41\x1a\x0dbrain.Event:2";
        let mut records = vec![7];
        push(event, &mut records);
        assert_eq!(records.len(), 1 + 8 + 4 + 24 + 4);
        assert_eq!(records[1..9], [24, 0, 0, 0, 0, 0, 0, 0]);
        // The checksum of a length of 24 that begins every such file.
        assert_eq!(records[9..13], [0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(&records[13..37], event);
    }
}
