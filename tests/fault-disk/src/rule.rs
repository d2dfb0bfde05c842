//! Which calls fail: the rule of the file that `FAULT_DISK` names, read at each call.

use std::{
    env,
    ffi::{CString, OsStr},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
};

use crate::kernel;

/// The most bytes of a rule.
const MAX_RULE: usize = 4096;

/// Instead of an error: the process is killed before the call is made.
const KILL: i32 = 0;

/// The calls that fail.
struct Rule<'a> {
    first: u64,
    last: u64,
    errno: i32,
    folder: &'a Path,
}

impl<'a> Rule<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let mut words = text.trim_ascii_end().splitn(4, |&byte| byte == b' ');
        let mut number = || str::from_utf8(words.next()?).ok()?.parse().ok();
        let (first, last, errno) = (number()?, number()?, i32::try_from(number()?).ok()?);
        Some(Self { first, last, errno, folder: Path::new(OsStr::from_bytes(words.next()?)) })
    }
}

/// The line that was read last, and how many calls it was about.
static SEEN: Mutex<(Vec<u8>, u64)> = Mutex::new((Vec::new(), 0));

/// The error with which this call of `path` fails, if it does.
pub(crate) fn error_of(call: &str, path: &Path) -> Option<i32> {
    static FILE: OnceLock<Option<CString>> = OnceLock::new();
    let file = FILE
        .get_or_init(|| env::var_os("FAULT_DISK").and_then(|file| CString::new(file.into_vec()).ok()))
        .as_ref()?;
    let text = kernel::read(file, MAX_RULE)?;
    let rule = Rule::parse(&text)?;
    if !path.starts_with(rule.folder) {
        return None;
    }
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.0 != text {
        *seen = (text.clone(), 0);
    }
    seen.1 += 1;
    if !(rule.first..=rule.last).contains(&seen.1) {
        return None;
    }
    let failed = CString::new([file.as_bytes(), b".failed"].concat()).ok()?;
    kernel::append(&failed, format!("{call} {}\n", path.display()).as_bytes());
    if rule.errno == KILL {
        kernel::kill_this_process();
    }
    Some(rule.errno)
}
