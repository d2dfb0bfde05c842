//! The name of a job's folder: what the job is called, as far as a file name can hold it, and its user.
//!
//! Jobs of two users never share a folder, and a name never leaves it.

use model::job::JobKey;

/// The longest part of a name that is kept.
const LONGEST: usize = 100;

/// The folder of a job that its marks name so.
pub(super) fn of_name(name: &str, uid: u32) -> String {
    format!("{}-u{uid}", file_name(name))
}

/// The folder of a job of the proxy ledger.
pub(super) fn of_key(key: &JobKey) -> String {
    of_name(&format!("{}-{}", key.kind.as_str(), key.id), key.uid)
}

/// `text` as a part of a file name. What had to be changed has a checksum of the text, so that two texts stay two names.
pub(super) fn file_name(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut name: String = text.chars().take(LONGEST).map(|c| if allowed(c) { c } else { '_' }).collect();
    if name.starts_with('.') {
        name.replace_range(..1, "_");
    }
    if name.is_empty() || name != text {
        name.push_str(&format!("-{:08x}", crc32c::crc32c(text.as_bytes())));
    }
    name
}

#[cfg(test)]
mod tests {
    use model::job::JobKind;

    use super::*;

    #[test]
    fn a_folder_has_a_safe_name_of_one_user_and_one_job() {
        assert_eq!(of_name("goodput_run-1.5", 1000), "goodput_run-1.5-u1000");
        let key = JobKey { kind: JobKind::Slurm, id: "12".into(), uid: 7, cluster: String::new() };
        assert_eq!(of_key(&key), "slurm-12-u7");
        let names = ["", ".", "..", "../../etc", "a/b", "a_b", "a b", "\u{1b}", "ä", ".hidden"];
        let long = ["x".repeat(101), "x".repeat(102)];
        let mut all: Vec<String> =
            names.iter().map(|name| file_name(name)).chain(long.iter().map(|name| file_name(name))).collect();
        for name in &all {
            assert!(!name.is_empty() && name.len() <= LONGEST + 9 && !name.starts_with('.'), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{name}");
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), names.len() + long.len(), "{all:?}");
    }
}
