//! One file on its way to its object: a pure state machine.
//!
//! ```text
//! Unknown ──looked: not there──> Missing ──small: put──────────────────────────────┐
//!    │                            │  ^  large: begun                               v
//!    │                            v  └──────────── the parts are gone ────────── Sent
//!    │                          Parts ──every part sent, then completed ───────────^ │
//!    │                                                                               │ looked
//!    └──looked: as it is here──> There <──────as it is here──────────────────────────┤
//!                                                                                    │
//!                        Missing, of the generation to replace <──otherwise──────────┘
//!                        Failed after MAX_DAMAGED times
//! ```
//!
//! A write that was answered with an error may have been done: the object is then compared with the file, and is neither a
//! conflict nor written again when it is the same.

use std::collections::BTreeMap;

use crate::destinations::target::ObjectFacts;

/// The longest file that is sent in one request, and the shortest part of a longer one.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// The most parts of an object.
const MAX_PARTS: u64 = 10_000;
/// After so many objects that are not as they were sent, the upload waits for an administrator.
pub(crate) const MAX_DAMAGED: u32 = 3;

/// A part that the destination has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentPart {
    /// What the destination needs of it to make the object.
    pub(crate) tag: String,
    /// CRC32C of its content.
    pub(crate) crc32c: u32,
}

/// How far a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileState {
    /// It may be there from before this upload was known.
    Unknown,
    /// It has to be sent; `replaces` is the generation of an object that is not as it was sent.
    Missing { replaces: Option<String> },
    /// It is being sent in parts.
    Parts { id: String, sent: BTreeMap<u32, SentPart> },
    /// It may be there. CRC32C of what was sent; `None`: not known.
    Sent { crc32c: Option<u32> },
    /// It is there, as it is here.
    There(ThereFile),
    /// It was [`MAX_DAMAGED`] times not as it was sent.
    Failed,
}

/// A file that is at its destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThereFile {
    /// Of the object; empty if the destination has none.
    pub(crate) generation: String,
    /// Of the object; empty if the destination has none.
    pub(crate) etag: String,
    /// CRC32C of its content.
    pub(crate) crc32c: u32,
    /// Whether the destination said the checksum too. If not, only the size was compared.
    pub(crate) verified: bool,
}

/// What can be done for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FileStep {
    /// Ask the destination for the object, and compare.
    Look,
    /// Send it in one request.
    Put,
    /// Begin to send it in parts.
    Begin,
    /// Send the part of this index.
    Part(u32),
    /// Make the object of its parts.
    Complete,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileEvent {
    /// The object as the destination has it, and the CRC32C of the file.
    Looked { object: Option<ObjectFacts>, crc32c: u32 },
    /// It was sent in one request, or there was an object already.
    Put { crc32c: u32 },
    /// Parts can be sent.
    Begun { id: String },
    /// A part was sent under this id.
    Part { id: String, index: u32, sent: SentPart },
    /// The object was made of the parts with this id.
    Completed { id: String },
    /// The destination does not know the parts with this id: perhaps the object was made of them.
    PartsGone { id: String },
}

/// One file of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileUpload {
    /// Its name in the session's folder.
    pub(crate) name: String,
    /// Its length in bytes.
    pub(crate) size: u64,
    /// How far it is.
    pub(crate) state: FileState,
    /// How often the object was not as it was sent.
    pub(crate) damaged: u32,
}

impl FileUpload {
    /// A file of `size` bytes; `fresh`: nothing of it can be there.
    pub(crate) fn new(name: String, size: u64, fresh: bool) -> Self {
        let state = if fresh { FileState::Missing { replaces: None } } else { FileState::Unknown };
        Self { name, size, state, damaged: 0 }
    }

    /// The length of its parts but the last, in bytes.
    pub(crate) fn part_bytes(&self) -> u64 {
        const MIB: u64 = 1 << 20;
        PART_BYTES.max(self.size.div_ceil(MAX_PARTS).div_ceil(MIB) * MIB)
    }

    /// Number of its parts.
    pub(crate) fn parts(&self) -> u32 {
        u32::try_from(self.size.div_ceil(self.part_bytes())).unwrap_or(u32::MAX)
    }

    /// Where a part begins and how long it is.
    pub(crate) fn part_range(&self, index: u32) -> (u64, u64) {
        let offset = u64::from(index).saturating_mul(self.part_bytes());
        (offset, self.size.saturating_sub(offset).min(self.part_bytes()))
    }

    /// The bytes that the destination has.
    pub(crate) fn sent_bytes(&self) -> u64 {
        match &self.state {
            FileState::Parts { sent, .. } => sent.keys().map(|index| self.part_range(*index).1).sum(),
            FileState::Sent { .. } | FileState::There(_) => self.size,
            FileState::Unknown | FileState::Missing { .. } | FileState::Failed => 0,
        }
    }

    /// Whether it is there.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self.state, FileState::There(_))
    }

    /// All steps that can be made now, in any order and at the same time.
    pub(crate) fn steps(&self) -> Box<dyn Iterator<Item = FileStep> + '_> {
        let one = |step| Box::new(std::iter::once(step)) as Box<dyn Iterator<Item = FileStep>>;
        match &self.state {
            FileState::Unknown | FileState::Sent { .. } => one(FileStep::Look),
            FileState::Missing { .. } if self.size <= PART_BYTES => one(FileStep::Put),
            FileState::Missing { .. } => one(FileStep::Begin),
            FileState::Parts { sent, .. } if sent.len() == self.parts() as usize => one(FileStep::Complete),
            FileState::Parts { sent, .. } => {
                let missing = (0..self.parts()).filter(|index| !sent.contains_key(index));
                Box::new(missing.map(FileStep::Part))
            }
            FileState::There(_) | FileState::Failed => Box::new(std::iter::empty()),
        }
    }

    /// Notes what came of a step.
    pub(crate) fn apply(&mut self, event: FileEvent) {
        match (event, &mut self.state) {
            (FileEvent::Looked { object, crc32c }, FileState::Unknown | FileState::Sent { .. }) => {
                self.looked(object, crc32c);
            }
            (FileEvent::Put { crc32c }, FileState::Missing { .. }) => {
                self.state = FileState::Sent { crc32c: Some(crc32c) };
            }
            (FileEvent::Begun { id }, FileState::Missing { .. }) => {
                self.state = FileState::Parts { id, sent: BTreeMap::new() };
            }
            (FileEvent::Part { id: of, index, sent: part }, FileState::Parts { id, sent }) if of == *id => {
                sent.insert(index, part);
            }
            (
                FileEvent::Completed { id: of } | FileEvent::PartsGone { id: of },
                FileState::Parts { id, .. },
            ) if of == *id => {
                self.state = FileState::Sent { crc32c: self.crc_of_parts() };
            }
            // Late news of a step whose file went on without it, such as a part of an id that was gone: several parts are
            // on their way at the same time, and the first that is refused begins anew for all of them.
            _ => {}
        }
    }

    fn looked(&mut self, object: Option<ObjectFacts>, crc32c: u32) {
        let sent = matches!(self.state, FileState::Sent { .. });
        let Some(object) = object else {
            // What was sent in full and is not there was not kept.
            self.damaged += u32::from(matches!(self.state, FileState::Sent { crc32c: Some(_) }));
            return self.send_again(None);
        };
        if object.size == self.size && object.crc32c.is_none_or(|found| found == crc32c) {
            let verified = object.crc32c.is_some();
            let ObjectFacts { generation, etag, .. } = object;
            self.state = FileState::There(ThereFile { generation, etag, crc32c, verified });
            return;
        }
        self.damaged += u32::from(sent);
        self.send_again(Some(object.generation));
    }

    fn send_again(&mut self, replaces: Option<String>) {
        self.state =
            if self.damaged < MAX_DAMAGED { FileState::Missing { replaces } } else { FileState::Failed };
    }

    /// CRC32C of the whole file, if every part was sent.
    fn crc_of_parts(&self) -> Option<u32> {
        let FileState::Parts { sent, .. } = &self.state else { return None };
        if sent.len() != self.parts() as usize {
            return None;
        }
        let combined = sent.iter().fold(0, |crc, (index, part)| {
            let length = usize::try_from(self.part_range(*index).1).unwrap_or(usize::MAX);
            crc32c::crc32c_combine(crc, part.crc32c, length)
        });
        Some(combined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64) -> FileUpload {
        FileUpload::new("a".to_owned(), size, true)
    }

    #[test]
    fn the_parts_cover_the_file_and_are_never_too_many() {
        for size in [PART_BYTES + 1, 3 * PART_BYTES, 100 << 30, 5 << 40] {
            let file = file(size);
            assert!(u64::from(file.parts()) <= MAX_PARTS, "{size}");
            let (mut end, last) = (0, file.parts() - 1);
            for index in 0..=last {
                let (offset, length) = file.part_range(index);
                assert_eq!(offset, end);
                assert!(length == file.part_bytes() || index == last && length > 0);
                end += length;
            }
            assert_eq!(end, size);
        }
    }

    #[test]
    fn the_checksum_of_the_parts_is_that_of_the_file() {
        let data: Vec<u8> = (0..PART_BYTES + 1000).map(|n| (n % 251) as u8).collect();
        let mut file = file(data.len() as u64);
        file.apply(FileEvent::Begun { id: "u".to_owned() });
        for index in [1, 0] {
            let (offset, length) = file.part_range(index);
            let at = |offset: u64| usize::try_from(offset).unwrap();
            let piece = &data[at(offset)..at(offset + length)];
            let sent = SentPart { tag: index.to_string(), crc32c: crc32c::crc32c(piece) };
            file.apply(FileEvent::Part { id: "u".to_owned(), index, sent });
        }
        assert_eq!(file.steps().collect::<Vec<_>>(), [FileStep::Complete]);
        file.apply(FileEvent::Completed { id: "u".to_owned() });
        assert_eq!(file.state, FileState::Sent { crc32c: Some(crc32c::crc32c(&data)) });
    }

    #[test]
    fn without_a_checksum_of_the_destination_the_file_is_unverified() {
        for (crc32c, verified) in [(Some(7), true), (None, false)] {
            let mut file = file(3);
            file.apply(FileEvent::Put { crc32c: 7 });
            let object = ObjectFacts { size: 3, crc32c, generation: "1".to_owned(), etag: String::new() };
            file.apply(FileEvent::Looked { object: Some(object), crc32c: 7 });
            assert!(matches!(&file.state, FileState::There(there) if there.verified == verified));
        }
    }

    #[test]
    fn a_damaged_object_is_replaced_and_given_up_at_last() {
        let mut file = file(3);
        for times in 1..=MAX_DAMAGED {
            assert_eq!(file.steps().collect::<Vec<_>>(), [FileStep::Put], "{times}");
            file.apply(FileEvent::Put { crc32c: 7 });
            let object =
                ObjectFacts { size: 3, crc32c: Some(8), generation: "9".to_owned(), etag: String::new() };
            file.apply(FileEvent::Looked { object: Some(object), crc32c: 7 });
        }
        assert_eq!((file.state.clone(), file.steps().count()), (FileState::Failed, 0));
    }

    #[test]
    fn parts_that_are_gone_begin_anew_once_for_all_that_were_on_their_way() {
        let mut file = file(4 * PART_BYTES);
        let event = |id: &str| FileEvent::PartsGone { id: id.to_owned() };
        file.apply(FileEvent::Begun { id: "old".to_owned() });
        file.apply(event("old"));
        file.apply(FileEvent::Looked { object: None, crc32c: 7 });
        file.apply(FileEvent::Begun { id: "new".to_owned() });
        // The other parts of the old id are answered now.
        file.apply(event("old"));
        let sent = SentPart { tag: "t".to_owned(), crc32c: 1 };
        file.apply(FileEvent::Part { id: "old".to_owned(), index: 1, sent: sent.clone() });
        assert_eq!(file.state, FileState::Parts { id: "new".to_owned(), sent: BTreeMap::new() });
        file.apply(FileEvent::Part { id: "new".to_owned(), index: 1, sent });
        assert_eq!(file.sent_bytes(), PART_BYTES);
    }

    #[test]
    fn parts_that_are_gone_were_completed_or_are_sent_again() {
        let begun = || {
            let mut file = file(PART_BYTES + 1);
            file.apply(FileEvent::Begun { id: "u".to_owned() });
            file.apply(FileEvent::PartsGone { id: "u".to_owned() });
            assert_eq!(file.steps().collect::<Vec<_>>(), [FileStep::Look]);
            file
        };
        let mut gone = begun();
        gone.apply(FileEvent::Looked { object: None, crc32c: 7 });
        assert_eq!((gone.steps().collect::<Vec<_>>(), gone.damaged), (vec![FileStep::Begin], 0));
        let mut completed = begun();
        let size = completed.size;
        let object = ObjectFacts { size, crc32c: Some(7), generation: String::new(), etag: String::new() };
        completed.apply(FileEvent::Looked { object: Some(object), crc32c: 7 });
        assert!(completed.is_there());
    }
}
