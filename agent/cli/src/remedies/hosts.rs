//! Other hosts: which ones are meant, and how they are reached.

use cluster::{
    dial::DialFault,
    hosts::{GceError, HostsError, QueryCommandError, ServiceError, SlurmError},
    reach::PortWithCommand,
};

use crate::{exit::Exit, failure::Failure};

/// The hosts are not known.
pub(crate) fn hosts(error: &HostsError) -> Failure {
    let (exit, remedy) = match error {
        HostsError::Line { reason, .. } => {
            let reason = hosts(reason);
            (reason.exit, reason.remedy)
        }
        HostsError::List(_) => {
            (Exit::Usage, "expected a list as Slurm writes it, such as 'tpu-[001-016],b'".to_owned())
        }
        HostsError::Address(_) => (Exit::Usage, String::new()),
        HostsError::Twice(_) | HostsError::TwiceInFile { .. } => {
            (Exit::Usage, "name each host once".to_owned())
        }
        HostsError::Nothing | HostsError::EmptyFile(_) => (Exit::Usage, "name at least one host".to_owned()),
        HostsError::File { error, .. } => {
            let exit = match error.kind() {
                std::io::ErrorKind::NotFound => Exit::NotFound,
                std::io::ErrorKind::PermissionDenied => Exit::Permission,
                _ => Exit::BadInput,
            };
            (exit, "name a text file with a host list on each line".to_owned())
        }
        HostsError::LargeFile { .. } => {
            (Exit::TooLarge, "name a text file with a host list on each line".to_owned())
        }
        HostsError::Slurm(error) => slurm(error),
        HostsError::Gce(error) => gce(error),
        HostsError::Service(ServiceError::Port(_)) => (Exit::Usage, String::new()),
        HostsError::Service(ServiceError::Resolve { .. }) => (
            Exit::NotFound,
            "the name of a headless service is known in its cluster alone: SERVICE.NAMESPACE.svc".to_owned(),
        ),
    };
    Failure::new(exit, error).remedy(remedy)
}

fn slurm(error: &SlurmError) -> (Exit, String) {
    let queue = "`squeue --me` lists your jobs";
    let (exit, remedy) = match error {
        SlurmError::Id(_) => (Exit::Usage, queue),
        SlurmError::Several(_) => {
            (Exit::Usage, "name one element of the array, such as 4711_3, or one component, such as 4711+1")
        }
        SlurmError::Ended(_) | SlurmError::NoHosts { .. } => (Exit::NotFound, queue),
        SlurmError::Command(QueryCommandError::Start { .. }) => {
            (Exit::NotFound, "run this where Slurm's commands are, or name the hosts with --hosts")
        }
        SlurmError::Command(QueryCommandError::Late { .. }) => {
            (Exit::Timeout, "`scontrol ping` shows whether slurmctld answers")
        }
        SlurmError::Command(QueryCommandError::Failed { said, .. }) if said.contains("Invalid job id") => {
            (Exit::NotFound, queue)
        }
        SlurmError::Command(QueryCommandError::Failed { .. }) => {
            (Exit::Unreachable, "`scontrol ping` shows whether slurmctld answers")
        }
        SlurmError::Command(QueryCommandError::Answer { .. }) => {
            (Exit::BadInput, "name the hosts with --hosts")
        }
    };
    (exit, remedy.to_owned())
}

fn gce(error: &GceError) -> (Exit, String) {
    let (exit, remedy) = match error {
        GceError::Server(_) => (Exit::Usage, "set GCE_METADATA_HOST to HOST or HOST:PORT, or unset it"),
        GceError::NoAnswer { .. } => {
            (Exit::Unreachable, "--gce works on a TPU VM of Google Cloud alone; name the hosts with --hosts")
        }
        GceError::NotMetadata(_) => {
            (Exit::BadInput, "--gce works on a TPU VM of Google Cloud alone; name the hosts with --hosts")
        }
        GceError::NoWorkers(_) => (Exit::NotFound, "name the hosts with --hosts"),
        GceError::Status { .. } => {
            (Exit::Unreachable, "run the command again, or name the hosts with --hosts")
        }
    };
    (exit, remedy.to_owned())
}

/// No program that reaches hosts is named.
pub(crate) fn no_way_to_hosts() -> Failure {
    Failure::new(Exit::Usage, "--tls-dir, --via or --via-command is needed: how the hosts are reached").remedy(
        "add --tls-dir DIR with certificates, or --via ssh, --via srun (with --slurm-job), --via kubectl, or --via-command \
         'COMMAND with {host}'",
    )
}

/// `--peer-id` without certificates.
pub(crate) fn peer_id_without_tls() -> Failure {
    Failure::new(Exit::Usage, "--peer-id needs --tls-dir: it is about the certificates of the hosts")
        .remedy("add --tls-dir DIR, or set TPUSCOPE_TLS_DIR")
}

/// `--via srun` without a job.
pub(crate) fn srun_without_job() -> Failure {
    Failure::new(Exit::Usage, "--via srun needs --slurm-job: srun would queue a new job")
        .remedy("name your job with --slurm-job; `squeue --me` lists your jobs")
}

/// Addresses of pods where kubectl wants their names.
pub(crate) fn kubectl_wants_pods() -> Failure {
    Failure::new(Exit::Usage, "--k8s gives the addresses of pods, and --via kubectl wants their names")
        .remedy("name the pods with --hosts, such as 'train-[0-3]'")
}

/// `--container` without `--via kubectl`.
pub(crate) fn container_without_pod() -> Failure {
    Failure::new(Exit::Usage, "--container is only for --via kubectl")
        .remedy("leave it out, or add --via kubectl")
}

/// No name of a container.
pub(crate) fn no_container_name(name: &str) -> Failure {
    Failure::new(Exit::Usage, format_args!("`{name}` is no name of a container"))
        .remedy("`kubectl get pod POD -o jsonpath='{.spec.containers[*].name}'` lists them")
}

/// A host has a port that the program does not take.
pub(crate) fn port_with_command(error: &PortWithCommand) -> Failure {
    Failure::new(Exit::Usage, error).remedy(
        "leave the port out; for ssh, a `Port` in ~/.ssh/config or --via-command 'ssh -p PORT …' sets it",
    )
}

/// `--socket` beside other hosts.
pub(crate) fn socket_of_another_host() -> Failure {
    Failure::new(Exit::Usage, "--socket is the agent of this host, and other hosts are asked")
        .remedy("name the socket over there: --via-command '… tpuscope dial-stdio --socket PATH'")
}

/// What to do about a host that cannot be reached; empty: the reason says it.
pub(crate) fn not_reached(fault: DialFault) -> &'static str {
    match fault {
        DialFault::NotStarted => "install it here, or reach the hosts in another way",
        DialFault::NotExecutable => {
            "let this user execute it (`chmod +x`; a script begins with a line such as #!/bin/sh), or reach the hosts in another way"
        }
        DialFault::Port => "leave the port out",
        DialFault::NoTpuscope => {
            "install tpuscope there in a folder of its PATH, or give its path in --via-command"
        }
        DialFault::OldTpuscope => "update tpuscope there",
        DialFault::NoAgent => {
            "start the agent there (`systemctl start tpuscope`), or give its socket in --via-command"
        }
        DialFault::ClosedSocket => "the user there needs to be root or in the group of the socket",
        DialFault::HostKey => "compare the key and add it to known_hosts: run `ssh HOST` once by hand",
        DialFault::Denied => {
            "let `ssh HOST true` work without a prompt first: load the key with ssh-add, or name it in ~/.ssh/config"
        }
        DialFault::ClusterDenied => {
            "`kubectl auth can-i create pods/exec` must say yes: log in to the cluster, or ask for that right"
        }
        DialFault::Overloaded => "ask fewer hosts at a time, or raise MaxStartups of sshd",
        DialFault::UnknownName => "check the name",
        DialFault::Unreachable => "check that the host is up and that sshd listens there",
        DialFault::ClusterUnreachable => {
            "let `kubectl get pods` work first: check the context and the network to its API server"
        }
        DialFault::SlurmUnreachable => {
            "`scontrol ping` shows whether slurmctld answers; then run the command again"
        }
        DialFault::UnknownContainer => {
            "name a container of the pod with --container: `kubectl get pod POD -o jsonpath='{.spec.containers[*].name}'` lists them"
        }
        DialFault::ForeignJob => "only the user of a job can run steps in it: use --via ssh",
        DialFault::JobNotRunning => "`squeue --me` lists your jobs",
        DialFault::NotInJob => "the job may have other hosts now: run the command again",
        DialFault::Late => "run the command by hand to see where it waits; --host-timeout gives more time",
        DialFault::NoMagic => {
            "run the command by hand: it must end with `tpuscope dial-stdio` and print nothing else"
        }
        DialFault::OtherVersion => "install the same version of tpuscope here and there",
        DialFault::Echo => {
            "let the command run `tpuscope dial-stdio` without a terminal: no `-t` of ssh or kubectl, no `--pty` of srun"
        }
        DialFault::Lost => {
            "run the command again; the log of the agent there has more: `journalctl -u tpuscope`"
        }
        DialFault::Stopped => "start the agent there (`systemctl start tpuscope`), and run the command again",
        DialFault::NoConnection => {
            "check that the agent there listens for other hosts (api.remote), and that a firewall or the IPAddressAllow= of its \
             unit lets this host in; HOST:PORT names another port than 4393"
        }
        DialFault::Silent => {
            "look whether the agent or the host there hangs, and whether the port is that of api.remote; --host-timeout gives more time"
        }
        DialFault::NotTls => "check that the port is that of api.remote there",
        DialFault::PeerValidity => {
            "issue a new certificate for that agent (`tpuscope certs issue --agent`), or correct the clock here"
        }
        DialFault::PeerAuthority => "add the authority of that agent's certificate to ca.pem in --tls-dir",
        DialFault::PeerOfAuthority => {
            "api.remote.cert there must be a certificate that `tpuscope certs issue --agent` made: that of an authority in ca.pem \
             of --tls-dir does not help"
        }
        DialFault::PeerName => {
            "use a name that the certificate has, or issue one with this name (`tpuscope certs issue --agent HOST --also NAME`); \
             --peer-id names the URI of a certificate without host names"
        }
        DialFault::PeerId => {
            "give --peer-id a URI of that agent's certificate (`tpuscope certs show FILE` there lists them), or leave --peer-id out \
             where the certificate has the host's name and the role agent"
        }
        DialFault::PeerRole => {
            "api.remote.cert there must be made with `tpuscope certs issue --agent`, or name its URI with --peer-id"
        }
        DialFault::OwnValidity => "issue a new certificate, or correct the clock there",
        DialFault::OwnAuthority => "add the authority of cert.pem in --tls-dir to api.remote.client_ca there",
        DialFault::OwnRole => {
            "use a certificate of `tpuscope certs issue --operator` or `--viewer`, or add its name to api.remote.allow there"
        }
        DialFault::TooManyFailures => {
            "the log of the agent there has why handshakes of this address failed: correct that, then wait a minute"
        }
        DialFault::Handshake => "the log of the agent there has more: `journalctl -u tpuscope`",
        DialFault::Other => "",
    }
}
