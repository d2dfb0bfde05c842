//! Where a libtpu may lie, in order: the setting, the agent's own variables, what the workload names or has
//! loaded, the system's folders, Python's.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use model::workload::Workloads;

/// Variables that name the library.
const NAMED_BY: [&str; 2] = ["TPU_LIBRARY_PATH", "LIBTPU_PATH"];
/// Folders with the library itself.
const SYSTEM: [&str; 3] = ["lib", "usr/lib", "usr/local/lib"];
/// Below a site-packages or dist-packages folder.
const IN_PACKAGES: [&str; 2] = ["libtpu/libtpu.so", "torch_xla/lib/libtpu.so"];
/// The maximum number of entries of a folder that are searched for Python versions.
const MAX_ENTRIES: usize = 4096;

/// What the search depends on beside the host's workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibrarySearch {
    /// The root of the file system.
    pub root: PathBuf,
    /// The values of `TPU_LIBRARY_PATH` and `LIBTPU_PATH`, in that order, where set.
    pub named: Vec<PathBuf>,
    /// A home whose `.local/lib/python3*/site-packages` counts.
    pub home: Option<PathBuf>,
    /// A Python environment.
    pub venv: Option<PathBuf>,
}

impl LibrarySearch {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            root: PathBuf::from("/"),
            named: NAMED_BY.into_iter().filter_map(set).collect(),
            home: set("HOME"),
            venv: set("VIRTUAL_ENV"),
        }
    }
}

/// Every library there is, best first, each once.
pub(super) fn candidates(
    setting: Option<&Path>,
    search: &LibrarySearch,
    workloads: &Workloads,
) -> Vec<PathBuf> {
    // If a path is set, only that path is used.
    if let Some(path) = setting {
        return vec![path.to_owned()];
    }
    let mut found = search.named.clone();
    for owner in &workloads.owners {
        let named = NAMED_BY.iter().filter_map(|name| owner.environment.get(*name)).map(PathBuf::from);
        // A workload cannot make the agent load another library of this host.
        found.extend(named.chain(owner.libtpu.clone()).filter(|path| is_called_libtpu(path)));
    }
    found.extend(SYSTEM.map(|folder| search.root.join(folder).join("libtpu.so")));
    found.extend(packages(search).iter().flat_map(|folder| IN_PACKAGES.map(|inner| folder.join(inner))));
    let mut seen = Vec::new();
    for path in found.into_iter().filter(|path| path.is_absolute() && path.is_file()) {
        if !seen.contains(&path) {
            seen.push(path);
        }
    }
    seen
}

fn is_called_libtpu(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libtpu"))
}

/// Folders that Python packages lie in.
fn packages(search: &LibrarySearch) -> Vec<PathBuf> {
    let home = search.home.as_ref().map(|home| home.join(".local/lib"));
    let venv = search.venv.as_ref().map(|venv| venv.join("lib"));
    let system = ["usr/local/lib", "usr/lib"].map(|folder| search.root.join(folder));
    let mut all = Vec::new();
    for folder in venv.into_iter().chain(home).chain(system) {
        for python in pythons(&folder) {
            all.extend(
                ["site-packages", "dist-packages"].map(|packages| folder.join(&python).join(packages)),
            );
        }
    }
    all
}

/// `python3`, `python3.12`, … in a folder, newest name first.
fn pythons(folder: &Path) -> Vec<OsString> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.take(MAX_ENTRIES).flatten().map(|entry| entry.file_name());
    let mut pythons: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("python3")).collect();
    pythons.sort_by(|a, b| b.cmp(a));
    pythons
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::workload::Owner;

    #[test]
    fn the_search_order_is_the_documented_one() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let named = make("opt/named.so");
        let expected = [
            named.clone(),
            make("usr/lib/libtpu.so"),
            make("venv/lib/python3.12/site-packages/libtpu/libtpu.so"),
            make("home/.local/lib/python3.11/site-packages/libtpu/libtpu.so"),
            make("usr/local/lib/python3.12/dist-packages/libtpu/libtpu.so"),
            make("usr/local/lib/python3.10/dist-packages/torch_xla/lib/libtpu.so"),
        ];
        let search = LibrarySearch {
            root: root.path().to_owned(),
            named: vec![named, root.path().join("missing.so")],
            home: Some(root.path().join("home")),
            venv: Some(root.path().join("venv")),
        };
        assert_eq!(candidates(None, &search, &Workloads::default()), expected);
        let owner = |path: &str| Owner { libtpu: Some(root.path().join(path)), ..Owner::default() };
        let workloads = Workloads {
            owners: vec![owner("opt/named.so"), owner("usr/lib/libtpu.so")],
            ..Workloads::default()
        };
        let nothing = LibrarySearch { named: vec![], home: None, venv: None, ..search.clone() };
        assert_eq!(candidates(None, &nothing, &workloads)[0], root.path().join("usr/lib/libtpu.so"));
        let setting = root.path().join("elsewhere.so");
        assert_eq!(candidates(Some(&setting), &search, &Workloads::default()), [setting]);
    }
}
