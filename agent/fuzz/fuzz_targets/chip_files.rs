//! Files about the chips of a host, separated by lines of `%`: tpu-env, chips.toml, and the sysfs texts of a PCI function.
#![no_main]

use std::collections::BTreeSet;

use host::{chip_indices, chips, tpu_env};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let texts: Vec<&str> = text.split('%').collect();
    let at = |index: usize| texts.get(index).copied().unwrap_or_default();
    match tpu_env::stated_chips(at(0)) {
        Ok(stated) => assert!((1..=tpu_env::MAX_CHIPS).contains(&stated.chips)),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
    if let Ok(indices) = chip_indices::parse(at(1)) {
        let distinct: BTreeSet<u32> = indices.values().copied().collect();
        assert!(indices.len() <= 256 && distinct.len() == indices.len());
    }
    let name = chips::decode_texts(at(2).trim(), |file| {
        let index = ["vendor", "device", "subsystem_device", "numa_node"].iter().position(|name| *name == file)?;
        texts.get(3 + index).map(|text| (*text).to_owned())
    });
    assert!(name.is_none_or(|name| !name.is_empty()));
});
