//! PCI functions as sysfs shows them. Every file may be missing: then its value is unknown.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// Where the functions are, below the sysfs root.
pub(super) const DEVICES: &str = "bus/pci/devices";
/// Where the drivers are, below the sysfs root.
pub(super) const DRIVERS: &str = "bus/pci/drivers";

/// `domain:bus:device.function`; its order is numeric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Slot {
    /// Reads `0000:00:04.0`.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (domain, rest) = name.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        Some(Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
            function: u8::from_str_radix(function, 16).ok()?,
        })
    }

    /// Whether both are functions of one device.
    pub(super) fn same_device(self, other: Self) -> bool {
        Self { function: 0, ..self } == Self { function: 0, ..other }
    }

    /// Without the function, or with it where several chips may be functions of one device.
    pub(super) fn device_name(self, with_function: bool) -> String {
        let name = format!("{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device);
        if with_function && self.function != 0 { format!("{name}.{}", self.function) } else { name }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// One PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) slot: Slot,
    /// Its folder's name: sysfs' own spelling of the slot.
    name: String,
    pub(super) vendor: Option<u16>,
    pub(super) device: Option<u16>,
    pub(super) subsystem: Option<u16>,
    pub(super) numa_node: Option<u32>,
}

/// Every function in numeric order, at most `most`.
pub(super) fn functions(sysfs: &Path, most: usize) -> io::Result<Vec<Function>> {
    let root = sysfs.join(DEVICES);
    let mut functions = Vec::new();
    for entry in fs::read_dir(&root)?.take(most) {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let folder = root.join(&name);
        functions.extend(function(&name, |file| text(&folder.join(file))));
    }
    functions.sort_by_key(|function| function.slot);
    Ok(functions)
}

/// The function with this name, from the texts of its files. `None` if the name is no address.
pub(super) fn function(name: &str, text: impl Fn(&str) -> Option<String>) -> Option<Function> {
    let slot = Slot::parse(name)?;
    let word = |file| hex(&text(file)?).and_then(|value| u16::try_from(value).ok());
    let vendor = word("vendor");
    let mut function =
        Function { slot, vendor, device: None, subsystem: None, numa_node: None, name: name.to_owned() };
    // Only Google's functions are worth more reads: a host has hundreds of others.
    if function.vendor == Some(super::VENDOR) {
        function.device = word("device");
        function.subsystem = word("subsystem_device");
        function.numa_node = text("numa_node").and_then(|text| text.trim().parse().ok());
    }
    Some(function)
}

/// The driver of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Driver {
    /// This one is bound.
    Bound(String),
    /// None is bound.
    Unbound,
    /// This sysfs does not show drivers.
    Unknown,
}

/// The driver of a function. Where no function of the host shows one, the absence of the link says nothing.
pub(super) fn driver(sysfs: &Path, function: &Function) -> Driver {
    match fs::read_link(sysfs.join(DEVICES).join(&function.name).join("driver")) {
        Ok(link) => link
            .file_name()
            .map_or(Driver::Unknown, |name| Driver::Bound(name.to_string_lossy().into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound && sysfs.join(DRIVERS).is_dir() => {
            Driver::Unbound
        }
        Err(_) => Driver::Unknown,
    }
}

/// The number of the function's IOMMU group.
pub(super) fn iommu_group(sysfs: &Path, function: &Function) -> Option<u32> {
    let link = fs::read_link(sysfs.join(DEVICES).join(&function.name).join("iommu_group")).ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// N of the function's `accelN`: a folder below it, or a class link that leads to it.
pub(super) fn accel_number(sysfs: &Path, function: &Function) -> Option<u32> {
    let number = |name: &str| name.strip_prefix("accel").and_then(|number| number.parse::<u32>().ok());
    let own = sysfs.join(DEVICES).join(&function.name).join("accel");
    if let Some(found) = names(&own).iter().find_map(|name| number(name)) {
        return Some(found);
    }
    let class = sysfs.join("class/accel");
    names(&class).iter().find_map(|name| {
        let device = fs::read_link(class.join(name).join("device")).ok()?;
        (device.file_name()?.to_str()? == function.name).then(|| number(name)).flatten()
    })
}

/// The names in a folder; none when it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .take(super::MAX_FUNCTIONS)
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

fn hex(text: &str) -> Option<u32> {
    let text = text.trim();
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn text(file: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(file).ok()?.take(64).read_to_string(&mut text).ok()?;
    Some(text)
}
