//! Fields of protobuf messages, appended to bytes. Of a message the length comes first, so that what is in it is written before.
//!
//! Unlike prost's own code it also writes fields that have the value of a missing one: both mean the same.

use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// A text, bytes, or a message that is encoded.
pub(super) fn bytes_field(tag: u32, value: &[u8], to: &mut Vec<u8>) {
    message_head(tag, value.len(), to);
    to.extend_from_slice(value);
}

/// What stands before a message, or another field, of this many bytes.
pub(super) fn message_head(tag: u32, length: usize, to: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, to);
    encode_varint(length as u64, to);
}

/// The bytes of what stands before a message of this many bytes.
pub(super) fn head_bytes(tag: u32, length: usize) -> usize {
    key_len(tag) + encoded_len_varint(length as u64)
}

/// A number, a truth value or an enumeration.
pub(super) fn number_field(tag: u32, value: u64, to: &mut Vec<u8>) {
    encode_key(tag, WireType::Varint, to);
    encode_varint(value, to);
}

/// A number of 8 bytes; one of `f64` as its bits.
pub(super) fn fixed_field(tag: u32, value: u64, to: &mut Vec<u8>) {
    encode_key(tag, WireType::SixtyFourBit, to);
    to.extend_from_slice(&value.to_le_bytes());
}

/// Numbers of 8 bytes, packed.
pub(super) fn fixed_list(tag: u32, values: impl ExactSizeIterator<Item = u64>, to: &mut Vec<u8>) {
    message_head(tag, 8 * values.len(), to);
    values.for_each(|value| to.extend_from_slice(&value.to_le_bytes()));
}

/// A text attribute: a `KeyValue` with an `AnyValue`.
pub(super) fn attribute_field(tag: u32, key: &str, value: &str, to: &mut Vec<u8>) {
    let of_value = head_bytes(1, value.len()) + value.len();
    let length = head_bytes(1, key.len()) + key.len() + head_bytes(2, of_value) + of_value;
    message_head(tag, length, to);
    bytes_field(1, key.as_bytes(), to);
    message_head(2, of_value, to);
    bytes_field(1, value.as_bytes(), to);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use proto::opentelemetry::proto::{
        common::v1::{AnyValue, KeyValue, any_value::Value},
        metrics::v1::{HistogramDataPoint, Sum},
    };

    use super::*;

    proptest! {
        /// What is written is what prost reads, whatever the values and lengths.
        #[test]
        fn fields_are_read_as_they_were_written(
            key in ".{0,20}",
            value in prop_oneof![".{0,20}", "x{120,140}", "y{16370,16400}"],
            (start, count, sum) in any::<(u64, u64, f64)>(),
            counts in prop::collection::vec(any::<u64>(), 0..40),
            temporality in 0..=i32::MAX,
        ) {
            let mut bytes = Vec::new();
            fixed_field(2, start, &mut bytes);
            fixed_field(4, count, &mut bytes);
            fixed_field(5, sum.to_bits(), &mut bytes);
            fixed_list(6, counts.iter().copied(), &mut bytes);
            attribute_field(9, &key, &value, &mut bytes);
            let read = HistogramDataPoint::decode(&*bytes).unwrap();
            prop_assert_eq!((read.start_time_unix_nano, read.count), (start, count));
            prop_assert_eq!(read.sum.map(f64::to_bits), Some(sum.to_bits()));
            prop_assert_eq!(read.bucket_counts, counts);
            let value = Some(AnyValue { value: Some(Value::StringValue(value)) });
            prop_assert_eq!(read.attributes, vec![KeyValue { key, value }]);
            bytes.clear();
            number_field(2, temporality.unsigned_abs().into(), &mut bytes);
            number_field(3, 1, &mut bytes);
            let read = Sum::decode(&*bytes).unwrap();
            prop_assert_eq!((read.aggregation_temporality, read.is_monotonic), (temporality, true));
        }
    }
}
