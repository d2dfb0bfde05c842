//! A block: points of one series in a fixed number of bytes, each as its difference from the one before.
//!
//! A point is a control byte (low half: how column 0 changed; bit 4: a time step follows), then for three columns a
//! second control byte (columns 1 and 2), the change of the time step as a zigzag varint where it changed, and of
//! each column the bytes of the XOR with its last value that are not zero. A steady series at a steady interval
//! takes one byte a point. Must never hold a time that was not put in.

/// Bytes of a block, header included.
pub(super) const BLOCK: usize = 256;
const PAYLOAD: usize = BLOCK - 24;
const STEP_CHANGED: u8 = 0x10;

/// Which bytes of an XOR are kept: (first, one past the last), most significant first; the first entry is "none".
const RANGES: [(usize, usize); 11] =
    [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)];

/// The bytes.
pub(super) struct Block {
    /// Milliseconds since the epoch of its first point.
    pub(super) first: i64,
    /// The series that it belongs to.
    pub(super) owner: u32,
    /// Counts how often it was given away, so that an old reference to it is seen.
    pub(super) generation: u32,
    points: u16,
    used: u16,
    payload: [u8; PAYLOAD],
}

/// What the next point of a block is compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoder<const COLUMNS: usize> {
    at: i64,
    step: i64,
    bits: [u32; COLUMNS],
}

impl<const COLUMNS: usize> Encoder<COLUMNS> {
    /// After all times of the block were moved.
    pub(super) fn step(&mut self, by: i64) {
        self.at = self.at.saturating_add(by);
    }
}

impl Block {
    pub(super) fn empty() -> Self {
        Self { first: 0, owner: 0, generation: 0, points: 0, used: 0, payload: [0; PAYLOAD] }
    }

    /// Begins anew with one point.
    pub(super) fn start<const COLUMNS: usize>(
        &mut self,
        owner: u32,
        at: i64,
        values: [f32; COLUMNS],
    ) -> Encoder<COLUMNS> {
        self.first = at;
        self.owner = owner;
        self.points = 1;
        self.used = 0;
        let bits = values.map(f32::to_bits);
        for column in bits {
            self.put(&column.to_be_bytes());
        }
        Encoder { at, step: 0, bits }
    }

    /// Adds a point; false, and unchanged, when there is no room for it.
    pub(super) fn push<const COLUMNS: usize>(
        &mut self,
        encoder: &mut Encoder<COLUMNS>,
        at: i64,
        values: [f32; COLUMNS],
    ) -> bool {
        let step = at - encoder.at;
        let bits = values.map(f32::to_bits);
        let changes: [u32; COLUMNS] = std::array::from_fn(|column| bits[column] ^ encoder.bits[column]);
        let codes = changes.map(code);
        // A point is at most 2 control bytes, 10 of time and 4 a column.
        let mut point = [0; 24];
        let mut length = codes.len().div_ceil(2).max(1);
        point[0] = codes[0];
        for (column, code) in codes.iter().enumerate().skip(1) {
            point[1] |= code << (4 * (column - 1));
        }
        if step != encoder.step {
            point[0] |= STEP_CHANGED;
            length += varint(zigzag(step.wrapping_sub(encoder.step)), &mut point[length..]);
        }
        for (change, code) in changes.iter().zip(codes) {
            let (first, end) = RANGES[usize::from(code)];
            point[length..length + end - first].copy_from_slice(&change.to_be_bytes()[first..end]);
            length += end - first;
        }
        if usize::from(self.used) + length > PAYLOAD || self.points == u16::MAX {
            return false;
        }
        self.put(&point[..length]);
        self.points += 1;
        *encoder = Encoder { at, step, bits };
        true
    }

    fn put(&mut self, bytes: &[u8]) {
        let used = usize::from(self.used);
        self.payload[used..used + bytes.len()].copy_from_slice(bytes);
        self.used = u16::try_from(used + bytes.len()).expect("a block is shorter than 64 KiB");
    }

    /// Its points in the order in which they were put in.
    pub(super) fn points<const COLUMNS: usize>(&self) -> impl Iterator<Item = (i64, [f32; COLUMNS])> + '_ {
        let mut rest = &self.payload[..usize::from(self.used)];
        let mut encoder = Encoder { at: self.first, step: 0, bits: [0; COLUMNS] };
        (0..self.points).map(move |point| {
            if point == 0 {
                encoder.bits = std::array::from_fn(|_| u32::from_be_bytes(take(&mut rest, 4)));
            } else {
                next(&mut rest, &mut encoder);
            }
            (encoder.at, encoder.bits.map(f32::from_bits))
        })
    }
}

/// Decodes one point.
fn next<const COLUMNS: usize>(rest: &mut &[u8], encoder: &mut Encoder<COLUMNS>) {
    let [.., control] = take(rest, 1);
    let [.., more] = if COLUMNS > 1 { take(rest, 1) } else { [0; 4] };
    if control & STEP_CHANGED != 0 {
        encoder.step = encoder.step.wrapping_add(unzigzag(unvarint(rest)));
    }
    encoder.at = encoder.at.wrapping_add(encoder.step);
    for column in 0..COLUMNS {
        let code = if column == 0 { control } else { more >> (4 * (column - 1)) };
        let (first, end) = RANGES[usize::from(code & 0x0f)];
        // Nothing kept: nothing changed, and a shift by the whole width.
        let kept = u32::from_be_bytes(take(rest, end - first));
        let change = kept.unbounded_shl(u32::try_from(8 * (4 - end)).unwrap_or(32));
        encoder.bits[column] ^= change;
    }
}

/// The next `count` bytes as the low end of a word.
fn take(rest: &mut &[u8], count: usize) -> [u8; 4] {
    let (now, later) = rest.split_at(count);
    *rest = later;
    let mut word = [0; 4];
    word[4 - count..].copy_from_slice(now);
    word
}

fn code(change: u32) -> u8 {
    let first = usize::try_from(change.leading_zeros() / 8).unwrap_or(0);
    let end = 4 - usize::try_from(change.trailing_zeros() / 8).unwrap_or(0);
    let range = if change == 0 { (0, 0) } else { (first, end) };
    let position =
        RANGES.iter().position(|known| *known == range).expect("every range of 4 bytes is in the table");
    u8::try_from(position).expect("the table is short")
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

fn varint(mut number: u64, out: &mut [u8]) -> usize {
    let mut length = 0;
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        out[length] = if number == 0 { low } else { low | 0x80 };
        length += 1;
        if number == 0 {
            return length;
        }
    }
}

fn unvarint(rest: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [.., byte] = take(rest, 1);
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fill<const COLUMNS: usize>(points: &[(i64, [f32; COLUMNS])]) -> (Block, usize) {
        let mut block = Block::empty();
        let mut encoder = block.start(7, points[0].0, points[0].1);
        let more =
            points[1..].iter().take_while(|(at, values)| block.push(&mut encoder, *at, *values)).count();
        (block, more + 1)
    }

    fn same<const COLUMNS: usize>(points: &[(i64, [f32; COLUMNS])]) {
        let (block, kept) = fill(points);
        let bits = |values: [f32; COLUMNS]| values.map(f32::to_bits);
        let read: Vec<_> = block.points().map(|(at, values)| (at, bits(values))).collect();
        let put: Vec<_> = points[..kept].iter().map(|&(at, values)| (at, bits(values))).collect();
        assert_eq!(read, put);
    }

    #[test]
    fn a_block_is_as_large_as_it_says() {
        assert_eq!(size_of::<Block>(), BLOCK);
    }

    #[test]
    fn a_steady_series_takes_a_byte_a_point() {
        let points: Vec<_> = (0..1000).map(|n| (1000 * n, [2.5])).collect();
        assert!(fill(&points).1 >= PAYLOAD - 8);
    }

    proptest! {
        #[test]
        fn what_is_put_in_comes_out(
            points in prop::collection::vec((any::<i64>().prop_map(|at| at >> 8), any::<[f32; 1]>()), 1..300)
        ) {
            same(&points);
        }

        #[test]
        fn three_columns_as_well(
            points in prop::collection::vec((0_i64..100_000, prop::array::uniform3(0_f32..4.0)), 1..300)
        ) {
            same(&points);
        }
    }
}
