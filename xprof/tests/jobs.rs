//! Parts that are not of one job are not averaged.

use std::{fs::File, path::Path};

use xprof::{
    analysis::{self, HostTrace, JobPart, Report, Rules},
    reader::Reader,
    session,
};

fn traces(case: &str) -> Vec<HostTrace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden/xplane").join(case);
    let session = session::resolve(&folder).expect("a session").remove(0);
    let parts = session.parts.iter().map(|part| {
        let mut reader = Reader::open(File::open(&part.path).expect("part")).expect("valid part");
        let file = part.path.file_name().expect("file").to_string_lossy().into_owned();
        analysis::read(&mut reader, &part.host, false, &file, Rules::True).expect("valid part")
    });
    parts.collect()
}

fn by_job(parts: Vec<(HostTrace, Option<&str>)>, rules: Rules) -> Report {
    let part = |(trace, job): (HostTrace, Option<&str>)| JobPart { trace, job: job.map(str::to_owned) };
    analysis::by_job("s".into(), parts.into_iter().map(part).collect(), vec![], rules, None)
}

/// What tells each job, and its parts' hosts.
fn jobs(report: &Report) -> Vec<(&str, Vec<&str>)> {
    let hosts = |report: &'_ Report| report.hosts.iter().map(|host| host.host.clone()).collect::<Vec<_>>();
    assert!(report.jobs.is_empty() || hosts(report).is_empty());
    report
        .jobs
        .iter()
        .map(|job| (&*job.told_by, job.report.hosts.iter().map(|host| &*host.host).collect()))
        .collect()
}

fn unknown(traces: Vec<HostTrace>) -> Vec<(HostTrace, Option<&'static str>)> {
    traces.into_iter().map(|trace| (trace, None)).collect()
}

#[test]
fn hosts_of_one_job_stay_together() {
    for case in ["two_hosts_late", "two_hosts_skew"] {
        let whole = by_job(unknown(traces(case)), Rules::True);
        assert_eq!(jobs(&whole), [], "{case}");
        let plain = analysis::session("s".into(), traces(case), vec![], Rules::True, None);
        assert_eq!(serde_json::to_value(&whole).unwrap(), serde_json::to_value(&plain).unwrap());
    }
}

#[test]
fn other_programs_are_another_job() {
    let mut parts = traces("two_hosts_skew");
    parts.insert(1, traces("multi_module").remove(0));
    let report = by_job(unknown(parts), Rules::True);
    assert_eq!(
        jobs(&report),
        [
            ("program jit_train_step, steps 70 to 78", vec!["t1v-n-cccc-w-0", "t1v-n-cccc-w-1"]),
            ("program jit_backward, steps 5 to 13", vec!["t1v-n-iiii-w-0"]),
        ]
    );
    assert_eq!(report.step_time.count, 0, "no average over both");
    let alone = analysis::session("s".into(), traces("two_hosts_skew"), vec![], Rules::True, None);
    assert_eq!(report.jobs[0].report.step_time, alone.step_time);
    assert!(report.warnings[0].contains("the parts are of 2 jobs"), "{:?}", report.warnings);
    assert_eq!(report.parts().count(), 3);
}

#[test]
fn steps_far_apart_at_one_time_are_another_job() {
    let far = |by: i64, later_ns: i64| {
        let mut parts = traces("two_hosts_skew");
        let mut steps = parts[1].host_steps.iter_mut();
        steps.by_ref().for_each(|step| step.step_num = step.step_num.map(|num| num + by));
        parts[1].profile_start_ns = parts[0].profile_start_ns.map(|start| start + later_ns);
        jobs(&by_job(unknown(parts), Rules::True)).len()
    };
    assert_eq!(far(0, 0), 0);
    assert_eq!(far(20, 0), 0, "a late host of one job");
    assert_eq!(far(10_000, 0), 2);
    assert_eq!(far(10_000, 60_000_000_000), 0, "a minute later a job may be there");
}

#[test]
fn a_known_job_goes_before_what_the_traces_show() {
    let known = |jobs: [&'static str; 2]| {
        let parts = traces("two_hosts_skew").into_iter().zip(jobs.map(Some));
        parts.collect::<Vec<_>>()
    };
    let report = by_job(known(["slurm 7", "slurm 8"]), Rules::True);
    assert_eq!(
        jobs(&report),
        [("job slurm 7", vec!["t1v-n-cccc-w-0"]), ("job slurm 8", vec!["t1v-n-cccc-w-1"])]
    );
    assert_eq!(report.jobs[1].job.as_deref(), Some("slurm 8"));
    assert_eq!(jobs(&by_job(known(["slurm 7", "slurm 7"]), Rules::True)), []);
    assert_eq!(jobs(&by_job(known(["slurm 7", "slurm 8"]), Rules::Xprof)), [], "XProf knows no jobs");
    let mut mixed = known(["slurm 7", "slurm 7"]);
    mixed.insert(0, (traces("multi_module").remove(0), Some("slurm 7")));
    assert_eq!(jobs(&by_job(mixed, Rules::True)), [], "stages of one job run programs of their own");
}

#[test]
fn jobs_lie_by_the_wall_clock_and_their_parts_as_aligned() {
    let offsets = |report: &Report| -> Vec<(String, i64)> {
        report.time_line().0.iter().map(|placed| (placed.part.host.clone(), placed.offset_ps)).collect()
    };
    let alone = by_job(unknown(traces("two_hosts_skew")), Rules::True);
    let aligned: Vec<i64> = alone.alignment.offsets.iter().map(|offset| offset.offset_ps).collect();
    assert_eq!(offsets(&alone).into_iter().map(|of| of.1).collect::<Vec<_>>(), aligned);
    assert_eq!(alone.time_line().1, None);

    let began = traces("two_hosts_skew")[0].profile_start_ns.expect("a session");
    let late = |ns: Option<i64>| {
        let mut parts = traces("two_hosts_skew");
        let mut other = traces("multi_module").remove(0);
        other.profile_start_ns = ns;
        parts.insert(0, other);
        parts.swap(0, 1);
        by_job(unknown(parts), Rules::True)
    };
    let report = late(Some(began + 500_000_000));
    let half_a_second = ("t1v-n-iiii-w-0".to_owned(), 500_000_000_000);
    assert_eq!(offsets(&report), [&offsets(&alone)[..], &[half_a_second]].concat());
    assert!(report.time_line().1.expect("a note").ends_with("by the wall clock of its first host"));
    for unknown in [None, Some(began + 200 * 86_400 * 1_000_000_000)] {
        let report = late(unknown);
        assert_eq!(offsets(&report)[2].1, 0);
        assert!(report.time_line().1.expect("a note").contains("of program jit_backward, "));
    }
}
