//! Other hosts on the command line: which ones, how they are reached, and the same question to all of them.

mod ask;
mod missing;
pub(crate) mod report;
mod way;

use std::{path::PathBuf, time};

use cluster::{
    dial::ExpectedPeer,
    hosts::{GceWorkers, HeadlessService, HostAddress, HostList, HostProvider, HostsFile, SlurmJob},
    reach::{CommandTemplate, Reach},
};
use model::unit::Duration;

use super::{failure::Failure, remedies};

pub(crate) use ask::{HostAnswer, NoHostAnswer, OpenHost, ask_all, ask_all_open, dialer, each_agent_once};
use way::Way;

/// The heading of these arguments in the help.
pub(crate) const HEADING: &str = "Other hosts";

/// The variable that names the folder with the certificate of this side.
pub(crate) const TLS_VARIABLE: &str = "TPUSCOPE_TLS_DIR";

/// The group of the arguments that name hosts.
pub(crate) const WHICH: &str = "which_hosts";

/// The arguments of all commands that can ask other hosts.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(crate) struct HostsArgs {
    /// Ask these hosts, such as 'tpu-[001-016],b'
    #[arg(long, value_name = "LIST", group = WHICH, help_heading = HEADING)]
    hosts: Option<String>,
    /// Ask the hosts of a file: a list on each line, # begins a comment; - is standard input
    #[arg(long, value_name = "FILE", group = WHICH, help_heading = HEADING)]
    hosts_file: Option<PathBuf>,
    /// Ask the hosts of this Slurm job
    #[arg(long, value_name = "ID", group = WHICH, help_heading = HEADING)]
    slurm_job: Option<SlurmJob>,
    /// Ask the workers of the TPU slice that this machine is a part of
    #[arg(long, group = WHICH, help_heading = HEADING)]
    gce: bool,
    /// Ask the pods of this headless service of Kubernetes, by the addresses of its name
    #[arg(long, value_name = "SERVICE", group = WHICH, help_heading = HEADING)]
    k8s: Option<HeadlessService>,
    /// Reach the hosts over mutual TLS, HOST or HOST:PORT, with cert.pem, key.pem and ca.pem of this folder
    #[arg(long, value_name = "DIR", env = TLS_VARIABLE, help_heading = HEADING)]
    tls_dir: Option<PathBuf>,
    /// With --tls-dir: the URI that the certificate of each host has, instead of the host's name and the role agent
    #[arg(long, value_name = "URI", requires = WHICH, conflicts_with_all = ["via", "via_command"], help_heading = HEADING)]
    peer_id: Option<String>,
    /// Program that runs `tpuscope dial-stdio` on the hosts; srun needs --slurm-job
    #[arg(long, value_name = "PROGRAM", requires = WHICH, help_heading = HEADING)]
    via: Option<Via>,
    /// The whole command instead, such as 'ssh -J bastion {host} tpuscope dial-stdio'; no shell runs it
    #[arg(long, value_name = "COMMAND", requires = WHICH, conflicts_with = "via", help_heading = HEADING)]
    via_command: Option<CommandTemplate>,
    /// Container in the pods of --via kubectl
    #[arg(long, value_name = "NAME", requires = "via", help_heading = HEADING)]
    container: Option<String>,
    /// Time limit for reaching a host and its first answer, and again for each further one
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = some_time, help_heading = HEADING)]
    host_timeout: Duration,
}

/// A duration that is not zero.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<Duration>().map_err(|error| error.to_string())?;
    if duration.get().is_zero() { Err("expected more than 0 s".to_owned()) } else { Ok(duration) }
}

/// The programs that reach hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Via {
    /// OpenSSH, with your settings and keys
    Ssh,
    /// A step in your Slurm job
    Srun,
    /// kubectl exec; hosts are pods
    Kubectl,
}

impl HostsArgs {
    /// Whether other hosts are meant.
    pub(crate) fn is_given(&self) -> bool {
        self.provider().is_some()
    }

    /// The time limit for reaching a host and its first answer, and again for each further one.
    pub(crate) fn host_timeout(&self) -> time::Duration {
        self.host_timeout.into()
    }

    fn provider(&self) -> Option<Box<dyn HostProvider + Send + Sync>> {
        Some(match self {
            Self { hosts: Some(list), .. } => Box::new(HostList(list.clone())),
            Self { hosts_file: Some(path), .. } => Box::new(HostsFile(path.clone())),
            Self { slurm_job: Some(job), .. } => Box::new(job.clone()),
            Self { k8s: Some(service), .. } => Box::new(service.clone()),
            Self { gce: true, .. } => Box::new(GceWorkers::default()),
            _ => return None,
        })
    }

    /// The hosts.
    async fn list(&self) -> Result<Vec<HostAddress>, Failure> {
        match self.provider() {
            Some(provider) => provider.hosts().await.map_err(|error| remedies::hosts(&error)),
            None => Ok(Vec::new()),
        }
    }

    /// The way to the hosts.
    fn way(&self) -> Result<Way, Failure> {
        match (self.via, &self.via_command, &self.tls_dir) {
            (None, None, Some(folder)) => {
                let expected = self.peer_id.clone().map_or(ExpectedPeer::NamedAgent, ExpectedPeer::Id);
                Ok(Way::Certificates { folder: folder.clone(), expected })
            }
            (None, None, None) if self.peer_id.is_some() => Err(remedies::peer_id_without_tls()),
            _ => self.reach().map(Way::Command),
        }
    }

    fn reach(&self) -> Result<Reach, Failure> {
        if self.container.is_some() && self.via != Some(Via::Kubectl) {
            return Err(remedies::container_without_pod());
        }
        if let Some(name) = self.container.as_deref().filter(|name| !is_container(name)) {
            return Err(remedies::no_container_name(name));
        }
        if self.k8s.is_some() && self.via == Some(Via::Kubectl) {
            return Err(remedies::kubectl_wants_pods());
        }
        Ok(match (self.via, &self.via_command, &self.slurm_job) {
            (_, Some(template), _) => Reach::Template(template.clone()),
            (Some(Via::Ssh), ..) => Reach::Ssh,
            (Some(Via::Kubectl), ..) => Reach::Kubectl { container: self.container.clone() },
            (Some(Via::Srun), _, Some(job)) => Reach::Srun(job.clone()),
            (Some(Via::Srun), _, None) => return Err(remedies::srun_without_job()),
            (None, None, _) => return Err(remedies::no_way_to_hosts()),
        })
    }
}

/// Whether Kubernetes lets a container have this name.
fn is_container(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct OneCommand {
        #[command(flatten)]
        args: HostsArgs,
    }

    fn reach(words: &str) -> Result<Reach, String> {
        let words = ["x"].into_iter().chain(words.split_whitespace());
        let parsed = OneCommand::try_parse_from(words).map_err(|error| error.to_string())?;
        parsed.args.reach().map_err(|failure| failure.what)
    }

    #[test]
    fn a_way_to_the_hosts_is_chosen() {
        assert_eq!(reach("--hosts a --via ssh"), Ok(Reach::Ssh));
        assert_eq!(reach("--slurm-job 7 --via srun"), Ok(Reach::Srun("7".parse().unwrap())));
        let kubectl = Reach::Kubectl { container: Some("tpuscope".into()) };
        assert_eq!(reach("--gce --via kubectl --container tpuscope"), Ok(kubectl));
        assert!(matches!(reach("--hosts a --via-command x{host}"), Err(text) if text.contains("program")));
    }

    #[test]
    fn certificates_are_the_way_without_a_command() {
        let way = |words: &str| {
            let words = ["x"].into_iter().chain(words.split_whitespace());
            let parsed = OneCommand::try_parse_from(words).map_err(|error| error.to_string())?;
            parsed.args.way().map_err(|failure| failure.what)
        };
        let certificates = |expected| Way::Certificates { folder: PathBuf::from("/d"), expected };
        assert_eq!(way("--hosts a --tls-dir /d"), Ok(certificates(ExpectedPeer::NamedAgent)));
        let id = ExpectedPeer::Id("spiffe://x/y".to_owned());
        assert_eq!(way("--hosts a --tls-dir /d --peer-id spiffe://x/y"), Ok(certificates(id)));
        // The folder may come from the environment of a shell.
        assert_eq!(way("--hosts a --tls-dir /d --via ssh"), Ok(Way::Command(Reach::Ssh)));
        assert!(way("--hosts a --peer-id x").unwrap_err().starts_with("--peer-id needs --tls-dir"));
        assert!(way("--hosts a --via ssh --peer-id x").is_err());
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let refused = |words: &str| reach(words).unwrap_err();
        assert!(refused("--hosts a").starts_with("--tls-dir, --via or --via-command is needed"));
        assert!(refused("--hosts a --via srun").starts_with("--via srun needs --slurm-job"));
        assert!(refused("--hosts a --via ssh --container c").contains("--container"));
        assert!(refused("--k8s train --via kubectl").contains("--via kubectl"));
        assert!(refused("--hosts a --via kubectl --container=-c").contains("`-c`"));
        for clash in [
            "--hosts a --gce --via ssh",
            "--hosts a --hosts-file f --via ssh",
            "--k8s a --gce --via ssh",
            "--k8s a:80 --via ssh",
            "--via ssh",
            "--hosts a --via telnet",
            "--slurm-job x --via srun",
            "--hosts a --via ssh --host-timeout 0s",
        ] {
            let parsed = OneCommand::try_parse_from(["x"].into_iter().chain(clash.split_whitespace()));
            assert!(parsed.is_err(), "{clash}");
        }
    }
}
