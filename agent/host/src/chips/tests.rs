//! Small sysfs trees; the whole table and real processes are in the end-to-end tests.

use std::os::unix::fs::symlink;

use super::*;

struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(host.at("sys").join(pci::DEVICES)).unwrap();
        fs::create_dir_all(host.at("dev/vfio")).unwrap();
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn function(&self, slot: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = self.at("sys").join(pci::DEVICES).join(slot);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
        folder
    }

    fn vfio(&self, slot: &str, device: &str, group: u32) {
        let files = [("vendor", "0x1ae0"), ("device", device), ("class", "0x120000"), ("numa_node", "0")];
        let folder = self.function(slot, &files);
        symlink(format!("../../../../kernel/iommu_groups/{group}"), folder.join("iommu_group")).unwrap();
        fs::write(self.at("dev/vfio").join(group.to_string()), "").unwrap();
    }

    fn scan(&self) -> ChipScan {
        self.scan_with(&Settings::default())
    }

    fn scan_with(&self, settings: &Settings) -> ChipScan {
        let paths = Paths { sysfs: self.at("sys"), procfs: self.at("proc"), dev: self.at("dev") };
        scan(&paths, settings)
    }

    /// Binds a driver to a function; from then on this sysfs shows drivers.
    fn bind(&self, slot: &str, driver: &str) {
        let of_driver = self.at("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&of_driver).unwrap();
        symlink(of_driver, self.at("sys").join(pci::DEVICES).join(slot).join("driver")).unwrap();
    }

    fn states(&self) -> Vec<(ChipState, String)> {
        let chips = self.scan().chips;
        chips.into_iter().map(|chip| (chip.state, chip.faults.join("; "))).collect()
    }
}

#[test]
fn numbers_are_compared_as_numbers_and_the_node_is_the_group() {
    let host = Host::new();
    for (slot, group) in [("0000:10:00.0", 9), ("0000:9:00.0", 10), ("0000:0a:00.0", 100)] {
        host.vfio(slot, "0x0063", group);
    }
    let scan = host.scan();
    let nodes: Vec<_> = scan.chips.iter().map(|chip| chip.nodes[0].clone()).collect();
    let want: Vec<_> = [10, 100, 9].map(|group: u32| host.at("dev/vfio").join(group.to_string())).into();
    assert_eq!(nodes, want);
    assert!(scan.chips.iter().all(|chip| chip.faults.is_empty() && chip.generation == Generation::V5e));
}

#[test]
fn two_functions_of_a_7x_are_one_chip() {
    let host = Host::new();
    for (slot, group) in [("0000:05:00.0", 3), ("0000:05:00.1", 4), ("0000:06:00.0", 5)] {
        host.vfio(slot, "0x0076", group);
    }
    let chips = host.scan().chips;
    assert_eq!(chips.len(), 2);
    assert_eq!((chips[0].pci.as_str(), chips[0].nodes.len(), chips[0].cores), ("0000:05:00", 2, Some(2)));
    assert!(chips[0].faults.is_empty());
    assert_eq!(chips[1].faults, ["shows 1 of its 2 PCI functions"]);
}

#[test]
fn the_faults_of_a_chip_are_those_of_its_state() {
    let host = Host::new();
    host.vfio("0000:05:00.0", "0x0076", 3);
    host.function("0000:05:00.1", &[("vendor", "0x1ae0"), ("device", "0x0076")]);
    let [(state, faults)] = host.states().try_into().unwrap();
    assert_eq!((state, faults.contains("no IOMMU group")), (ChipState::Unknown, true), "{faults}");
    // What is not known of one function is no fault of a chip whose other function has one.
    fs::remove_file(host.at("dev/vfio/3")).unwrap();
    let [(state, faults)] = host.states().try_into().unwrap();
    assert_eq!(state, ChipState::Absent);
    assert!(faults.contains("is absent") && !faults.contains("no IOMMU group"), "{faults}");
}

#[test]
fn a_new_id_is_reported_and_a_network_card_is_not() {
    let host = Host::new();
    host.vfio("0000:00:04.0", "0x0099", 7);
    host.function("0000:00:05.0", &[("vendor", "0x1ae0"), ("device", "0x0042"), ("class", "0x020000")]);
    host.function("0000:00:06.0", &[("vendor", "0x8086"), ("device", "0x0099"), ("class", "0x120000")]);
    host.function("0000:00:07.0", &[("vendor", "0x1ac1"), ("device", "0x089a"), ("class", "0x0880")]);
    symlink(
        "../../../../kernel/iommu_groups/21",
        host.at("sys").join(pci::DEVICES).join("0000:00:06.0/iommu_group"),
    )
    .unwrap();
    let scan = host.scan();
    assert_eq!(scan.chips.len(), 1);
    assert_eq!(scan.other_groups, BTreeSet::from([21]));
    assert_eq!(scan.chips[0].name, "unknown TPU 0x0099");
    assert_eq!(scan.chips[0].nodes, [host.at("dev/vfio/7")]);
    let toml = "[[extra]]\ndevice = 0x0099\nname = \"v9\"\nnode = \"vfio\"\ncores = 4\nhbm_gib = 256";
    let chips = host.scan_with(&toml::from_str(toml).unwrap()).chips;
    assert_eq!(
        (chips[0].name.as_str(), chips[0].cores, chips[0].hbm_bytes),
        ("v9", Some(4), Some(256 << 30))
    );
}

#[test]
fn what_is_missing_is_unknown() {
    let host = Host::new();
    host.function("0000:00:04.0", &[("vendor", "0x1ae0"), ("device", "0x005e")]);
    host.function("0000:00:05.0", &[("vendor", "0x1ae0"), ("device", "0x0027")]);
    host.function("0000:00:06.0", &[("vendor", "0x1ae0"), ("class", "0x120000")]);
    host.function("0000:00:07.0", &[]);
    host.function("0000:00:08.0", &[("vendor", "0x1ae0"), ("device", "0x0062")]);
    fs::write(host.at("dev/accel0"), "").unwrap();
    let scan = host.scan();
    let names: Vec<_> = scan.chips.iter().map(|chip| chip.name.as_str()).collect();
    assert_eq!(names, ["v4", "unknown TPU 0x0027", "unknown TPU 0x????", "v5p"]);
    assert!(scan.chips[0].faults.is_empty(), "{:?}", scan.chips[0].faults);
    assert!(scan.chips[1].faults[0].contains("accel1 is absent"), "{:?}", scan.chips[1].faults);
    assert!(scan.chips[3].faults[0].contains("no IOMMU group"), "{:?}", scan.chips[3].faults);
    assert!(scan.notes[0].contains("1 PCI functions"), "{:?}", scan.notes);
    fs::remove_dir_all(host.at("sys")).unwrap();
    let scan = host.scan();
    assert!(scan.chips.is_empty() && scan.notes[0].contains("paths.sysfs"), "{scan:?}");
}

#[test]
fn the_class_of_a_function_does_not_decide() {
    for class in ["0xff0000", "0x120000", "0x020000", "0x000000", "nonsense"] {
        let host = Host::new();
        for (slot, device) in
            [("0000:00:04.0", "0x0063"), ("0000:00:05.0", "0x0027"), ("0000:00:06.0", "0x0099")]
        {
            host.function(slot, &[("vendor", "0x1ae0"), ("device", device), ("class", class)]);
        }
        host.function("0000:00:07.0", &[("vendor", "0x1ae0"), ("device", "0x001f"), ("class", class)]);
        let names: Vec<_> = host.scan().chips.into_iter().map(|chip| chip.name).collect();
        assert_eq!(names, ["v5e", "unknown TPU 0x0027", "unknown TPU 0x0099"], "{class}");
    }
}

#[test]
fn the_state_says_what_was_observed() {
    let host = Host::new();
    host.vfio("0000:00:04.0", "0x006f", 0);
    host.vfio("0000:00:05.0", "0x006f", 1);
    fs::remove_file(host.at("dev/vfio/1")).unwrap();
    // This sysfs does not show drivers: both reasons are possible.
    let states = host.states();
    assert_eq!(states[0], (ChipState::Ok, String::new()));
    assert!(states[1].0 == ChipState::Absent && states[1].1.contains("not bound, or"), "{states:?}");
    // It does: the reason is known.
    host.bind("0000:00:05.0", "vfio-pci");
    let states = host.states();
    assert!(states[0].0 == ChipState::Fault && states[0].1.starts_with("no driver is bound"), "{states:?}");
    assert!(
        states[1].0 == ChipState::Absent && states[1].1.contains("driver vfio-pci is bound"),
        "{states:?}"
    );
    host.bind("0000:00:04.0", "vfio-pci");
    assert_eq!(host.states()[0].0, ChipState::Ok);
    // The wrong image: functions without driver, group and node.
    let host = Host::new();
    fs::create_dir_all(host.at("sys").join(pci::DRIVERS)).unwrap();
    for device in 0..8 {
        host.function(&format!("0000:00:{device:02x}.0"), &[("vendor", "0x1ae0"), ("device", "0x006f")]);
    }
    let states = host.states();
    assert_eq!(states.len(), 8);
    assert!(
        states.iter().all(|(state, why)| *state == ChipState::Fault && why.contains("no driver is bound"))
    );
    // No group, and the driver is bound: the node is not known.
    host.bind("0000:00:00.0", "vfio-pci");
    let (state, why) = &host.states()[0];
    assert!(*state == ChipState::Unknown && why.contains("no IOMMU group"), "{why}");
}

#[test]
fn a_7x_without_one_of_its_nodes_is_absent() {
    let host = Host::new();
    host.vfio("0000:05:00.0", "0x0076", 3);
    host.vfio("0000:05:00.1", "0x0076", 4);
    fs::remove_file(host.at("dev/vfio/4")).unwrap();
    assert_eq!(host.states()[0].0, ChipState::Absent);
}

#[test]
fn a_node_that_only_this_container_lacks_is_no_fault_of_the_chip() {
    let host = Host::new();
    host.vfio("0000:05:00.0", "0x0076", 3);
    host.vfio("0000:05:00.1", "0x0076", 4);
    let first = || {
        let chip = host.scan().chips.remove(0);
        (chip.state, chip.is_up(), chip.faults.len())
    };
    assert_eq!(first(), (ChipState::Ok, Some(true), 0));
    fs::remove_file(host.at("dev/vfio/4")).unwrap();
    // This sysfs does not show drivers.
    assert_eq!(first(), (ChipState::Absent, None, 1));
    host.bind("0000:05:00.1", "vfio-pci");
    // One function is sound and has no node here; the other has no driver, so the chip is at fault.
    let chip = host.scan().chips.remove(0);
    assert_eq!((chip.state, chip.is_up()), (ChipState::Fault, Some(false)));
    assert_eq!(chip.faults, ["no driver is bound to PCI function 0000:05:00.0"]);
    host.bind("0000:05:00.0", "vfio-pci");
    assert_eq!(first(), (ChipState::Absent, None, 1));
    fs::remove_file(host.at("dev/vfio/3")).unwrap();
    assert_eq!(first(), (ChipState::Absent, None, 2));
    fs::remove_file(host.at("sys").join(pci::DEVICES).join("0000:05:00.1/driver")).unwrap();
    assert_eq!(first(), (ChipState::Absent, Some(false), 1));
}

/// The functions of the field vector, with what its script gives them: address, device, class and IOMMU group.
fn field_functions() -> Vec<[String; 4]> {
    let commands = include_str!("../../../../tests/data/golden/field/unknown_chip_class_ff00/cmd");
    let calls = commands.split(';').filter_map(|command| command.trim().strip_prefix("fn $R "));
    let words = calls.map(|call| call.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.map(|words| [0, 2, 3, 4].map(|at| words[at].clone())).collect()
}

#[test]
fn an_unknown_device_of_class_ff00_is_a_chip() {
    let host = Host::new();
    let functions = field_functions();
    assert_eq!(functions.len(), 3);
    for [slot, device, class, group] in &functions {
        host.vfio(slot, device, group.parse().unwrap());
        fs::write(host.at("sys").join(pci::DEVICES).join(slot).join("class"), format!("{class}\n")).unwrap();
    }
    let chips = host.scan().chips;
    let names: Vec<_> = chips.iter().map(|chip| chip.name.as_str()).collect();
    assert_eq!(names, ["v5e", "unknown TPU 0x0099", "unknown TPU 0x0098"]);
    assert!(chips.iter().all(|chip| chip.is_up() == Some(true)), "{chips:?}");
}

#[test]
fn accel_numbers_come_from_sysfs_where_it_says() {
    let host = Host::new();
    for (slot, number) in [("0000:00:04.0", 1), ("0000:00:05.0", 0)] {
        let folder = host.function(slot, &[("vendor", "0x1ae0"), ("device", "0x005e")]);
        fs::create_dir_all(folder.join(format!("accel/accel{number}"))).unwrap();
        fs::write(host.at(&format!("dev/accel{number}")), "").unwrap();
    }
    let nodes: Vec<_> = host.scan().chips.into_iter().flat_map(|chip| chip.nodes).collect();
    assert_eq!(nodes, [host.at("dev/accel1"), host.at("dev/accel0")]);
}
