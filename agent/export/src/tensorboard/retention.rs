//! The bound on all event files below a folder: those that were begun first go first.
//!
//! Only files with the names of ours are counted and removed, and folders only where nothing is left in them. All calls block.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use store::open_folder::{IfMissing, OpenFolder};

use super::event_file::{PREFIX, SUFFIX};

/// Names of one folder that are looked at.
const MOST_NAMES: usize = 100_000;

/// A file of ours.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeptFile {
    /// When it was begun, in seconds since the epoch.
    begun: i64,
    run: PathBuf,
    name: OsString,
    bytes: u64,
}

/// Removes the oldest files until all have at most `max_bytes`; never one of `open`, whose paths are below `top`.
pub(super) fn make_room(top: &OpenFolder, max_bytes: u64, open: &BTreeSet<PathBuf>) -> io::Result<()> {
    let mut files = files(top)?;
    files.sort();
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    for file in files {
        if bytes <= max_bytes {
            break;
        }
        if open.contains(&file.run.join(&file.name)) {
            continue;
        }
        top.below(&file.run, IfMissing::Refused)?.remove(Path::new(&file.name))?;
        bytes -= file.bytes;
        remove_empty(top, &file.run);
    }
    Ok(())
}

/// The files of ours, two folders below `top`: of a job, and of a run.
fn files(top: &OpenFolder) -> io::Result<Vec<KeptFile>> {
    let mut files = Vec::new();
    for job in top.names(MOST_NAMES)? {
        // A file, a link, or another user's folder.
        let Ok(folder) = top.below(Path::new(&job), IfMissing::Refused) else { continue };
        for run in folder.names(MOST_NAMES)? {
            let Ok(of_run) = folder.below(Path::new(&run), IfMissing::Refused) else { continue };
            for name in of_run.names(MOST_NAMES)? {
                let Some(begun) = begun(&name) else { continue };
                if let Some(bytes) = of_run.file_size(Path::new(&name))? {
                    files.push(KeptFile { begun, run: Path::new(&job).join(&run), name, bytes });
                }
            }
        }
    }
    Ok(files)
}

/// When a file was begun, by its name; `None`: it is not one of ours.
fn begun(name: &std::ffi::OsStr) -> Option<i64> {
    let rest = name.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    rest.split_once('.')?.0.parse().ok()
}

/// Removes the folders of a run as far as nothing is in them.
fn remove_empty(top: &OpenFolder, run: &Path) {
    for path in run.ancestors() {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        let removed =
            top.below(parent, IfMissing::Refused).and_then(|folder| folder.remove_folder(Path::new(name)));
        if removed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_oldest_files_of_ours_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, bytes: usize| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        };
        let ours = |second: u32| format!("events.out.tfevents.{second:010}.h.7.0.tpuscope");
        file(&format!("a/goodput/{}", ours(10)), 100);
        file(&format!("b/goodput/{}", ours(9)), 100);
        file(&format!("c/goodput/{}", ours(8)), 100);
        file(&format!("c/goodput/{}", ours(11)), 100);
        file("c/goodput/events.out.tfevents.0000000001.h.7.0", 500);
        file("file", 500);
        std::os::unix::fs::symlink(dir.path().join("c"), dir.path().join("link")).unwrap();
        let top = OpenFolder::at(dir.path()).unwrap();
        let open = BTreeSet::from([Path::new("c/goodput").join(ours(8))]);
        let there = |path: &str| dir.path().join(path).exists();
        make_room(&top, 400, &open).unwrap();
        assert!(there("b/goodput"));
        make_room(&top, 300, &open).unwrap();
        assert!(!there("b") && there("a/goodput"));
        make_room(&top, 0, &open).unwrap();
        assert!(!there("a") && there(&format!("c/goodput/{}", ours(8))));
        assert!(!there(&format!("c/goodput/{}", ours(11))));
        assert!(there("c/goodput/events.out.tfevents.0000000001.h.7.0") && there("file"));
    }
}
