//! Which profilers a capture asks, and what is missing.

use super::*;
use crate::{FailureReason, capture::no_target};
use model::device::ChipIndex;

fn owner(pid: u32, uid: u32, ports: &[u16], chips: &[u32]) -> Owner {
    let endpoint = |port: &u16| Endpoint {
        kind: EndpointKind::Profiler,
        address: Address::Tcp(SocketAddr::from(([127, 0, 0, 1], *port))),
        origin: EndpointOrigin::Config,
        listeners: vec![ProcessKey { pid, start_ticks: 1 }],
        unreachable: None,
    };
    Owner {
        process: ProcessKey { pid, start_ticks: 1 },
        container_pid: None,
        uid,
        gid: uid,
        command: "python".into(),
        chips: chips.iter().map(|&chip| ChipIndex(chip)).collect(),
        environment: BTreeMap::new(),
        libtpu: None,
        versions: [("jaxlib", "0.10.2"), ("libtpu", "0.0.52")]
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .into(),
        pid_namespace: None,
        network_namespace: None,
        shares_our_network: true,
        job: Job {
            kind: JobKind::Process,
            id: pid.to_string(),
            attempt: None,
            name: None,
            user: Some("ada".into()),
            rank: None,
            hosts: Vec::new(),
        },
        endpoints: ports.iter().map(endpoint).collect(),
        no_metrics: None,
        notes: Vec::new(),
    }
}

fn find(owners: Vec<Owner>, pids: &[u32], uid: Option<u32>) -> Targets {
    let workloads = Workloads { owners, ..Workloads::default() };
    let may = |owner: Option<&Owner>| match uid.is_none() || uid == owner.map(|owner| owner.uid) {
        true => Permission::Granted,
        false => Permission::NotYours,
    };
    of_workloads(&workloads, &[], &HostName::sanitised("h"), pids, may)
}

#[test]
fn a_process_with_a_jaxlib_that_hangs_is_asked_only_where_the_caller_insists() {
    let old = [("jaxlib".to_owned(), "0.7.2".to_owned())].into();
    let owner = Owner { versions: old, ..owner(10, 1000, &[9012], &[0]) };
    let workloads = Workloads { owners: vec![owner], ..Workloads::default() };
    let host: HostName = "h".parse().unwrap();
    let found = of_workloads(&workloads, &[], &host, &[], |_| Permission::Granted);
    assert!(
        found.targets.is_empty() && found.missing[0].why.starts_with("its jaxlib 0.7.2 stops for ever"),
        "{found:?}"
    );
    assert!(found.missing[0].why.ends_with("--target 127.0.0.1:9012 --allow-old-jaxlib` on this host"));
    let named = direct_with_owners(&["localhost:9012".parse().unwrap()], &host, &workloads, &[]);
    assert_eq!(named.targets.len(), 1);
    let left = named.without_old_jaxlib();
    assert!(left.targets.is_empty());
    assert_eq!(left.missing[0].process.as_deref(), Some("pid 10 (python)"));
    assert!(left.missing[0].why.ends_with("--target localhost:9012 --allow-old-jaxlib` on this host"));
    assert_eq!(no_target(&left).reason(), FailureReason::OldJaxlib);
    assert_eq!(no_target(&found).reason(), FailureReason::OldJaxlib);
}

#[test]
fn a_workload_of_the_caller_without_a_profiler_is_the_reason_where_others_have_workloads_too() {
    let others = || owner(1, 6, &[9001], &[0]);
    let alone = no_target(&find(vec![others()], &[], Some(5)));
    assert_eq!(alone.reason(), FailureReason::NotPermitted);
    for chips in [&[][..], &[1]] {
        let error = no_target(&find(vec![others(), owner(2, 5, &[], chips)], &[], Some(5)));
        assert_eq!(error.reason(), FailureReason::NoTarget);
        assert!(error.to_string().contains("pid 2 (python)"), "{error}");
    }
}

#[test]
fn each_process_is_one_target() {
    let found = find(vec![owner(1, 5, &[9001, 9002], &[0]), owner(2, 5, &[9003], &[1])], &[], None);
    let ports: Vec<_> = found.targets.iter().map(|target| target.at.port()).collect();
    assert_eq!((ports, found.missing.len()), (vec![9001, 9003], 0));
    let CaptureTarget { uid, user, versions, .. } = &found.targets[0];
    assert_eq!((*uid, user.as_deref()), (Some(5), Some("ada")));
    let versions: Vec<_> = versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    assert_eq!(versions, ["jaxlib 0.10.2", "libtpu 0.0.52"]);
}

#[test]
fn a_target_has_the_job_that_names_it() {
    let mut named = owner(1, 5, &[9001], &[0]);
    named.job = Job {
        kind: JobKind::Slurm,
        id: "77".into(),
        attempt: Some(2),
        name: Some("train".into()),
        user: Some("ada".into()),
        rank: Some(3),
        hosts: vec!["a".into()],
    };
    let found = find(vec![named, owner(2, 5, &[9002], &[1])], &[], None);
    let expected = PartJob {
        kind: "slurm".into(),
        id: "77".into(),
        attempt: Some(2),
        name: Some("train".into()),
        user: Some("ada".into()),
        rank: Some(3),
    };
    let jobs: Vec<_> = found.targets.into_iter().map(|target| target.job).collect();
    assert_eq!(jobs, [Some(expected), None]);
}

#[test]
fn a_process_without_a_usable_profiler_is_named() {
    let found = find(vec![owner(1, 5, &[], &[0]), owner(2, 5, &[], &[])], &[1, 2, 77], None);
    assert_eq!(found.missing.len(), 2);
    assert_eq!(
        found.missing[0].why,
        "no profiler of it has been seen since the agent started: it was not seen to listen on any of 9999, 9012, 6009"
    );
    assert!(found.missing[1].why.contains("no workload process"));
    assert!(found.warnings[0].contains("pid 2"));
}

#[test]
fn a_port_of_a_variable_is_named_with_its_variable() {
    let mut named = owner(1, 5, &[], &[0]);
    named.environment.insert("JAX_PROFILER_PORT".into(), "7777".into());
    let why = find(vec![named.clone()], &[], None).missing.remove(0).why;
    assert!(why.ends_with("listen on any of 9999, 9012, 6009, 7777 (JAX_PROFILER_PORT)"), "{why}");
    named.endpoints = owner(1, 5, &[7777], &[0]).endpoints;
    named.endpoints[0].origin = EndpointOrigin::Variable("JAX_PROFILER_PORT".into());
    named.endpoints[0].unreachable = Some("nothing listens there".into());
    assert_eq!(
        find(vec![named], &[], None).missing[0].why,
        "127.0.0.1:7777 of JAX_PROFILER_PORT: nothing listens there"
    );
}

#[test]
fn a_process_that_cannot_be_seen_is_part_of_the_reason() {
    let workloads = |owners| Workloads {
        owners,
        hidden: Some("the descriptors of some processes, such as 7, cannot be read".into()),
        ..Workloads::default()
    };
    let error = |owners, pids: &[u32]| {
        let targets =
            of_workloads(&workloads(owners), &[], &HostName::sanitised("h"), pids, |_| Permission::Granted);
        assert!(targets.targets.is_empty());
        no_target(&targets)
    };
    let unseen = "one that cannot be seen may hold a chip: the descriptors of some processes, such as 7, cannot be read";
    let none = error(Vec::new(), &[]);
    assert_eq!(none.to_string(), format!("no workload process was found on this host, but {unseen}"));
    assert_eq!(none.reason(), FailureReason::OwnersHidden);
    for (owners, pids, seen) in [
        (Vec::new(), &[9][..], "pid 9: no workload process of this host has this pid"),
        (vec![owner(1, 5, &[], &[0])], &[][..], "pid 1 (python): no profiler of it has been seen"),
    ] {
        let error = error(owners, pids);
        let text = error.to_string();
        assert!(text.contains(seen) && text.ends_with(&format!("; {unseen}")), "{text}");
        assert_eq!(error.reason(), FailureReason::OwnersHidden);
    }
    let all_seen = no_target(&Targets::default());
    assert_eq!(all_seen.to_string(), "no workload process was found on this host");
    assert_eq!(all_seen.reason(), FailureReason::NoTarget);
}

#[test]
fn a_profiler_that_is_gone_is_the_reason() {
    let mut gone = owner(1, 5, &[9012], &[0]);
    let why = "the profiler on 127.0.0.1:9012 closed 8 s after the process started";
    gone.endpoints[0].unreachable = Some(why.into());
    assert_eq!(find(vec![gone], &[], None).missing[0].why, why);
}

#[test]
fn a_shared_port_gives_one_part_and_names_the_other() {
    let mut owners = vec![owner(1, 5, &[9001], &[0]), owner(2, 5, &[9001], &[1])];
    let both: Vec<_> = owners.iter().map(|owner| owner.process).collect();
    for owner in &mut owners {
        owner.endpoints[0].listeners.clone_from(&both);
    }
    let found = find(owners, &[], None);
    assert_eq!(found.targets.len(), 1);
    assert!(found.targets[0].notes[0].contains("shared by the processes 1, "));
    assert!(found.missing[0].why.contains("shares 127.0.0.1:9001"));
}

#[test]
fn a_port_that_is_shared_is_told_also_where_it_was_named() {
    let mut sharing = owner(1, 5, &[9001], &[0]);
    sharing.endpoints[0].listeners.push(ProcessKey { pid: 2, start_ticks: 7 });
    let endpoint = sharing.endpoints[0].clone();
    let host = HostName::sanitised("h");
    let named = ["localhost:9001".parse().unwrap()];
    let told = |workloads: Workloads| {
        let direct = direct_with_owners(&named, &host, &workloads, &[]);
        let found = of_workloads(&workloads, &[], &host, &[], |_| Permission::Granted);
        [direct, found].map(|found| found.targets[0].notes.clone())
    };
    for notes in told(Workloads { owners: vec![sharing], ..Workloads::default() })
        .into_iter()
        .chain(told(Workloads { endpoints: vec![endpoint], ..Workloads::default() }))
    {
        assert!(
            notes[0].contains("is shared by the processes 1, 2: this part is of one of them"),
            "{notes:?}"
        );
    }
}

#[test]
fn other_users_are_left_out() {
    let both = || vec![owner(1, 5, &[9001], &[0]), owner(2, 6, &[9002], &[1])];
    let found = find(both(), &[], Some(6));
    assert_eq!(found.targets.len(), 1);
    assert_eq!(found.targets[0].uid, Some(6));
    assert_eq!(found.denied, 1);
    // Nothing that was asked for is missing, unless the process was named.
    assert_eq!((found.warnings.len(), found.missing.len()), (0, 0));
    let named = find(both(), &[1, 2], Some(6));
    assert_eq!((named.targets.len(), named.missing.len()), (1, 0));
    assert_eq!(named.warnings, ["left out, because not yours: 1 process"]);
}

#[test]
fn the_owner_of_a_named_profiler_of_this_machine_is_known() {
    let none = owner(2, 5, &[9002], &[]).endpoints;
    let mut unseen = owner(3, 5, &[9003], &[]).endpoints;
    unseen[0].listeners.clear();
    let workloads = Workloads {
        owners: vec![owner(1, 5, &[9001], &[0, 1])],
        endpoints: none.into_iter().chain(unseen).collect(),
        ..Workloads::default()
    };
    let named = ["localhost:9001", "127.0.0.1:9002", "127.0.0.1:9003", "[::1]:9001", "tpu-7:9001"];
    let named: Vec<Target> = named.iter().map(|text| text.parse().unwrap()).collect();
    let found = direct_with_owners(&named, &HostName::sanitised("me"), &workloads, &[]).targets;
    let chips: Vec<_> = found.iter().map(|target| target.chips).collect();
    assert_eq!(chips, [Some(2), Some(0), None, None, None]);
    assert_eq!(
        (found[0].process.map(|process| process.pid), found[0].at.clone()),
        (Some(1), named[0].clone())
    );
    assert_eq!(found[4].host.to_string(), "tpu-7");
    // The agent knows it of a profiler in its settings in the same way.
    let found =
        of_workloads(&workloads, &[], &HostName::sanitised("me"), &[], |_| Permission::Granted).targets;
    let chips: Vec<_> = found.iter().map(|target| target.chips).collect();
    assert_eq!(chips, [Some(2), Some(0), None]);
}

#[test]
fn a_target_that_is_named_twice_is_one_target_with_the_name_of_its_host() {
    let named: Vec<Target> =
        ["localhost:1", "127.0.0.1:1", "localhost:1", "tpu-7:2"].iter().map(|t| t.parse().unwrap()).collect();
    let hosts: Vec<_> =
        direct(&named, &HostName::sanitised("me")).targets.into_iter().map(|t| t.host.to_string()).collect();
    assert_eq!(hosts, ["me", "me", "tpu-7"]);
}

#[test]
fn what_is_left_out_says_whether_its_user_or_its_namespace_is_another() {
    let left_out = |denied, elsewhere| Targets { denied, elsewhere, ..Targets::default() }.left_out();
    assert_eq!(left_out(0, 0), None);
    assert_eq!(left_out(2, 0).unwrap(), "left out, because not yours: 2 processes");
    assert_eq!(left_out(1, 1).unwrap(), "left out, because in another pid namespace than you: 1 process");
    let both =
        "left out, because not yours: 1 process; because in another pid namespace than you: 2 processes";
    assert_eq!(left_out(3, 2).unwrap(), both);
    let workloads = Workloads {
        owners: vec![owner(10, 1000, &[9012], &[0]), owner(11, 1001, &[9013], &[1])],
        ..Workloads::default()
    };
    let may = |owner: Option<&Owner>| match owner.map(|owner| owner.uid) {
        Some(1000) => Permission::Elsewhere,
        _ => Permission::NotYours,
    };
    let found = of_workloads(&workloads, &[], &HostName::sanitised("h"), &[], may);
    assert_eq!((found.denied, found.elsewhere), (2, 1));
}
