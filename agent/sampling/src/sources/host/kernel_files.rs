//! Small kernel files, kept open and read from their start again and again into one buffer.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Nothing that is read here is longer, as far as it is needed.
const LONGEST: usize = 64 * 1024;
/// The kernel hands over a part of a file only when the next line would not fit into a page, and no line is half
/// as long. So less than this is all of it, and asking for more would make the kernel write the text once more.
const NO_PART: usize = 2048;
/// More open files than the host and its workloads need.
const MOST_OPEN: usize = 512;
/// Devices rarely change.
const DEVICES_EVERY: u32 = 60;
/// Maximum number of devices of one class that have series.
pub(super) const MAX_DEVICES: usize = 64;
/// Maximum number of devices of one class that are looked at.
const MAX_LISTED: usize = 4096;

/// The open files.
#[derive(Default)]
pub(super) struct KernelFiles {
    open: HashMap<PathBuf, File>,
    buffer: Vec<u8>,
    text: String,
}

impl KernelFiles {
    /// The text of a file, or its first [`LONGEST`] bytes.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<&str> {
        let read = self.fill(path);
        if read.is_err() {
            // The control group was removed. It may be created again with the same name.
            self.open.remove(path);
        }
        let length = read?;
        self.text.clear();
        self.text.push_str(&String::from_utf8_lossy(&self.buffer[..length]));
        Ok(&self.text)
    }

    /// Whether a file can be read now.
    pub(super) fn readable(&mut self, path: &Path) -> bool {
        self.open.contains_key(path) || self.read(path).is_ok()
    }

    fn fill(&mut self, path: &Path) -> io::Result<usize> {
        if !self.open.contains_key(path) {
            if self.open.len() >= MOST_OPEN {
                self.open.clear();
            }
            self.open.insert(path.to_owned(), File::open(path)?);
        }
        let file = &self.open[path];
        self.buffer.resize(LONGEST, 0);
        let mut length = 0;
        while length < LONGEST {
            match file.read_at(&mut self.buffer[length..], length as u64) {
                Ok(read) => {
                    length += read;
                    if read < NO_PART {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(length)
    }
}

/// The devices of a class that are real: those of `/sys/block` or `/sys/class/net` that lead to a device. Partitions,
/// loops, bridges, and the network devices of containers do not.
pub(super) struct RealDevices {
    root: PathBuf,
    names: Arc<BTreeSet<String>>,
    age: u32,
}

impl RealDevices {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, names: Arc::default(), age: DEVICES_EVERY }
    }

    pub(super) fn names(&mut self) -> &Arc<BTreeSet<String>> {
        self.age += 1;
        if self.age > DEVICES_EVERY {
            self.age = 0;
            self.names = Arc::new(self.look());
        }
        &self.names
    }

    fn look(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().take(MAX_LISTED).flatten();
        let real = entries.filter(|entry| entry.path().join("device").exists());
        real.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}
