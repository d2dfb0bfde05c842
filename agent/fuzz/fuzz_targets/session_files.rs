//! The files beside the traces of a session: its manifest and its list of owners.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xprof::session::parse_manifest;

fuzz_target!(|data: &[u8]| {
    let _ = serde_json::from_slice::<store::SessionOwners>(data);
    if let Ok(manifest) = parse_manifest(data) {
        let _ = (manifest.created_at(), manifest.parts_bytes());
        let text = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(parse_manifest(&text).unwrap(), manifest);
    }
});
