//! A TPU host in a folder: sysfs with the links of the real one, device nodes as plain files that real processes
//! can hold open, and the settings that make the agent look there.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use host::{chips, settings::paths::Paths};
use model::device::{Chip, Generation};
use tempfile::TempDir;

/// PCI device, subsystem, whether the node is accelN, PCI functions per chip.
fn ids(generation: Generation) -> (u16, u16, bool, u8) {
    match generation {
        Generation::V2 => (0x0027, 0x004e, true, 1),
        Generation::V3 => (0x0027, 0x004f, true, 1),
        Generation::V4 => (0x005e, 0x0000, true, 1),
        Generation::V5p => (0x0062, 0x0000, false, 1),
        Generation::V5e => (0x0063, 0x0000, false, 1),
        Generation::V6e => (0x006f, 0x0000, false, 1),
        Generation::Tpu7x => (0x0076, 0x0000, false, 2),
        Generation::Unknown => (0x0099, 0x0000, false, 1),
    }
}

/// The host.
#[derive(Debug)]
pub struct FakeHost {
    root: TempDir,
    procfs: PathBuf,
    next_bus: u8,
    next_number: u32,
}

impl FakeHost {
    /// A cloud machine without chips: Google's network and disk, and a bridge of somebody else's.
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Self { root, procfs: "/proc".into(), next_bus: 4, next_number: 0 };
        fs::create_dir_all(host.dev().join("vfio")).expect("a dev folder");
        // Not a chip: the container node that every vfio user has open.
        fs::write(host.dev().join("vfio/vfio"), "").expect("a node");
        host.function("0000:00:01.0", [0x8086, 0x7110, 0, 0], 0x06_0100);
        host.function("0000:00:02.0", [0x1ae0, 0x0042, 0x1ae0, 0x0058], 0x02_0000);
        host.function("0000:00:03.0", [0x1ae0, 0x001f, 0x1ae0, 0x001f], 0x01_0802);
        host
    }

    /// A machine with so many chips of a generation.
    pub fn with(generation: Generation, chips: u32) -> Self {
        let mut host = Self::new();
        for _ in 0..chips {
            host.add(generation);
        }
        host
    }

    /// Adds a chip with all that belongs to it. IOMMU groups are not in PCI order, as on real hosts.
    pub fn add(&mut self, generation: Generation) {
        let (device, subsystem, accel, functions) = ids(generation);
        let bus = self.next_bus;
        self.next_bus += 1;
        for function in 0..functions {
            let slot = format!("0000:{bus:02x}:00.{function}");
            let folder = self.function(&slot, [0x1ae0, device, 0x1ae0, subsystem], 0x12_0000);
            let number = self.next_number;
            self.next_number += 1;
            if accel {
                let class = self.sys().join("class/accel");
                fs::create_dir_all(&class).expect("a class folder");
                let own = folder.join(format!("accel/accel{number}"));
                fs::create_dir_all(&own).expect("an accel folder");
                symlink(format!("../../../{slot}"), own.join("device")).expect("a link");
                symlink(
                    format!("../../devices/pci0000:00/{slot}/accel/accel{number}"),
                    class.join(format!("accel{number}")),
                )
                .expect("a link");
                fs::write(self.dev().join(format!("accel{number}")), "").expect("a node");
            } else {
                let group = group(number);
                let groups = self.sys().join("kernel/iommu_groups").join(group.to_string()).join("devices");
                fs::create_dir_all(&groups).expect("a group folder");
                symlink(format!("../../../../devices/pci0000:00/{slot}"), groups.join(&slot))
                    .expect("a link");
                symlink(format!("../../../kernel/iommu_groups/{group}"), folder.join("iommu_group"))
                    .expect("a link");
                fs::write(self.dev().join("vfio").join(group.to_string()), "").expect("a node");
            }
        }
    }

    /// Adds a PCI function: vendor, device, subsystem vendor, subsystem device; class.
    pub fn function(&self, slot: &str, ids: [u16; 4], class: u32) -> PathBuf {
        let folder = self.sys().join("devices/pci0000:00").join(slot);
        fs::create_dir_all(&folder).expect("a device folder");
        let names = ["vendor", "device", "subsystem_vendor", "subsystem_device"];
        for (name, id) in names.iter().zip(ids) {
            fs::write(folder.join(name), format!("{id:#06x}\n")).expect("a file");
        }
        fs::write(folder.join("class"), format!("{class:#08x}\n")).expect("a file");
        fs::write(folder.join("numa_node"), "0\n").expect("a file");
        let bus = self.sys().join("bus/pci/devices");
        fs::create_dir_all(&bus).expect("a bus folder");
        symlink(format!("../../../devices/pci0000:00/{slot}"), bus.join(slot)).expect("a link");
        folder
    }

    /// Shows drivers in sysfs, and binds one to the first function of each of these chips.
    pub fn bind_drivers(&self, chips: &[usize]) {
        let driver = self.sys().join("bus/pci/drivers/vfio-pci");
        fs::create_dir_all(&driver).expect("a folder");
        let known = self.chips();
        for chip in chips {
            let function = self.sys().join("bus/pci/devices").join(format!("{}.0", known[*chip].pci));
            symlink(&driver, function.join("driver")).expect("a link");
        }
    }

    /// Its sysfs.
    pub fn sys(&self) -> PathBuf {
        self.root.path().join("sys")
    }

    /// Its device nodes.
    pub fn dev(&self) -> PathBuf {
        self.root.path().join("dev")
    }

    /// A folder beside these for whatever a test needs.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Uses a procfs of its own instead of the real one.
    pub fn set_procfs(&mut self, procfs: &Path) {
        procfs.clone_into(&mut self.procfs);
    }

    /// Shows of the real processes these alone: the others of the machine are no workloads of this host.
    ///
    /// # Panics
    /// If a link cannot be made.
    pub fn show_only(&mut self, pids: &[u32]) {
        let procfs = self.root.path().join("proc");
        fs::create_dir(&procfs).expect("a folder");
        for entry in fs::read_dir("/proc").expect("a procfs").flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.parse::<u32>().ok());
            if pid.is_none_or(|pid| pids.contains(&pid)) {
                symlink(entry.path(), procfs.join(name)).expect("a link");
            }
        }
        self.procfs = procfs;
    }

    /// Shows one more process, after [`show_only`](Self::show_only).
    ///
    /// # Panics
    /// If the link cannot be made.
    pub fn show(&self, pid: u32) {
        symlink(format!("/proc/{pid}"), self.procfs.join(pid.to_string())).expect("a link");
    }

    /// Gives it a network device, a disk and the pressure of its resources, after [`show_only`](Self::show_only): not
    /// every machine has them.
    ///
    /// # Panics
    /// If a file cannot be made.
    pub fn add_counters(&self) {
        let net = self.procfs.join("net");
        fs::remove_file(&net).expect("a link");
        fs::create_dir(&net).expect("a folder");
        for entry in fs::read_dir("/proc/net").expect("a procfs").flatten() {
            symlink(entry.path(), net.join(entry.file_name())).expect("a link");
        }
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n";
        for (file, text) in [
            ("net/dev", "Inter-| Receive\n face |bytes\n  ens9: 500 5 0 0 0 0 0 0 700 7 0 0 0 0 0 0\n"),
            ("diskstats", "   8       0 sda 1 0 16 0 2 0 32 0 0 250 250\n"),
            ("pressure/cpu", pressure),
            ("pressure/memory", pressure),
            ("pressure/io", pressure),
        ] {
            replace(&self.procfs.join(file), text);
        }
        for device in ["class/net/ens9/device", "block/sda/device"] {
            fs::create_dir_all(self.sys().join(device)).expect("a folder");
        }
    }

    /// The settings' `[paths]`.
    pub fn paths(&self) -> Paths {
        Paths { sysfs: self.sys(), procfs: self.procfs.clone(), dev: self.dev() }
    }

    /// The chips as the agent sees them.
    pub fn chips(&self) -> Vec<Chip> {
        chips::scan(&self.paths(), &host::settings::device::Settings::default()).chips
    }

    /// Writes a configuration with `[paths]` of this host and then `rest`.
    pub fn config(&self, rest: &str) -> PathBuf {
        let Paths { sysfs, procfs, dev } = self.paths();
        let text = format!("[paths]\nsysfs = {sysfs:?}\nprocfs = {procfs:?}\ndev = {dev:?}\n\n{rest}\n");
        let path = self.root.path().join("tpuscope.toml");
        fs::write(&path, text).expect("a file");
        path
    }
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

/// Puts a file in the place of a link, or of a link to its folder.
fn replace(path: &Path, text: &str) {
    let folder = path.parent().expect("a file has a folder");
    if folder.is_symlink() {
        fs::remove_file(folder).expect("a link");
    }
    fs::create_dir_all(folder).expect("a folder");
    if path.is_symlink() {
        fs::remove_file(path).expect("a link");
    }
    fs::write(path, text).expect("a file");
}

/// The group of the n-th function: 10, 9, 12, 11, …, so that neither text nor PCI order sorts them.
fn group(number: u32) -> u32 {
    9 + (number ^ 1)
}
