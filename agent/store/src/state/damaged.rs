//! Moves a damaged database out of the way. The last few are kept for whoever wants to look at them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use model::time::Timestamp;

/// Damaged databases that are kept.
const KEPT: usize = 3;

/// Renames `file`, and its write-ahead log, to a name with the time. Older ones are removed.
pub(super) fn move_aside(file: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let time = jiff::Timestamp::from(now).strftime("%Y%m%dT%H%M%SZ");
    let moved = with_suffix(file, &format!(".damaged-{time}"));
    fs::rename(file, &moved)?;
    match fs::rename(with_suffix(file, "-wal"), with_suffix(&moved, "-wal")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    remove_old(file);
    Ok(moved)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The names of the moved databases contain the time, so that their order is that of their age.
fn remove_old(file: &Path) {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    let prefix = format!("{name}.damaged-");
    let Ok(entries) = fs::read_dir(folder) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut moved: Vec<_> =
        names.filter(|name| name.starts_with(&prefix) && !name.ends_with("-wal")).collect();
    moved.sort_unstable();
    for name in moved.iter().rev().skip(KEPT) {
        // What stays is only untidy, and the next one that is moved removes it.
        let _ = fs::remove_file(folder.join(name));
        let _ = fs::remove_file(folder.join(format!("{name}-wal")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.db");
        for second in 0..6 {
            fs::write(&file, "x").unwrap();
            fs::write(folder.path().join("state.db-wal"), "y").unwrap();
            move_aside(&file, Timestamp(second * 1_000_000_000)).unwrap();
        }
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let wanted: Vec<_> = (3..6)
            .flat_map(|second| {
                ["", "-wal"].map(|end| format!("state.db.damaged-19700101T00000{second}Z{end}"))
            })
            .collect();
        assert_eq!(names, wanted.iter().map(std::ffi::OsString::from).collect::<Vec<_>>());
    }
}
