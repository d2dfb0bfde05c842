//! The host source on fixture trees of procfs, sysfs and both control group versions.

use std::{collections::BTreeMap, fs, path::PathBuf};

use model::{
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Owner, ProcessKey, Workloads},
};

use super::*;

/// A host below a folder.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| tree.put(path, text));
        tree
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn paths(&self) -> Paths {
        let below = |name: &str| -> PathBuf { self.0.path().join(name) };
        Paths { sysfs: below("sys"), procfs: below("proc"), dev: below("dev") }
    }

    fn read(&self) -> (BTreeMap<String, f64>, Vec<Absence>) {
        self.read_with(HostSnapshot::default())
    }

    fn read_with(&self, host: HostSnapshot) -> (BTreeMap<String, f64>, Vec<Absence>) {
        let tick = Tick { at: Timestamp(0), host };
        let reading = HostReader::new(&self.paths()).collect(&tick);
        let shown = reading.samples.iter().map(|sample| {
            let label: String =
                sample.labels.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            let (SampleValue::Gauge(value) | SampleValue::Counter(value)) = sample.value else {
                panic!("{sample:?}")
            };
            (format!("{}{label}", sample.metric), value)
        });
        (shown.collect(), reading.absent)
    }
}

const PROC: &[(&str, &str)] = &[
    (
        "proc/stat",
        "cpu  100 0 50 1000 4 0 6 0 0 0\ncpu0 50 0 25 500 2 0 3 0 0 0\ncpu1 50 0 25 500 2 0 3 0 0 0\nintr 5\n\
         ctxt 9\nbtime 1700000000\nprocesses 7\nprocs_running 1\nprocs_blocked 0\n",
    ),
    ("proc/loadavg", "1.50 1.00 0.50 2/500 1234\n"),
    (
        "proc/meminfo",
        "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\nBuffers: 0 kB\nCached: 0 kB\nSwapCached: 0 kB\n\
         Active: 0 kB\nInactive: 0 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\nDirty: 0 kB\nWriteback: 0 kB\nMapped: 0 kB\n\
         Slab: 0 kB\nCommitted_AS: 0 kB\nVmallocTotal: 0 kB\nVmallocUsed: 0 kB\nVmallocChunk: 0 kB\nBalloon: 0 kB\n",
    ),
    (
        "proc/net/dev",
        "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop\n\
         lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\nveth1: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n",
    ),
    (
        "proc/diskstats",
        "   8       0 sda 10 0 100 0 20 0 200 0 0 3500 0\n   8       1 sda1 1 0 1 0 1 0 1 0 0 1 0\n   7 0 loop0 1 0 1 0 1 0 1 0 0 1 0\n",
    ),
    ("sys/class/net/eth0/device/vendor", ""),
    ("sys/class/net/veth1/mtu", ""),
    ("sys/block/sda/device/model", ""),
    ("sys/block/loop0/size", ""),
    (
        "proc/pressure/cpu",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
    ),
    (
        "proc/pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
    ),
    (
        "proc/pressure/io",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    ),
];

fn group(shown: &BTreeMap<String, f64>) -> Vec<(&str, f64)> {
    shown
        .iter()
        .filter(|(name, _)| name.starts_with("cgroup_"))
        .map(|(name, value)| (name.as_str(), *value))
        .collect()
}

#[test]
fn every_value_of_the_host() {
    let tree = Tree::new(PROC);
    tree.put("proc/self/cgroup", "0::/\n");
    let (shown, absent) = tree.read();
    for (name, value) in [
        ("host_cpu_seconds_total mode=user", 1.0),
        ("host_cpu_seconds_total mode=idle", 10.0),
        ("host_cpus", 2.0),
        ("host_load1", 1.5),
        ("host_memory_total_bytes", 1_024_000.0),
        ("host_memory_available_bytes", 614_400.0),
        ("host_swap_used_bytes", 6144.0),
        ("host_network_receive_bytes_total device=eth0", 1000.0),
        ("host_network_receive_errors_total device=eth0", 1.0),
        ("host_network_receive_drops_total device=eth0", 2.0),
        ("host_network_transmit_bytes_total device=eth0", 2000.0),
        ("host_network_transmit_errors_total device=eth0", 3.0),
        ("host_network_transmit_drops_total device=eth0", 4.0),
        ("host_disk_read_bytes_total device=sda", 51_200.0),
        ("host_disk_written_bytes_total device=sda", 102_400.0),
        ("host_disk_io_seconds_total device=sda", 3.5),
        ("host_pressure_waiting_seconds_total resource=cpu", 2.5),
        ("host_pressure_stalled_seconds_total resource=memory", 0.5),
    ] {
        assert_eq!(shown.get(name), Some(&value), "{name}");
    }
    assert!(!shown.keys().any(|name| name.contains("=lo") || name.contains("veth") || name.contains("sda1")));
    assert!(!shown.contains_key("host_pressure_stalled_seconds_total resource=cpu"));
    assert_eq!(absent, []);
}

/// `/proc/net/dev` with these devices.
fn net_dev(names: impl Iterator<Item = String>) -> String {
    let lines = names.map(|name| format!("  {name}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"));
    format!("Inter-| Receive | Transmit\n face |bytes packets\n{}", lines.collect::<String>())
}

fn received(shown: &BTreeMap<String, f64>) -> Vec<&str> {
    let devices =
        shown.keys().filter_map(|name| name.strip_prefix("host_network_receive_bytes_total device="));
    devices.collect()
}

#[test]
fn virtual_network_devices_are_left_out_by_what_they_are() {
    let tree = Tree::new(PROC);
    let virtual_ones = ["cali1a2b", "gke3f", "cilium_host", "docker0", "br-4c", "veth9", "anything0", "lo"];
    let all = virtual_ones.iter().chain(&["ens9", "eth0"]).map(|name| (*name).to_owned());
    tree.put("proc/net/dev", &net_dev(all));
    tree.put("sys/class/net/ens9/device/vendor", "");
    virtual_ones.iter().for_each(|name| tree.put(&format!("sys/class/net/{name}/mtu"), ""));
    let (shown, _) = tree.read();
    assert_eq!(received(&shown), ["ens9", "eth0"]);
    assert_eq!(shown.get("host_devices_omitted class=network"), Some(&0.0));
    // A container has no real device: its own is shown.
    tree.put("proc/net/dev", &net_dev(["lo", "net1"].into_iter().map(str::to_owned)));
    assert_eq!(received(&tree.read().0), ["net1"]);
}

#[test]
fn a_cut_at_the_limit_is_counted() {
    let tree = Tree::new(PROC);
    let names = || (0..70).map(|at| format!("eth{at:02}"));
    tree.put("proc/net/dev", &net_dev(names()));
    names().for_each(|name| tree.put(&format!("sys/class/net/{name}/device/vendor"), ""));
    let disks: String =
        (0..65).map(|at| format!(" 8 {at} sd{at} 10 0 100 0 20 0 200 0 0 3500 0\n")).collect();
    tree.put("proc/diskstats", &disks);
    (0..65).for_each(|at| tree.put(&format!("sys/block/sd{at}/device/model"), ""));
    let (shown, _) = tree.read();
    assert_eq!(received(&shown).len(), 64);
    assert_eq!(shown.get("host_devices_omitted class=network"), Some(&6.0));
    assert_eq!(shown.get("host_devices_omitted class=disk"), Some(&1.0));
}

#[test]
fn cgroup_version_2() {
    let tree = Tree::new(PROC);
    tree.put("proc/self/cgroup", "0::/kubepods/pod1/main\n");
    for (file, text) in [
        ("cgroup.procs", ""),
        ("cpu.stat", "usage_usec 2500000\nuser_usec 1\nnr_throttled 2\nthrottled_usec 500000\n"),
        ("memory.current", "4096\n"),
        ("memory.max", "8192\n"),
    ] {
        tree.put(&format!("sys/fs/cgroup/kubepods/pod1/main/{file}"), text);
    }
    let (shown, _) = tree.read();
    let wanted = [
        ("cgroup_cpu_seconds_total cgroup=main", 2.5),
        ("cgroup_cpu_throttled_seconds_total cgroup=main", 0.5),
        ("cgroup_memory_limit_bytes cgroup=main", 8192.0),
        ("cgroup_memory_used_bytes cgroup=main", 4096.0),
    ];
    assert_eq!(group(&shown), wanted);
    tree.put("sys/fs/cgroup/kubepods/pod1/main/memory.max", "max\n");
    assert!(!tree.read().0.contains_key("cgroup_memory_limit_bytes cgroup=main"));
}

#[test]
fn cgroup_version_1_and_both_together() {
    let tree = Tree::new(PROC);
    tree.put("proc/self/cgroup", "12:memory:/job_7\n4:cpu,cpuacct:/job_7\n1:name=systemd:/x\n0::/job_7\n");
    tree.put("sys/fs/cgroup/memory/job_7/memory.usage_in_bytes", "4096\n");
    tree.put("sys/fs/cgroup/memory/job_7/memory.limit_in_bytes", "9223372036854771712\n");
    tree.put("sys/fs/cgroup/cpu,cpuacct/job_7/cpuacct.usage", "2500000000\n");
    tree.put(
        "sys/fs/cgroup/cpu,cpuacct/job_7/cpu.stat",
        "nr_periods 5\nnr_throttled 1\nthrottled_time 250000000\n",
    );
    tree.put("sys/fs/cgroup/unified/job_7/cgroup.procs", "");
    let wanted = [
        ("cgroup_cpu_seconds_total cgroup=job_7", 2.5),
        ("cgroup_cpu_throttled_seconds_total cgroup=job_7", 0.25),
        ("cgroup_memory_used_bytes cgroup=job_7", 4096.0),
    ];
    assert_eq!(group(&tree.read().0), wanted);
}

#[test]
fn each_value_has_the_group_of_its_own_controller_and_a_root_group_has_none() {
    let tree = Tree::new(PROC);
    tree.put("proc/self/cgroup", "12:memory:/slurm/job_7\n5:cpuacct:/slurm/step_0\n4:cpu:/\n0::/\n");
    for (file, text) in [
        ("memory/slurm/job_7/memory.usage_in_bytes", "4096\n"),
        ("memory/slurm/job_7/memory.limit_in_bytes", "8192\n"),
        ("cpuacct/slurm/step_0/cpuacct.usage", "2500000000\n"),
        ("cpu/cpu.stat", "throttled_time 250000000\n"),
        ("unified/cgroup.procs", ""),
        ("unified/cpu.stat", "usage_usec 9000000\nthrottled_usec 9000000\n"),
    ] {
        tree.put(&format!("sys/fs/cgroup/{file}"), text);
    }
    let wanted = [
        ("cgroup_cpu_seconds_total cgroup=step_0", 2.5),
        ("cgroup_memory_limit_bytes cgroup=job_7", 8192.0),
        ("cgroup_memory_used_bytes cgroup=job_7", 4096.0),
    ];
    assert_eq!(group(&tree.read().0), wanted);
    // Of all controllers in the root group: nothing, and not the values of the host.
    tree.put("proc/self/cgroup", "12:memory:/\n5:cpuacct:/\n4:cpu:/\n0::/\n");
    tree.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
    tree.put("sys/fs/cgroup/cpuacct/cpuacct.usage", "1\n");
    assert_eq!(group(&tree.read().0), []);
    // The topmost group that a container sees is its own.
    tree.put("sys/fs/cgroup/unified/cgroup.type", "domain\n");
    let wanted =
        [("cgroup_cpu_seconds_total cgroup=/", 9.0), ("cgroup_cpu_throttled_seconds_total cgroup=/", 9.0)];
    assert_eq!(group(&tree.read().0), wanted);
}

#[test]
fn a_group_that_two_processes_share_in_one_hierarchy_is_told_once() {
    let tree = Tree::new(PROC);
    tree.put("proc/7/cgroup", "12:memory:/job_7\n5:cpuacct:/job_7/a\n");
    tree.put("proc/9/cgroup", "12:memory:/job_7\n5:cpuacct:/job_7/b\n");
    tree.put("sys/fs/cgroup/memory/job_7/memory.usage_in_bytes", "4096\n");
    tree.put("sys/fs/cgroup/cpuacct/job_7/a/cpuacct.usage", "1000000000\n");
    tree.put("sys/fs/cgroup/cpuacct/job_7/b/cpuacct.usage", "2000000000\n");
    let owner = |pid| Owner { process: ProcessKey { pid, start_ticks: 1 }, ..Owner::default() };
    let workloads = Arc::new(Workloads { owners: [7, 9].map(owner).to_vec(), ..Workloads::default() });
    let tick = Tick { at: Timestamp(0), host: HostSnapshot { workloads, ..HostSnapshot::default() } };
    let samples = HostReader::new(&tree.paths()).collect(&tick).samples;
    let count = |name: &str| samples.iter().filter(|sample| sample.metric.name == name).count();
    assert_eq!((count("cgroup_memory_used_bytes"), count("cgroup_cpu_seconds_total")), (1, 2));
}

#[test]
fn what_is_missing_is_named_and_hides_nothing() {
    let tree = Tree::new(&PROC[1..3]);
    let (shown, absent) = tree.read();
    assert_eq!(shown.get("host_load1"), Some(&1.5));
    let what: Vec<_> = absent.iter().map(|absence| absence.what.as_str()).collect();
    for file in ["/stat", "/net/dev", "/diskstats", "/pressure/cpu", "/self/cgroup"] {
        assert!(what.iter().any(|what| what.ends_with(file)), "{file} of {what:?}");
    }
}

#[test]
fn a_path_that_leads_out_is_not_followed() {
    let tree = Tree::new(PROC);
    tree.put("proc/self/cgroup", "0::/../../other\n");
    tree.put("sys/other/cgroup.procs", "");
    assert_eq!(group(&tree.read().0), []);
}

#[test]
fn a_text_of_another_shape_is_named() {
    let tree = Tree::new(PROC);
    tree.put("proc/meminfo", "MemTotal: lots\n");
    let (shown, absent) = tree.read();
    assert!(!shown.keys().any(|name| name.starts_with("host_memory")) && shown.contains_key("host_load1"));
    assert!(
        absent.iter().any(|it| it.what.ends_with("/meminfo") && it.why.contains("cannot be parsed")),
        "{absent:?}"
    );
}

#[test]
fn nothing_is_missing_of_a_process_that_has_ended() {
    let tree = Tree::new(PROC);
    tree.put("proc/7/stat", "");
    tree.put("proc/9/cgroup", "0::/\n");
    let owner = |pid| Owner { process: ProcessKey { pid, start_ticks: 1 }, ..Owner::default() };
    let owners = [7, 8, 9].map(owner).to_vec();
    let workloads = Arc::new(Workloads { owners, ..Workloads::default() });
    let (_, absent) = tree.read_with(HostSnapshot { workloads, ..HostSnapshot::default() });
    let what: Vec<_> = absent.iter().map(|absence| absence.what.rsplit('/').nth(1).unwrap()).collect();
    assert_eq!(what, ["7"], "{absent:?}");
}

#[test]
fn this_very_host_has_values() {
    let tick = Tick { at: Timestamp(0), host: HostSnapshot::default() };
    let reading = HostReader::new(&Paths::default()).collect(&tick);
    let metrics: Vec<_> = reading.samples.iter().map(|sample| sample.metric.name.as_ref()).collect();
    for metric in
        ["host_cpu_seconds_total", "host_memory_available_bytes", "host_network_receive_bytes_total"]
    {
        assert!(metrics.contains(&metric), "{metric} of {metrics:?}");
    }
}
