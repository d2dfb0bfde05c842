//! Several hosts send their parts in any order, with any failure, and whoever has the manifest tries again and again.

use proptest::prelude::*;
use xprof::session::{MANIFEST_FILE, MANIFEST_VERSION, Tool};

use super::*;
use crate::{
    destinations::target::FailureClass,
    uploads::{
        file::PART_BYTES,
        session_upload::{
            SessionFiles, SessionUpload, UploadStep,
            tests::{Fate, ModelBucket, fate},
        },
        status::UploadShare,
    },
};

const ID: &str = "0123456789abcdef0123456789abcdef";

fn part_file(host: usize, part: usize) -> String {
    format!("h{host}_{part}.xplane.pb")
}

/// The manifest of hosts whose parts have these sizes.
fn manifest(hosts: &[Vec<u64>]) -> Manifest {
    let part = |file: String, size: &u64| {
        serde_json::json!({
            "file": file, "size": size, "sha256": "", "planes": 1, "lines": 1, "events": 1,
        })
    };
    let host = |(host, sizes): (usize, &Vec<u64>)| {
        let parts: Vec<_> =
            sizes.iter().enumerate().map(|(n, size)| part(part_file(host, n), size)).collect();
        serde_json::json!({ "host": format!("h{host}"), "parts": parts })
    };
    let hosts: Vec<_> = hosts.iter().enumerate().map(host).collect();
    let manifest = serde_json::json!({
        "version": MANIFEST_VERSION, "session": "s", "id": ID, "tool": Tool::this(), "hosts": hosts,
    });
    serde_json::from_value(manifest).unwrap()
}

fn put(manifest: &Manifest) -> Result<ManifestPut, PutManifestError> {
    // Those of one host are known, as the double has them: of their names.
    let known = |file: &str| file.starts_with("h0_").then(|| crc32c::crc32c(file.as_bytes()));
    ManifestPut::new("s".parse().unwrap(), ID.parse().unwrap(), manifest, &manifest.text(), known)
}

fn upload(host: usize, sizes: &[u64]) -> SessionUpload {
    SessionUpload::new(SessionFiles {
        session: "s".parse().unwrap(),
        id: ID.to_owned(),
        host: format!("h{host}").parse().unwrap(),
        files: sizes.iter().enumerate().map(|(n, size)| (part_file(host, n), *size)).collect(),
        share: UploadShare::Parts,
    })
}

/// Makes a step at the double. `Err`: the manifest is not put.
fn make(
    bucket: &mut ModelBucket,
    put: &mut ManifestPut,
    step: ManifestStep,
    text: &[u8],
    fate: Fate,
) -> Result<(), PutManifestError> {
    let lost = || PutManifestError::Transfer(TransferError::new(FailureClass::Unreachable, "lost"));
    if fate == Fate::LostBefore {
        return Err(lost());
    }
    let found = |bucket: &ModelBucket, file: &str| {
        let object = bucket.objects.get(&format!("s/{file}"));
        ManifestEvent::Found(object.map(|(size, crc, _)| ObjectFacts {
            size: *size,
            crc32c: Some(*crc),
            generation: String::new(),
            etag: String::new(),
        }))
    };
    let event = match step {
        ManifestStep::ReadClaim => {
            ManifestEvent::Claim(bucket.claims.get("s").map(|id| id.clone().into_bytes()))
        }
        ManifestStep::Look(index) => found(bucket, &put.part(index).file),
        ManifestStep::Put => {
            let object = (text.len() as u64, crc32c::crc32c(text), 1);
            bucket.objects.entry(format!("s/{MANIFEST_FILE}")).or_insert(object);
            ManifestEvent::Put
        }
        ManifestStep::Compare => found(bucket, MANIFEST_FILE),
    };
    if fate == Fate::LostAfter {
        return Err(lost());
    }
    put.apply(step, event)
}

proptest! {
    #[test]
    fn the_manifest_is_there_only_with_every_part(
        hosts in prop::collection::vec(
            prop::collection::vec(prop_oneof![0..100u64, PART_BYTES - 1..PART_BYTES * 3], 1..3),
            1..4,
        ),
        choices in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), fate(), prop::bool::weighted(0.05)),
            0..200,
        ),
    ) {
        let manifest = manifest(&hosts);
        let text = manifest.text();
        let mut bucket = ModelBucket::default();
        let mut uploads: Vec<_> = hosts.iter().enumerate().map(|(host, sizes)| upload(host, sizes)).collect();
        let mut attempt = put(&manifest).unwrap();
        for (who, which, fate, forgotten) in choices {
            match who.index(hosts.len() + 1) {
                host if host < hosts.len() => {
                    let steps: Vec<UploadStep> = uploads[host].steps().collect();
                    if let Some(step) = (!steps.is_empty()).then(|| steps[which.index(steps.len())]) {
                        bucket.make(&mut uploads[host], step, fate);
                    }
                    if forgotten {
                        uploads[host] = upload(host, &hosts[host]);
                    }
                }
                _ => {
                    let steps: Vec<_> = attempt.steps().collect();
                    let step = (!steps.is_empty()).then(|| steps[which.index(steps.len())]);
                    let made = step.map_or(Ok(()), |step| make(&mut bucket, &mut attempt, step, &text, fate));
                    if made.is_err() {
                        attempt = put(&manifest).unwrap();
                    }
                }
            }
            let names = hosts.iter().enumerate();
            let mut names = names.flat_map(|(host, sizes)| (0..sizes.len()).map(move |n| part_file(host, n)));
            let all = names.all(|file| bucket.objects.contains_key(&format!("s/{file}")));
            prop_assert!(all || !bucket.is_visible("s"), "the manifest is there before a part");
            prop_assert!(!attempt.is_done() || bucket.is_visible("s"));
        }
        for upload in &mut uploads {
            while let Some(step) = { upload.steps().next() } {
                bucket.make(upload, step, Fate::Good).unwrap();
            }
            prop_assert!(upload.is_done());
        }
        let mut attempt = put(&manifest).unwrap();
        while let Some(step) = { attempt.steps().next() } {
            prop_assert_eq!(make(&mut bucket, &mut attempt, step, &text, Fate::Good), Ok(()));
        }
        prop_assert!(attempt.is_done() && bucket.is_visible("s"));
        prop_assert_eq!(bucket.objects.len(), hosts.iter().map(Vec::len).sum::<usize>() + 1);
        prop_assert!(bucket.objects.values().all(|(.., times)| *times == 1), "{:?}", bucket.objects);
    }
}

#[test]
fn a_manifest_that_claims_what_is_not_the_sessions_is_refused() {
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = manifest(&[vec![3], vec![4]]);
        change(&mut manifest);
        put(&manifest).unwrap_err()
    };
    let other = PutManifestError::OtherSession("s".parse().unwrap());
    assert_eq!(refused(&|manifest| manifest.session = "t".to_owned()), other);
    assert_eq!(refused(&|manifest| manifest.id = None), other);
    assert_eq!(refused(&|manifest| manifest.id = "f".repeat(32).parse().ok()), other);
    assert_eq!(refused(&|manifest| manifest.hosts.clear()), PutManifestError::Parts(0));
    for file in
        ["../other/h.xplane.pb", "a/b.xplane.pb", "manifest.json", ".xplane.pb", "h.pb", "x\n.xplane.pb"]
    {
        let error = refused(&|manifest| manifest.hosts[1].parts[0].file = file.to_owned());
        assert_eq!(error, PutManifestError::PartName(file.to_owned()));
        assert!(!error.to_string().contains('\n'));
    }
    let twice = part_file(0, 0);
    let error = refused(&|manifest| manifest.hosts[1].parts[0].file.clone_from(&twice));
    assert_eq!(error, PutManifestError::Twice(twice.clone()));
}

#[test]
fn what_is_there_has_to_be_as_the_manifest_says() {
    let manifest = manifest(&[vec![3]]);
    let text = manifest.text();
    let file = part_file(0, 0);
    let tried = |claim: Option<&str>, object: Option<(u64, u32)>, there: Option<&str>| {
        let mut bucket = ModelBucket::default();
        bucket.claims.extend(claim.map(|id| ("s".to_owned(), id.to_owned())));
        bucket.objects.extend(object.map(|(size, crc)| (format!("s/{file}"), (size, crc, 1))));
        let written = |text: &str| (text.len() as u64, crc32c::crc32c(text.as_bytes()), 1);
        bucket.objects.extend(there.map(|text| (format!("s/{MANIFEST_FILE}"), written(text))));
        let mut put = put(&manifest).unwrap();
        while let Some(step) = { put.steps().next() } {
            make(&mut bucket, &mut put, step, &text, Fate::Good)?;
        }
        Ok(())
    };
    let sound = Some((3, crc32c::crc32c(file.as_bytes())));
    let own = String::from_utf8(text.clone()).unwrap();
    assert_eq!(tried(Some(ID), sound, None), Ok(()));
    assert_eq!(tried(Some(ID), sound, Some(&own)), Ok(()), "an equal one is there");
    let session: SessionName = "s".parse().unwrap();
    let other = Err(PutManifestError::OtherManifest(session.clone()));
    assert_eq!(tried(Some(ID), sound, Some("{}")), other);
    for claim in [None, Some("f")] {
        assert_eq!(tried(claim, sound, None), Err(PutManifestError::Unclaimed(session.clone())));
    }
    assert_eq!(tried(Some(ID), None, None), Err(PutManifestError::Missing(file.clone())));
    let size = Err(PutManifestError::Size { file: file.clone(), there: 4, named: 3 });
    assert_eq!(tried(Some(ID), Some((4, 0)), None), size);
    assert_eq!(tried(Some(ID), Some((3, 0)), None), Err(PutManifestError::Checksum(file.clone())));
}
