//! Any order of steps, any failure before and after a write, and any stop lead to the same objects, each written once.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    destinations::target::ObjectFacts,
    uploads::file::{PART_BYTES, SentPart},
};

/// A bucket that remembers only what matters here: the size and checksum of each object, and how often it was written.
#[derive(Default)]
pub(crate) struct ModelBucket {
    pub(crate) claims: BTreeMap<String, String>,
    pub(crate) objects: BTreeMap<String, (u64, u32, u32)>,
    parts: BTreeMap<String, (String, BTreeMap<u32, u32>)>,
    begun: u32,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    Good,
    LostBefore,
    LostAfter,
}

fn crc(file: &FileUpload) -> u32 {
    crc32c::crc32c(file.name.as_bytes())
}

impl ModelBucket {
    /// Makes a step. `None`: an error was answered.
    pub(crate) fn make(&mut self, upload: &mut SessionUpload, step: UploadStep, fate: Fate) -> Option<()> {
        if fate == Fate::LostBefore {
            return None;
        }
        let (index, step) = match step {
            UploadStep::Claim => {
                let name = upload.name_there().unwrap().to_string();
                let was = self.claims.get(&name).cloned();
                let answer = match was {
                    None => ClaimAnswer::New,
                    Some(id) if id == upload.id() => ClaimAnswer::Ours,
                    Some(_) => ClaimAnswer::Foreign,
                };
                self.claims.entry(name).or_insert_with(|| upload.id().to_owned());
                if fate == Fate::Good {
                    upload.claimed(answer);
                }
                return Some(());
            }
            UploadStep::File(index, step) => (index, step),
        };
        let file = upload.files[index].clone();
        let path = format!("{}/{}", upload.name_there().unwrap(), file.name);
        let event = match step {
            FileStep::Look => {
                let object = self.objects.get(&path).map(|(size, crc32c, _)| ObjectFacts {
                    size: *size,
                    crc32c: Some(*crc32c),
                    generation: "1".to_owned(),
                    etag: String::new(),
                });
                FileEvent::Looked { object, crc32c: crc(&file) }
            }
            FileStep::Put => {
                // Only a new object: one that is there is compared.
                self.objects.entry(path).or_insert((file.size, crc(&file), 1));
                FileEvent::Put { crc32c: crc(&file) }
            }
            FileStep::Begin => {
                self.begun += 1;
                let id = format!("u{}", self.begun);
                self.parts.insert(id.clone(), (path, BTreeMap::new()));
                FileEvent::Begun { id }
            }
            FileStep::Part(part) => {
                let FileState::Parts { id, .. } = &file.state else { panic!("{:?}", file.state) };
                let sent = SentPart { tag: part.to_string(), crc32c: part };
                match self.parts.get_mut(id) {
                    Some((_, parts)) => {
                        parts.insert(part, part);
                        FileEvent::Part { id: id.clone(), index: part, sent }
                    }
                    None => FileEvent::PartsGone { id: id.clone() },
                }
            }
            FileStep::Complete => {
                let FileState::Parts { id, .. } = &file.state else { panic!("{:?}", file.state) };
                match self.parts.remove(id) {
                    Some((path, parts)) => {
                        assert_eq!(parts.len(), file.parts() as usize, "an object without all its parts");
                        let times = self.objects.get(&path).map_or(0, |(.., times)| *times);
                        self.objects.insert(path, (file.size, crc(&file), times + 1));
                        FileEvent::Completed { id: id.clone() }
                    }
                    None => FileEvent::PartsGone { id: id.clone() },
                }
            }
        };
        if fate == Fate::LostAfter {
            return None;
        }
        upload.apply(index, event);
        Some(())
    }

    pub(crate) fn is_visible(&self, name: &str) -> bool {
        self.objects.contains_key(&format!("{name}/{MANIFEST_FILE}"))
    }
}

fn session(id: &str, files: &[u64]) -> SessionFiles {
    let parts = files.iter().enumerate().map(|(n, size)| (format!("h{n}.xplane.pb"), *size));
    SessionFiles {
        session: "s".parse().unwrap(),
        id: id.to_owned(),
        host: "h".parse().unwrap(),
        files: std::iter::once((MANIFEST_FILE.to_owned(), 9)).chain(parts).collect(),
        share: UploadShare::Whole,
    }
}

pub(crate) fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Good), 1 => Just(Fate::LostBefore), 1 => Just(Fate::LostAfter)]
}

proptest! {
    #[test]
    fn every_way_ends_with_each_object_written_once(
        sizes in prop::collection::vec(prop_oneof![0..100u64, PART_BYTES - 1..PART_BYTES * 4], 1..4),
        choices in prop::collection::vec((any::<prop::sample::Index>(), fate(), prop::bool::weighted(0.05)), 0..200),
    ) {
        let mut bucket = ModelBucket::default();
        let mut upload = SessionUpload::new(session("id1", &sizes));
        for (choice, fate, forgotten) in choices {
            let steps: Vec<UploadStep> = upload.steps().collect();
            if steps.is_empty() {
                break;
            }
            let step = steps[choice.index(steps.len())];
            bucket.make(&mut upload, step, fate);
            let parts_there = upload.files.split_last().unwrap().1.iter().all(|file| file.is_there() || {
                bucket.objects.contains_key(&format!("s/{}", file.name))
            });
            prop_assert!(parts_there || !bucket.is_visible("s"), "the manifest is there before a part");
            if forgotten {
                // The state was lost: all is found again by looking.
                upload = SessionUpload::new(session("id1", &sizes));
            }
        }
        // From here on nothing fails: it ends.
        for _ in 0..200 {
            let Some(step) = upload.steps().next() else { break };
            bucket.make(&mut upload, step, Fate::Good).unwrap();
        }
        prop_assert!(upload.is_done());
        prop_assert_eq!(upload.bytes().0, upload.bytes().1);
        prop_assert_eq!(bucket.objects.len(), sizes.len() + 1);
        for (path, (.., times)) in &bucket.objects {
            prop_assert_eq!(*times, 1, "{} was written {} times", path, times);
        }
    }
}

#[test]
fn another_session_of_the_same_name_gets_a_name_of_its_own() {
    let mut bucket = ModelBucket::default();
    let mut names = Vec::new();
    for id in ["aaaaaaaa1", "bbbbbbbb2", "cccccccc3", "aaaaaaaa1"] {
        let mut upload = SessionUpload::new(session(id, &[3]));
        while let Some(step) = { upload.steps().next() } {
            bucket.make(&mut upload, step, Fate::Good).unwrap();
        }
        assert!(upload.is_done());
        names.push(upload.name_there().unwrap().to_string());
    }
    assert_eq!(names, ["s", "s-h", "s-cccccccc", "s"]);
    assert_eq!(bucket.objects.len(), 6);
}

#[test]
fn the_parts_of_several_hosts_never_go_under_another_name() {
    let mut bucket = ModelBucket::default();
    bucket.claims.insert("s".to_owned(), "another".to_owned());
    let mut upload = SessionUpload::new(SessionFiles { share: UploadShare::Parts, ..session("id1", &[3]) });
    bucket.make(&mut upload, UploadStep::Claim, Fate::Good);
    assert_eq!((upload.name_there(), upload.steps().count(), upload.is_done()), (None, 0, false));
}

#[test]
fn the_session_of_one_host_of_several_has_the_hosts_name() {
    let mut bucket = ModelBucket::default();
    let of_host =
        || SessionUpload::new(SessionFiles { share: UploadShare::OfHost, ..session("aaaaaaaa1", &[3]) });
    let mut upload = of_host();
    while let Some(step) = { upload.steps().next() } {
        bucket.make(&mut upload, step, Fate::Good).unwrap();
    }
    assert!(upload.is_done() && bucket.is_visible("s-h") && !bucket.is_visible("s"));
    let mut upload = of_host();
    upload.claimed(ClaimAnswer::Foreign);
    assert_eq!(upload.name_there().unwrap().as_str(), "s-aaaaaaaa");
    upload.claimed(ClaimAnswer::Foreign);
    assert_eq!(upload.name_there(), None);
}

#[test]
fn a_second_name_is_a_name_even_if_both_are_long() {
    let long = "x".repeat(128);
    let mut upload = SessionUpload::new(SessionFiles {
        session: long.parse().unwrap(),
        host: long.parse().unwrap(),
        ..session("0123456789abcdef", &[])
    });
    upload.claimed(ClaimAnswer::Foreign);
    assert_eq!(upload.name_there().unwrap().as_str(), format!("01234567-{}", "x".repeat(40)));
    upload.claimed(ClaimAnswer::Foreign);
    upload.claimed(ClaimAnswer::Foreign);
    assert_eq!((upload.name_there(), upload.steps().count()), (None, 0));
}
