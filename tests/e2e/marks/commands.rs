//! `tpuscope mark` and `tpuscope goodput --job`.

use fakes::harness::copy_program;

use super::*;

#[test]
fn a_shell_marks_a_job_and_asks_for_its_goodput() {
    let host = MarkedHost::new("");
    for words in [
        &["JOB", "--start"][..],
        &["ACCELERATOR_INIT", "--start"],
        &["ACCELERATOR_INIT", "--end"],
        &["STEP", "--step", "0"],
        &["STEP", "--step", "1"],
        &["eval", "--start"],
        &["eval", "--end"],
        &["note"],
        &["STEP", "--step", "2"],
        &["JOB", "--end"],
    ] {
        let ended = host.ask(&[&["mark", "--strict", "--job", "my job"], words].concat());
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(0), "", ""),
            "{words:?}"
        );
    }
    let page = host.ask(&["goodput", "--job", "my job"]);
    assert!(page.stdout.starts_with("my job (exact, from marks): goodput "), "{page:?}");
    assert!(page.stdout.contains("largest productive step 2"), "{page:?}");
    let strict = host.ask(&["goodput", "--job", "my job", "--strict"]);
    assert!(strict.stdout.starts_with("my job (strict, from marks): goodput "), "{strict:?}");
    let schema = crate::schema::Schema::open("goodput");
    for more in [
        &[][..],
        &["--strict"],
        &["--start", "1", "--end", "4000000000"],
        &["--now", "1"],
        &["--exact", "--window", "1h"],
        &["--strict", "--window", "1h"],
    ] {
        schema.admits(&host.goodput("my job", more));
    }
    assert_eq!(host.counts("my job"), (11, 0, 0));
}

#[test]
fn a_command_of_run_marks_its_own_job() {
    let host = MarkedHost::new("");
    let (program, socket) = (tpuscope().display().to_string(), host.home().socket().display().to_string());
    let mark = [program.as_str(), "mark", "JOB", "--start", "--strict"];
    let ended = host.ask(&[&["run", "--name", "nightly", "--socket", &socket, "--"][..], &mark].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(host.counts("nightly"), (1, 0, 0));
    assert_eq!(host.counts("run:nightly"), (1, 0, 0), "as `tpuscope jobs` calls it");
}

#[test]
fn a_mistake_is_one_line_with_its_remedy() {
    let host = MarkedHost::new("");
    for (words, code, says) in [
        (&["mark", "STEP"][..], 2, "a step has a number"),
        (&["mark", "STEP", "--step", "1", "--end"], 2, "the end of a step is not marked"),
        (&["mark", "eval", "--step", "1"], 2, "--step is for STEP"),
        (&["mark", "JOB"], 2, "JOB starts or ends"),
        (
            &["mark", "STEP", "--step", "9223372036854775808", "--job", "m9", "--strict"],
            8,
            "the mark was refused",
        ),
        (&["mark", "eval", "--job", "a\nb", "--strict"], 8, "the mark was refused: job_name"),
        (&["mark", "eval", "--strict"], 8, "the mark names no job"),
        (&["goodput", "--job", "none"], 5, "no job `none`"),
        (&["goodput", "--exact"], 2, "--job"),
        (&["goodput", "--job", "j", "--start", "2", "--end", "1"], 2, "start"),
    ] {
        host.ask(words).failed(code, says);
    }
    // A script with `set -e` goes on, and the ledger knows what it lacks.
    let refused = host.ask(&["mark", "eval"]);
    assert_eq!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.starts_with("tpuscope: warning: not marked: the mark was refused"), "{refused:?}");
    assert!(refused.stderr.contains("name the job with --job"), "{refused:?}");
    host.ask(&["mark", "STEP", "--step", "1", "--job", "m9"]);
    let incomplete = host.goodput("m9", &["--strict"]);
    assert_eq!(
        (&incomplete["marks"]["complete"], &incomplete["marks"]["refused"]),
        (&false.into(), &1.into())
    );
    host.ask(&["mark", "eval", "--start", "--job", "known"]);
    host.ask(&["goodput", "--job", "none"]).failed(5, "these have: `known`, `m9`");
    host.ask(&["goodput", "--job", "known"]).failed(8, "Total job time is zero");
}

#[test]
fn a_script_goes_on_without_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let ask = |words: &[&str]| {
        let mut command = Command::new(tpuscope());
        command.args(words).arg("--socket").arg(&socket);
        start_as(command).end()
    };
    let ended = ask(&["mark", "eval", "--job", "j"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.starts_with("tpuscope: warning: not marked: no agent"), "{ended:?}");
    ask(&["mark", "eval", "--job", "j", "--strict"]).failed(6, "no agent");
    ask(&["goodput", "--job", "j"]).failed(6, "no agent");
}

#[test]
fn nobody_reads_or_changes_the_jobs_of_another_user() {
    const SOMEBODY: u32 = 54321;
    let host = MarkedHost::new("");
    let home = Home::new();
    let binary = home.path().join("tpuscope");
    copy_program(&tpuscope(), &binary);
    let as_somebody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={SOMEBODY}"), &format!("--regid={SOMEBODY}"), "--clear-groups"]);
        command.arg(&binary).args(words).arg("--socket").arg(host.home().socket());
        start_as(command).end()
    };
    let mark = ["mark", "STEP", "--strict", "--job", "j", "--step"];
    for step in ["0", "1"] {
        assert_eq!(host.ask(&[&mark[..], &[step]].concat()).code, Some(0));
    }
    as_somebody(&["goodput", "--job", "j"]).failed(5, "no job `j`");
    as_somebody(&["goodput", "--job", "j", "--user", "0"]).failed(4, "the marks of another user");
    assert_eq!(as_somebody(&[&mark[..], &["7"]].concat()).code, Some(0));
    let of_somebody = as_somebody(&["goodput", "--job", "j", "--strict", "--json"]).json();
    assert_eq!(
        (&of_somebody["marks"]["uid"], &of_somebody["marks"]["stored"]),
        (&SOMEBODY.into(), &1.into())
    );
    host.ask(&["goodput", "--job", "j"]).failed(2, "several jobs are `j`");
    assert_eq!(host.goodput("j", &["--strict", "--user", "0"])["marks"]["stored"], 2);
}

#[test]
fn an_agent_may_take_no_marks() {
    let host = MarkedHost::new("[marks]\nmax_size = \"0B\"\n");
    assert!(!host.socket().exists());
    host.ask(&["mark", "eval", "--job", "j", "--strict"]).failed(6, "takes no marks");
}
