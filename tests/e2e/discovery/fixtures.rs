//! What one machine cannot have for real: a sidecar's view of other containers, cgroups of Slurm and Kubernetes.

use std::fs;

use fakes::{fake_host::FakeHost, fake_proc::FakeProcess};
use host::{
    settings::workload::{Discover, Settings},
    workloads::OwnerScanner,
};
use model::{
    device::{ChipIndex, Generation},
    job::JobKind,
    time::Timestamp,
    workload::{EndpointKind, Workloads},
};

use super::{look, owner};

/// A host whose procfs is a folder, with a process 1 in it.
fn host(chips: u32) -> FakeHost {
    let mut host = FakeHost::with(Generation::V5e, chips);
    let procfs = host.root().join("proc");
    fs::create_dir(&procfs).unwrap();
    host.set_procfs(&procfs);
    FakeProcess::new(1, 1).write(&procfs);
    host
}

const POD: &str = "0::/kubepods.slice/kubepods-burstable.slice/\
    kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-0123.scope\n";

#[test]
fn a_container_as_a_sidecar_sees_it() {
    let host = host(2);
    let procfs = host.paths().procfs;
    let site = "/usr/lib/python3/dist-packages";
    let folder = FakeProcess::new(4321, 5000)
        .ns_pids(&[4321, 77, 8])
        .file("cgroup", POD)
        .environment(&[
            ("JOBSET_NAME", "llm"),
            ("POD_NAMESPACE", "ml"),
            ("JOB_COMPLETION_INDEX", "1"),
            ("TPU_WORKER_ID", "1"),
            ("TPU_WORKER_HOSTNAMES", "a.llm,b.llm"),
            ("HF_TOKEN", "secret"),
        ])
        .maps(&[&format!("{site}/libtpu/libtpu.so"), &format!("{site}/jaxlib/libjax_common.so")])
        // The group numbers of the fake host's first two functions are 10 and 9.
        .descriptor(3, "/dev/vfio/vfio")
        .descriptor(4, "/dev/vfio/9")
        .descriptor(5, "/dev/vfio/10")
        .descriptor(6, "socket:[900]")
        .listeners(&[("127.0.0.1:8431", 1000, 900)])
        .write(&procfs);
    for package in ["jaxlib", "jaxlib-0.9.1.dist-info", "libtpu"] {
        fs::create_dir_all(folder.join("root").join(site.trim_start_matches('/')).join(package)).unwrap();
    }
    let seen = look(&host, Settings::default());
    let owner = owner(&seen, 4321);
    assert_eq!((owner.container_pid, owner.uid, owner.command.as_str()), (Some(8), 1000, "python3"));
    assert_eq!(owner.chips, [ChipIndex(0), ChipIndex(1)]);
    assert_eq!(owner.libtpu, Some(procfs.join(format!("4321/root{site}/libtpu/libtpu.so"))));
    assert_eq!(owner.framework().as_deref(), Some("jaxlib 0.9.1"));
    assert_eq!((owner.job.kind, owner.job.id.as_str(), owner.job.rank), (JobKind::Jobset, "ml/llm", Some(1)));
    assert_eq!(owner.job.hosts, ["a.llm", "b.llm"]);
    assert!(!format!("{owner:?}").contains("secret"));
    assert!(owner.shares_our_network);
    let [endpoint] = &owner.endpoints[..] else { panic!("{owner:#?}") };
    assert_eq!((endpoint.kind, endpoint.unreachable.clone()), (EndpointKind::RuntimeMetrics, None));
}

#[test]
fn slurm_by_cgroup_of_both_versions() {
    let host = host(2);
    let procfs = host.paths().procfs;
    let variables = [("SLURM_JOB_ID", "34"), ("SLURM_JOB_NODELIST", "t[0-1]"), ("SLURM_NODEID", "0")];
    FakeProcess::new(100, 10)
        .file("cgroup", "9:name=systemd:/\n4:memory:/slurm/uid_1000/job_34/step_0/task_0\n0::/\n")
        .environment(&variables)
        .descriptor(4, "/dev/vfio/10")
        .write(&procfs);
    FakeProcess::new(200, 20)
        .file("cgroup", "0::/system.slice/slurmstepd.scope/job_34/step_0/user/task_1\n")
        .environment(&variables)
        .descriptor(4, "/dev/vfio/9")
        .write(&procfs);
    let seen = look(&host, Settings::default());
    assert_eq!(owner(&seen, 100).job, owner(&seen, 200).job);
    let job = &owner(&seen, 100).job;
    assert_eq!((job.kind, job.id.as_str(), job.attempt, job.rank), (JobKind::Slurm, "34", Some(0), Some(0)));
    assert_eq!(job.hosts, ["t0", "t1"]);
}

#[test]
fn an_exec_and_a_reused_pid_are_noticed_at_the_next_tick() {
    let host = host(1);
    let procfs = host.paths().procfs;
    let process = |start| FakeProcess::new(100, start).environment(&[]).descriptor(4, "/dev/vfio/10");
    process(10).write(&procfs);
    let mut discovery = OwnerScanner::new(host.paths(), Settings::default(), host.chips().into());
    let at = |seconds: i64| Timestamp(seconds * 1_000_000_000);
    assert_eq!(discovery.tick(at(0)).owners[0].process.start_ticks, 10);
    process(11).write(&procfs);
    assert_eq!(discovery.tick(at(2)).owners[0].process.start_ticks, 11);
    assert!(discovery.was_full_scan());
    // It lets go of the chip.
    process(11).descriptor(4, "/dev/null").write(&procfs);
    assert!(discovery.tick(at(4)).owners.is_empty());
}

#[test]
fn a_library_that_is_loaded_late_is_found_and_files_that_are_missing_are_said() {
    let host = host(0);
    let procfs = host.paths().procfs;
    let python = FakeProcess::new(100, 10).maps(&["/usr/bin/python3.11"]);
    python.write(&procfs);
    // No environ, no cgroup, no namespaces: the least that a process shows.
    let torch = FakeProcess::new(200, 10).maps(&["/srv/site-packages/_XLAC.cpython-311-x86_64-linux-gnu.so"]);
    let folder = torch.write(&procfs);
    fs::remove_file(folder.join("ns/net")).unwrap();
    let settings = Settings { discover: Discover::Any, ..Settings::default() };
    let mut discovery = OwnerScanner::new(host.paths(), settings, host.chips().into());
    let seen = discovery.tick(Timestamp(0));
    assert_eq!(seen.owners.len(), 1, "{seen:#?}");
    let bare = owner(&seen, 200);
    assert!(bare.notes.iter().any(|note| note.contains("its environment cannot be read")), "{bare:#?}");
    assert!(!bare.shares_our_network && bare.network_namespace.is_none());
    let file = |name| folder.parent().unwrap().join("100").join(name);
    python.maps(&["/usr/bin/python3.11", "/s/jaxlib/_jax.so"]).write(&procfs);
    // The kernel's file would show a larger address space.
    let stat = fs::read_to_string(file("stat")).unwrap().replace(" 1073741824 ", " 2147483648 ");
    fs::write(file("stat"), stat).unwrap();
    let seen = discovery.tick(Timestamp(10_000_000_000));
    assert_eq!(seen.owners.len(), 2, "{seen:#?}");
}

#[test]
fn an_accelerator_that_sysfs_does_not_show_is_said() {
    let host = host(0);
    let procfs = host.paths().procfs;
    FakeProcess::new(100, 10)
        .environment(&[])
        .descriptor(4, "/dev/accel0")
        .descriptor(5, "/dev/vfio/12")
        .write(&procfs);
    let seen = look(&host, Settings::default());
    let owner = owner(&seen, 100);
    assert!(owner.chips.is_empty(), "{owner:#?}");
    assert!(
        owner.notes.iter().any(|note| note.contains("/dev/accel0, which belongs to no chip")),
        "{owner:#?}"
    );
}

#[test]
fn a_forked_data_loader_is_told_from_its_parent() {
    let host = host(1);
    let procfs = host.paths().procfs;
    let process = |pid| FakeProcess::new(pid, u64::from(pid)).environment(&[]).descriptor(4, "/dev/vfio/10");
    let listening =
        |process: FakeProcess| process.descriptor(6, "socket:[900]").listeners(&[("[::]:9012", 1000, 900)]);
    listening(process(100)).write(&procfs);
    listening(process(200).parent(100)).write(&procfs);
    let seen = look(&host, Settings::default());
    let (parent, child) = (owner(&seen, 100), owner(&seen, 200));
    assert_eq!(parent.endpoints.len(), 1, "{seen:#?}");
    assert_eq!(parent.endpoints[0].listeners, [parent.process], "one socket, one listener");
    assert!(child.endpoints.is_empty(), "{child:#?}");
    assert!(child.notes.iter().any(|note| note.contains("a fork of process 100")), "{child:#?}");
    assert!(!child.notes.iter().any(|note| note.contains("metric service")), "{child:#?}");
}

#[test]
fn the_forks_of_a_bare_process_are_of_its_job_also_when_they_outlive_it() {
    let host = host(2);
    let procfs = host.paths().procfs;
    let process = |pid, file: &str| {
        FakeProcess::new(pid, u64::from(pid)).environment(&[]).descriptor(4, &format!("/dev/vfio/{file}"))
    };
    process(100, "10").write(&procfs);
    process(200, "10").parent(100).write(&procfs);
    // A pid may be smaller than that of its parent.
    process(50, "10").parent(200).write(&procfs);
    process(300, "9").parent(100).write(&procfs);
    let mut discovery = OwnerScanner::new(host.paths(), Settings::default(), host.chips().into());
    let seen = discovery.tick(Timestamp(0));
    let job = |seen: &Workloads, pid| owner(seen, pid).job.id.clone();
    for (pid, wanted) in [(100, "100-100"), (200, "100-100"), (50, "100-100"), (300, "300-300")] {
        assert_eq!(job(&seen, pid), wanted, "{seen:#?}");
    }
    fs::remove_dir_all(procfs.join("100")).unwrap();
    process(200, "10").parent(1).write(&procfs);
    let seen = discovery.tick(Timestamp(60_000_000_000));
    assert_eq!((job(&seen, 200), job(&seen, 50)), ("100-100".to_owned(), "100-100".to_owned()), "{seen:#?}");
}
