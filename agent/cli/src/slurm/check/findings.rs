//! What is wrong with the set-up of Slurm's hooks on a host. Pure: what the host has comes in.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    configuration::SlurmConfiguration,
    program::{self, Program, ProgramState},
};
use crate::slurm::hook::Hook;

/// The least `PrologEpilogTimeout`: the time that the script of the epilog gives tpuscope, a second until it is killed, and one
/// for the other hooks.
const LEAST_TIMEOUT: u64 = 8;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// It can drain a node, fail a job, or keep the hooks from working.
    Error,
    /// It works, and could be better.
    Warning,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The key of slurm.conf, or `agent`.
    pub(super) setting: String,
    pub(super) what: String,
    pub(super) remedy: String,
}

/// What this host has.
pub(super) struct ThisHost<'a> {
    /// The programs that a value of the configuration names.
    pub(super) programs: &'a dyn Fn(&str) -> Vec<Program>,
    /// Whether a file can be executed.
    pub(super) is_executable: &'a dyn Fn(&Path) -> bool,
    /// Why no agent answers.
    pub(super) no_agent: Option<&'a str>,
    /// The setting slurm.user of the agent.
    pub(super) slurm_user: &'a str,
}

/// A key of slurm.conf that names programs.
struct Key {
    name: &'static str,
    hook: Hook,
    /// What Slurm does when it cannot run one.
    failure: &'static str,
    /// What is lost without it.
    without: &'static str,
}

const KEYS: [Key; 4] = [
    Key {
        name: "Prolog",
        hook: Hook::Prolog,
        failure: "Slurm drains the node at its next job",
        without: "the agent knows of a job only when its processes hold chips",
    },
    Key {
        name: "Epilog",
        hook: Hook::Epilog,
        failure: "Slurm drains the node after its next job",
        without: "the agent does not know how a job ended, and looks for nothing that it left",
    },
    Key {
        name: "TaskProlog",
        hook: Hook::TaskProlog,
        failure: "every task of every job fails",
        without: "the agent knows the name of a job only from its processes",
    },
    Key {
        name: "TaskEpilog",
        hook: Hook::TaskEpilog,
        failure: "every task of every job fails",
        without: "nobody can ask for a report with TPUSCOPE_REPORT",
    },
];

/// All that is wrong, errors first.
pub(super) fn findings(configuration: &SlurmConfiguration, host: &ThisHost<'_>) -> Vec<Finding> {
    let mut found = Findings::default();
    for key in &KEYS {
        found.programs(key, configuration, host);
    }
    found.flags(configuration);
    found.time_limits(configuration);
    found.user(configuration, host);
    found.processes(configuration);
    if let Some(why) = host.no_agent {
        let what = format!("no agent answers on this host: {why}");
        // Without hooks nothing calls it.
        let severity = if found.has_call { Severity::Error } else { Severity::Warning };
        let remedy = "start it: `systemctl start tpuscope`; until then the hooks do nothing";
        found.add(severity, "agent", what, remedy);
    }
    for file in &configuration.includes {
        let what = format!("{file} is included and was not read");
        found.warning(
            "Include",
            what,
            "run the command where `scontrol show config` works, or give that file to --conf",
        );
    }
    found.all.sort_by_key(|finding| finding.severity == Severity::Warning);
    found.all
}

#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    /// Whether a hook calls tpuscope.
    has_call: bool,
}

impl Findings {
    fn add(&mut self, severity: Severity, setting: &str, what: String, remedy: &str) {
        let finding = Finding { severity, setting: setting.to_owned(), what, remedy: remedy.to_owned() };
        // One setting may be wrong for two hooks.
        if !self.all.contains(&finding) {
            self.all.push(finding);
        }
    }

    fn error(&mut self, setting: &str, what: String, remedy: &str) {
        self.add(Severity::Error, setting, what, remedy);
    }

    fn warning(&mut self, setting: &str, what: String, remedy: &str) {
        self.add(Severity::Warning, setting, what, remedy);
    }

    fn programs(&mut self, key: &Key, configuration: &SlurmConfiguration, host: &ThisHost<'_>) {
        let values = configuration.programs(&key.name.to_ascii_lowercase());
        let programs: Vec<Program> = values.iter().flat_map(|value| (host.programs)(value)).collect();
        for program in &programs {
            self.state(key, program);
        }
        let calls = programs
            .iter()
            .filter_map(|program| Some((&program.path, program::call(&program.text, key.hook)?)));
        let calls: Vec<_> = calls.collect();
        for (path, call) in &calls {
            self.call(key, path, call, host);
        }
        self.has_call |= !calls.is_empty();
        if calls.is_empty() {
            let what = match values.is_empty() {
                true => format!("{} is not set: {}", key.name, key.without),
                false => format!(
                    "no script of {} calls `tpuscope slurm {}`: {}",
                    key.name,
                    key.hook.name(),
                    key.without
                ),
            };
            let remedy =
                format!("copy {} of packaging/slurm to all nodes, and name it there", key.hook.name());
            self.warning(key.name, what, &remedy);
        }
    }

    fn state(&mut self, key: &Key, program: &Program) {
        let path = program.path.display();
        let Key { name, failure, .. } = key;
        match program.state {
            ProgramState::Sound => {}
            ProgramState::Missing => {
                let what = format!("{path} does not exist on this host: {failure}");
                self.error(name, what, "install it on every node before slurm.conf names it");
            }
            ProgramState::NotExecutable => {
                let what = format!("{path} is no file that can be executed: {failure}");
                self.error(name, what, "`chmod 755` it, and install it on every node in the same way");
            }
            ProgramState::NoInterpreter => {
                let what = format!("{path} does not begin with `#!`, so Slurm cannot run it: {failure}");
                self.error(name, what, "let its first line be `#!/bin/sh`");
            }
            ProgramState::Writable => {
                let what = format!("{path} can be changed by others than root, and Slurm runs it");
                self.error(name, what, "`chown root:root` and `chmod 755` it");
            }
        }
    }

    fn call(&mut self, key: &Key, path: &Path, call: &program::Call, host: &ThisHost<'_>) {
        let (script, name) = (path.display(), key.name);
        if call.by_exec {
            let what = format!("{script} runs tpuscope with exec: if it cannot be started, {}", key.failure);
            self.error(name, what, "leave out the exec, as the script in packaging/slurm does");
        } else if !call.is_harmless {
            let what =
                format!("{script} ends with the status of tpuscope: if that is not 0, {}", key.failure);
            self.error(name, what, "end the script with `exit 0`");
        }
        let program = PathBuf::from(&call.program);
        if program.is_relative() {
            let what = format!("{script} calls `{}` without its path, and hooks have no PATH", call.program);
            self.error(name, what, "write /usr/bin/tpuscope");
        } else if !(host.is_executable)(&program) {
            let what = format!(
                "{script} calls {}, which cannot be executed on this host: the hook does nothing",
                call.program
            );
            self.error(name, what, "install tpuscope there on every node with TPUs");
        }
        if !call.has_timeout {
            let what = format!("{script} calls tpuscope without `timeout`");
            self.warning(name, what, "use the line of the script in packaging/slurm");
        }
    }

    fn flags(&mut self, configuration: &SlurmConfiguration) {
        if configuration.programs("prolog").is_empty() {
            return;
        }
        let (flags, name) = (configuration.prolog_flags(), "PrologFlags");
        let has = |flag: &str| flags.contains(flag);
        if !["alloc", "contain", "x11"].into_iter().any(has) {
            let what =
                "without Alloc the prolog runs on a node only when the first step starts there".to_owned();
            self.warning(name, what, "set PrologFlags=Alloc, or Contain, which includes it");
        }
        if has("serial") {
            let what = "Serial lets the prologs and epilogs of a node wait for each other".to_owned();
            self.warning(name, what, "leave Serial out unless another hook needs it");
        }
        if has("nohold") {
            let what = "with NoHold a job may start before its prolog has registered it".to_owned();
            self.warning(name, what, "leave NoHold out; the agent then knows the job by its processes only");
        }
    }

    fn time_limits(&mut self, configuration: &SlurmConfiguration) {
        for (hook, key) in [("prolog", "prologtimeout"), ("epilog", "epilogtimeout")] {
            if configuration.programs(hook).is_empty() {
                continue;
            }
            match configuration.time_limit(key) {
                Some((set, seconds)) if seconds < LEAST_TIMEOUT => {
                    let what = format!("{seconds} s are too short: an agent that hangs would drain the node");
                    self.error(spelled(set), what, "set at least 8 s, better 30 s");
                }
                Some(_) => {}
                None => {
                    let what = "there is no limit: a hook of another program that hangs keeps a job waiting for ever";
                    self.warning("PrologEpilogTimeout", what.to_owned(), "set PrologEpilogTimeout=30");
                }
            }
        }
    }

    fn user(&mut self, configuration: &SlurmConfiguration, host: &ThisHost<'_>) {
        let user = configuration.user("slurmduser").unwrap_or("root");
        if user != "root" && user != host.slurm_user {
            let what =
                format!("slurmd runs as {user}, and the agent takes prologs and epilogs from root only");
            let remedy = format!("set slurm.user = \"{user}\" in the settings of the agent");
            self.error("SlurmdUser", what, &remedy);
        }
    }

    fn processes(&mut self, configuration: &SlurmConfiguration) {
        let tracked = configuration.value("proctracktype").unwrap_or("proctrack/cgroup");
        if tracked != "proctrack/cgroup" {
            let what = format!(
                "with {tracked} a process that leaves its group outlives its job, and keeps its chips"
            );
            self.warning("ProctrackType", what, "set ProctrackType=proctrack/cgroup");
        }
    }
}

/// A key as slurm.conf(5) spells it.
fn spelled(key: &str) -> &'static str {
    match key {
        "prologtimeout" => "PrologTimeout",
        "epilogtimeout" => "EpilogTimeout",
        _ => "PrologEpilogTimeout",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "ProctrackType=proctrack/cgroup\nPrologFlags=Contain\nPrologEpilogTimeout=30\n\
        Prolog=/s/prolog\nEpilog=/s/epilog\nTaskProlog=/s/task-prolog\nTaskEpilog=/s/task-epilog\n";

    /// The findings of a configuration whose scripts have these states and texts; others are sound and call tpuscope.
    fn of(text: &str, programs: &[(&str, ProgramState, &str)], no_agent: Option<&str>) -> Vec<Finding> {
        let look = |value: &str| {
            let hook = value.rsplit('/').next().unwrap_or_default();
            let sound = format!("timeout 3 /usr/bin/tpuscope slurm {hook}; exit 0");
            let (state, text) = programs
                .iter()
                .find(|(path, ..)| *path == value)
                .map_or((ProgramState::Sound, sound), |(_, state, text)| (*state, (*text).to_owned()));
            vec![Program { path: value.into(), state, text }]
        };
        let host = ThisHost {
            programs: &look,
            is_executable: &|path| path == Path::new("/usr/bin/tpuscope"),
            no_agent,
            slurm_user: "",
        };
        findings(&SlurmConfiguration::of_file(text), &host)
    }

    /// What one change of a sound set-up gives: severity, setting and a part of the text.
    fn one(found: &[Finding], severity: Severity, setting: &str, what: &str) {
        let matching = |finding: &&Finding| {
            finding.severity == severity && finding.setting == setting && finding.what.contains(what)
        };
        assert_eq!(found.iter().filter(matching).count(), 1, "{setting} {what}: {found:?}");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(!found[0].remedy.is_empty());
    }

    #[test]
    fn a_sound_set_up_has_no_findings() {
        assert_eq!(of(SOUND, &[], None), []);
    }

    #[test]
    fn each_fault_of_a_program_is_one_finding() {
        use ProgramState::{Missing, NoInterpreter, NotExecutable, Sound, Writable};
        let call = "timeout 3 /usr/bin/tpuscope slurm prolog; exit 0";
        for (state, text, severity, what) in [
            (NotExecutable, call, Severity::Error, "drains the node at its next job"),
            (Writable, call, Severity::Error, "can be changed by others than root"),
            (
                NoInterpreter,
                call,
                Severity::Error,
                "does not begin with `#!`, so Slurm cannot run it: Slurm drains",
            ),
            (Sound, "timeout 3 /usr/bin/tpuscope slurm prolog", Severity::Error, "ends with the status"),
            (Sound, "timeout 3 tpuscope slurm prolog; exit 0", Severity::Error, "hooks have no PATH"),
            (Sound, "exec timeout 3 /usr/bin/tpuscope slurm prolog", Severity::Error, "with exec"),
            (Sound, "/usr/bin/tpuscope slurm prolog; exit 0", Severity::Warning, "without `timeout`"),
            (Sound, "timeout 3 /opt/tpuscope slurm prolog; exit 0", Severity::Error, "cannot be executed"),
            (Sound, "exit 0", Severity::Warning, "no script of Prolog calls `tpuscope slurm prolog`"),
        ] {
            one(&of(SOUND, &[("/s/prolog", state, text)], None), severity, "Prolog", what);
        }
        let found = of(SOUND, &[("/s/task-prolog", Missing, "")], None);
        assert!(found[0].what.contains("every task of every job fails"), "{found:?}");
        assert_eq!((found[0].severity, found.len()), (Severity::Error, 2));
    }

    #[test]
    fn each_fault_of_the_configuration_is_one_finding() {
        let with = |from: &str, to: &str| of(&SOUND.replace(from, to), &[], None);
        for (from, to, severity, setting, what) in [
            ("Contain", "DeferBatch", Severity::Warning, "PrologFlags", "without Alloc"),
            ("Contain", "Contain,Serial", Severity::Warning, "PrologFlags", "wait for each other"),
            ("Contain", "Alloc,NoHold", Severity::Warning, "PrologFlags", "may start before"),
            ("PrologEpilogTimeout=30", "", Severity::Warning, "PrologEpilogTimeout", "no limit"),
            (
                "PrologEpilogTimeout=30",
                "PrologEpilogTimeout=30 EpilogTimeout=5",
                Severity::Error,
                "EpilogTimeout",
                "5 s",
            ),
            ("TaskProlog=/s/task-prolog", "", Severity::Warning, "TaskProlog", "is not set"),
            (
                "ProctrackType=proctrack/cgroup",
                "ProctrackType=proctrack/linuxproc",
                Severity::Warning,
                "ProctrackType",
                "outlives",
            ),
            ("PrologFlags", "SlurmdUser=slurm\nPrologFlags", Severity::Error, "SlurmdUser", "runs as slurm"),
            ("PrologFlags", "Include more.conf\nPrologFlags", Severity::Warning, "Include", "more.conf"),
        ] {
            one(&with(from, to), severity, setting, what);
        }
        let short = with("PrologEpilogTimeout=30", "PrologEpilogTimeout=7");
        one(&short, Severity::Error, "PrologEpilogTimeout", "7 s are too short");
        one(&of(SOUND, &[], Some("no socket")), Severity::Error, "agent", "no socket");
        let without_hooks = of("ClusterName=lab", &[], Some("no socket"));
        let agent = without_hooks.iter().find(|finding| finding.setting == "agent").unwrap();
        assert_eq!(agent.severity, Severity::Warning, "nothing calls it");
    }
}
