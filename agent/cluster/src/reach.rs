//! How a host is reached: the command that runs `tpuscope dial-stdio` there, word by word.
//!
//! Must never go through a shell, and must never let a host's name become an option.

mod template;

use std::fmt;

use crate::hosts::{HostAddress, SlurmJob};

pub use template::{CommandTemplate, TemplateError};

/// What runs over there.
const FAR_COMMAND: [&str; 2] = ["tpuscope", "dial-stdio"];

/// Each keeps a user's own settings from breaking the connection: a terminal, another command, no standard input. Without
/// BatchMode a password prompt would wait for ever; without ServerAlive a cut cable would not be noticed.
const SSH_OPTIONS: [&str; 11] = [
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    // Older versions do not know them.
    "IgnoreUnknown=SessionType,StdinNull,ForkAfterAuthentication",
    "SessionType=default",
    "StdinNull=no",
    "ForkAfterAuthentication=no",
];

/// Output is passed on at once (`--unbuffered`), and the step takes nothing of the job.
const SRUN_OPTIONS: [&str; 13] = [
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--unbuffered",
    "--input=all",
    "--output=all",
    "--export=ALL",
    "--chdir=/",
    "--mem=0",
    "--gres=none",
    "--cpus-per-task=1",
    "--immediate=10",
    "--quiet",
];

/// Variables that would change what srun prints or asks for.
const SRUN_UNSET: [&str; 4] = ["SLURM_LABELIO", "SLURM_PROLOG", "SLURM_CONSTRAINT", "SLURM_DEBUG"];

/// How hosts are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// OpenSSH, with the user's own settings and keys.
    Ssh,
    /// A step in a Slurm job of the user.
    Srun(SlurmJob),
    /// `kubectl exec`; hosts are pods.
    Kubectl {
        /// The container in each pod; none: the pod's default.
        container: Option<String>,
    },
    /// A command of the user's own.
    Template(CommandTemplate),
}

/// A host that cannot be reached in this way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} has a port, and {reach} reaches hosts by name alone")]
pub struct PortWithCommand {
    /// The host.
    pub host: HostAddress,
    /// The program that takes no port.
    pub reach: String,
}

/// A command without a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachCommand {
    /// The program, looked up in PATH if it has no slash.
    pub program: String,
    /// Its arguments.
    pub words: Vec<String>,
    /// Variables that it does not get.
    pub unset: &'static [&'static str],
}

impl Reach {
    /// The command for a host.
    ///
    /// # Errors
    /// If the host has a port.
    pub fn command(&self, host: &HostAddress) -> Result<ReachCommand, PortWithCommand> {
        if host.port().is_some() {
            return Err(PortWithCommand { host: host.clone(), reach: self.to_string() });
        }
        let name = host.name();
        let (program, words) = match self {
            Self::Ssh => {
                let options = SSH_OPTIONS.iter().flat_map(|option| ["-o", option]);
                ("ssh", owned(["-T"].into_iter().chain(options).chain(["--", name]).chain(FAR_COMMAND)))
            }
            Self::Srun(job) => {
                let node = format!("--nodelist={name}");
                let rest = owned([node.as_str()].into_iter().chain(SRUN_OPTIONS).chain(FAR_COMMAND));
                ("srun", [job.srun_options(), rest].concat())
            }
            Self::Kubectl { container } => {
                let container = container.iter().flat_map(|name| ["-c", name]);
                let exec = ["exec", "-i", "-q", name].into_iter().chain(container);
                ("kubectl", owned(exec.chain(["--"]).chain(FAR_COMMAND)))
            }
            Self::Template(template) => (template.program(), template.words(name)),
        };
        let unset = if matches!(self, Self::Srun(_)) { &SRUN_UNSET[..] } else { &[] };
        Ok(ReachCommand { program: program.to_owned(), words, unset })
    }
}

fn owned<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    words.map(str::to_owned).collect()
}

/// What a program calls itself in its messages.
fn file_name(program: &str) -> &str {
    program.rsplit('/').find(|name| !name.is_empty()).unwrap_or(program)
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ssh => "ssh",
            Self::Srun(_) => "srun",
            Self::Kubectl { .. } => "kubectl",
            Self::Template(template) => file_name(template.program()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(reach: &Reach, host: &str) -> String {
        let command = reach.command(&host.parse().unwrap()).unwrap();
        [vec![command.program], command.words].concat().join(" ")
    }

    #[test]
    fn the_commands_have_the_options_that_were_measured() {
        assert_eq!(
            line(&Reach::Ssh, "me@tpu-1"),
            "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
             -o ClearAllForwardings=yes -o PermitLocalCommand=no -o RemoteCommand=none \
             -o IgnoreUnknown=SessionType,StdinNull,ForkAfterAuthentication -o SessionType=default -o StdinNull=no \
             -o ForkAfterAuthentication=no -- me@tpu-1 tpuscope dial-stdio"
        );
        let srun = Reach::Srun("7".parse().unwrap());
        assert_eq!(
            line(&srun, "n1"),
            "srun --jobid 7 --nodelist=n1 --overlap --nodes=1 --ntasks=1 --unbuffered --input=all --output=all \
             --export=ALL --chdir=/ --mem=0 --gres=none --cpus-per-task=1 --immediate=10 --quiet tpuscope dial-stdio"
        );
        let component = line(&Reach::Srun("7+1".parse().unwrap()), "n1");
        assert!(
            component.starts_with("srun --jobid 7 --het-group=1 --nodelist=n1 --overlap "),
            "{component}"
        );
        assert!(srun.command(&"n1".parse().unwrap()).unwrap().unset.contains(&"SLURM_LABELIO"));
        let kubectl = |container: Option<&str>| Reach::Kubectl { container: container.map(str::to_owned) };
        assert_eq!(
            line(&kubectl(Some("c")), "pod-0"),
            "kubectl exec -i -q pod-0 -c c -- tpuscope dial-stdio"
        );
        assert_eq!(line(&kubectl(None), "pod-0"), "kubectl exec -i -q pod-0 -- tpuscope dial-stdio");
    }

    #[test]
    fn a_port_goes_with_no_command() {
        let template = Reach::Template("/usr/bin/ssh -p 22 {host} x".parse().unwrap());
        assert_eq!(line(&template, "b"), "/usr/bin/ssh -p 22 b x");
        let refused = template.command(&"b:22".parse().unwrap()).unwrap_err();
        assert_eq!(refused.reach, "ssh");
        let refused = Reach::Ssh.command(&"b:22".parse().unwrap()).unwrap_err();
        assert_eq!(refused.to_string(), "b:22 has a port, and ssh reaches hosts by name alone");
    }
}
