//! What the stand-in does, read at each use: `KEY = VALUE` lines in `<this library>.conf`, else the variable
//! `FAKE_LIBTPU_KEY`.
//!
//! | key | value |
//! |---|---|
//! | `load`, `sdk`, `pjrt_call` | a behavior (see [`crate::behavior`]) when loaded, or when asked for the SDK or for PJRT |
//! | `slots` | 9, 12, 15 or 17 functions in the SDK table |
//! | `stray` | so many further words of the table point into code, as left-overs on the heap may |
//! | `unknown` | `abort`: an unknown metric name ends the process, as before 0.0.24 |
//! | `status` | hexadecimal bytes of the runtime status; without it error 14 |
//! | `status_size` | a claimed size of it |
//! | `pjrt` | `none`, or the profiler table's size: 80 or 104 |
//! | `chain` | `endless`: the chain of extensions has no end; `tiny`: an extension of size 3 |
//! | `start` | `refused`: the profilers fail to start with code 12, as from 0.0.45 on |
//! | a metric's name | a behavior |

use std::{env, fs, path::PathBuf, sync::OnceLock};

/// The value of `key`.
pub(crate) fn get(key: &str) -> Option<String> {
    let file = own_path().and_then(|library| {
        let mut name = library.into_os_string();
        name.push(".conf");
        fs::read_to_string(name).ok()
    });
    let lines = file.as_deref().unwrap_or_default().lines();
    lines
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
        .or_else(|| env::var(format!("FAKE_LIBTPU_{}", key.to_uppercase())).ok())
}

/// The file that this code was loaded from.
fn own_path() -> Option<PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| {
        let here = own_path as *const () as usize;
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
            range.contains(&here).then(|| PathBuf::from(&rest[rest.find('/').unwrap_or(0)..]))
        })
    })
    .clone()
}
