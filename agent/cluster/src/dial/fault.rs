//! Why a dial failed: what TLS, ssh, srun, kubectl and the far end say, in one line, and what kind of fault that is.

use std::{io, time::Duration};

use model::untrusted::{MESSAGE, clean};
use nix::errno::Errno;

use super::far_command::FarStatus;

/// A dial that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DialError {
    /// What kind of fault it is.
    pub fault: DialFault,
    /// One line, with the name of the program that says it.
    pub reason: String,
}

/// The kinds of faults; each has its own remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DialFault {
    /// The program that reaches hosts is not here.
    NotStarted,
    /// This user may not execute the program that reaches hosts, or its file is no program of this machine.
    NotExecutable,
    /// A host has a port, which the program does not take.
    Port,
    /// There is no tpuscope over there.
    NoTpuscope,
    /// The tpuscope over there has no `dial-stdio`.
    OldTpuscope,
    /// No agent runs over there.
    NoAgent,
    /// The user over there may not use the agent's socket.
    ClosedSocket,
    /// The key of the host is unknown, or another one than before.
    HostKey,
    /// The host lets the user not in.
    Denied,
    /// The cluster does not let the user run commands in its pods.
    ClusterDenied,
    /// The host drops connections because there are too many.
    Overloaded,
    /// The name has no address, or there is no such pod.
    UnknownName,
    /// The host does not answer, or refuses connections.
    Unreachable,
    /// The API server of the cluster does not answer, or refuses connections.
    ClusterUnreachable,
    /// Slurm's controller does not answer.
    SlurmUnreachable,
    /// The pod has no container of this name.
    UnknownContainer,
    /// The Slurm job belongs to another user.
    ForeignJob,
    /// The Slurm job has ended, or does not run yet.
    JobNotRunning,
    /// The host is no part of the Slurm job.
    NotInJob,
    /// No answer within the limit.
    Late,
    /// Output without the magic line.
    NoMagic,
    /// The `dial-stdio` over there is of another version.
    OtherVersion,
    /// The far side is a terminal, or sends back what it is sent.
    Echo,
    /// The connection ended before the answer.
    Lost,
    /// The agent ended the connection because it was stopped.
    Stopped,
    /// No address of the host accepts a connection to the port.
    NoConnection,
    /// What listens on the port accepted the connection and did not answer within the limit.
    Silent,
    /// What listens on the port does not speak TLS 1.3 with HTTP/2.
    NotTls,
    /// The certificate of the host has expired, or is not valid yet.
    PeerValidity,
    /// No authority that is trusted here signed the certificate of the host.
    PeerAuthority,
    /// The certificate of the host is that of an authority itself.
    PeerOfAuthority,
    /// The certificate of the host is for other names.
    PeerName,
    /// The certificate of the host has another URI than the one that was asked for.
    PeerId,
    /// The certificate of the host has another role than `agent`.
    PeerRole,
    /// The host finds this certificate expired, or not valid yet.
    OwnValidity,
    /// The host does not trust the authority of this certificate.
    OwnAuthority,
    /// The host gives this certificate no role.
    OwnRole,
    /// This address had too many failed handshakes there.
    TooManyFailures,
    /// The handshake failed for another reason.
    Handshake,
    /// Anything else.
    Other,
}

/// Texts of ssh, srun, kubectl, shells and tpuscope itself. The first line that has all words of an entry decides; entries
/// in this order.
const KNOWN: [(&[&str], DialFault); 33] = [
    (&["tpuscope: no agent"], DialFault::NoAgent),
    (&["tpuscope: ", "does not answer"], DialFault::NoAgent),
    (&["tpuscope: no permission to connect"], DialFault::ClosedSocket),
    (&["tpuscope: unrecognized subcommand"], DialFault::OldTpuscope),
    (&["tpuscope: the agent closed the connection"], DialFault::Lost),
    (&["tpuscope", "command not found"], DialFault::NoTpuscope),
    (&["tpuscope", "not found"], DialFault::NoTpuscope),
    (&["tpuscope", "No such file or directory"], DialFault::NoTpuscope),
    (&["Host key verification failed"], DialFault::HostKey),
    (&["REMOTE HOST IDENTIFICATION HAS CHANGED"], DialFault::HostKey),
    (&["Permission denied ("], DialFault::Denied),
    (&["kex_exchange_identification"], DialFault::Overloaded),
    (&["Could not resolve hostname"], DialFault::UnknownName),
    (&["Error from server (NotFound)"], DialFault::UnknownName),
    (&["Error from server (Forbidden)"], DialFault::ClusterDenied),
    (&["error: You must be logged in to the server"], DialFault::ClusterDenied),
    (&["Unable to connect to the server"], DialFault::ClusterUnreachable),
    (&["The connection to the server", "was refused"], DialFault::ClusterUnreachable),
    (&["container", "is not valid for pod"], DialFault::UnknownContainer),
    (&["container not found ("], DialFault::UnknownContainer),
    (&["Unable to contact slurm controller"], DialFault::SlurmUnreachable),
    (&["Socket timed out on send/recv operation"], DialFault::SlurmUnreachable),
    (&["Connection refused"], DialFault::Unreachable),
    (&["No route to host"], DialFault::Unreachable),
    (&["Network is unreachable"], DialFault::Unreachable),
    (&["Connection timed out"], DialFault::Unreachable),
    (&["Access/permission denied"], DialFault::ForeignJob),
    (&["has expired"], DialFault::JobNotRunning),
    (&["Invalid job id specified"], DialFault::JobNotRunning),
    (&["Job is pending execution"], DialFault::JobNotRunning),
    (&["Requested node configuration is not available"], DialFault::NotInJob),
    (&["Invalid node name specified"], DialFault::NotInJob),
    (&["Node failure on"], DialFault::Lost),
];

impl DialError {
    fn new(fault: DialFault, reach: &str, what: &str) -> Self {
        // Programs begin their lines with their own names.
        let told = what.split([':', ' ']).next() == Some(reach);
        let reason = if told { what.to_owned() } else { format!("{reach}: {what}") };
        Self { fault, reason: clean(&reason, MESSAGE) }
    }

    /// The program cannot be started.
    pub(super) fn not_started(reach: &str, error: &io::Error) -> Self {
        let fault = match error.kind() {
            io::ErrorKind::NotFound => DialFault::NotStarted,
            io::ErrorKind::PermissionDenied => DialFault::NotExecutable,
            _ if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => DialFault::NotExecutable,
            // What the system lacks: descriptors, processes.
            _ => DialFault::Other,
        };
        Self { fault, reason: clean(&format!("cannot start {reach}: {error}"), MESSAGE) }
    }

    /// No magic line within `limit`.
    pub(super) fn late(reach: &str, limit: Duration, said: &str) -> Self {
        let said = last_line(said).map(|line| format!("; it said: {line}")).unwrap_or_default();
        Self::new(DialFault::Late, reach, &format!("no answer within {limit:?}{said}"))
    }

    /// The magic line of another version.
    pub(super) fn other_version(reach: &str, there: &str) -> Self {
        let what = format!("the dial-stdio there has version {there}, and this command knows version 1");
        Self::new(DialFault::OtherVersion, reach, &what)
    }

    /// What we sent came back.
    pub(super) fn echo(reach: &str) -> Self {
        let what = "the far side sends back what it is sent: a terminal that echoes, or another program than dial-stdio";
        Self::new(DialFault::Echo, reach, what)
    }

    /// The magic line as a terminal changes it.
    pub(super) fn terminal(reach: &str) -> Self {
        let what = "the far side is a terminal, which changes what dial-stdio sends and receives";
        Self::new(DialFault::Echo, reach, what)
    }

    /// Only other output.
    pub(super) fn no_magic(reach: &str, output: &str) -> Self {
        let first = output.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let first = clean(first, 80);
        Self::new(
            DialFault::NoMagic,
            reach,
            &format!("the output is not that of tpuscope dial-stdio: {first}"),
        )
    }

    /// The command ended: from its standard error, or from what it wrote instead of the magic line (nologin).
    pub(super) fn of_command(reach: &str, status: FarStatus, said: &str, output: &str) -> Self {
        let known = KNOWN.iter().find_map(|(words, fault)| {
            let line = said.lines().find(|line| words.iter().all(|word| line.contains(word)))?;
            Some((*fault, line.trim()))
        });
        if let Some((fault, line)) = known {
            return Self::new(fault, reach, line);
        }
        let status = match status {
            FarStatus::Code(code) => format!("ended with exit code {code}"),
            FarStatus::Signal => "was ended by a signal".to_owned(),
            FarStatus::Killed => "did not end and was killed".to_owned(),
        };
        match cancelled_line(said).or_else(|| last_line(said)).or_else(|| last_line(output)) {
            Some(line) => Self::new(DialFault::Other, reach, line),
            None => Self::new(DialFault::Other, reach, &format!("it {status}, and said nothing")),
        }
    }
}

/// What Slurm says of a step that it ends, and why: the lines after it and their order differ from run to run.
fn cancelled_line(said: &str) -> Option<&str> {
    said.lines().map(str::trim).find(|line| line.starts_with("slurmstepd") && line.contains(" CANCELLED AT "))
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(reach: &str, code: i32, said: &str) -> (DialFault, String) {
        let error = DialError::of_command(reach, FarStatus::Code(code), said, "");
        (error.fault, error.reason)
    }

    #[test]
    fn what_ssh_says_is_known() {
        let cases = [
            (127, "bash: line 1: tpuscope: command not found", DialFault::NoTpuscope),
            (127, "sh: 1: tpuscope: not found", DialFault::NoTpuscope),
            (255, "No ED25519 host key is known for h.\nHost key verification failed.", DialFault::HostKey),
            (255, "me@h: Permission denied (publickey,password).", DialFault::Denied),
            (255, "ssh: connect to host h port 22: Connection refused", DialFault::Unreachable),
            (255, "ssh: connect to host h port 22: No route to host", DialFault::Unreachable),
            (255, "ssh: Could not resolve hostname h: Name or service not known", DialFault::UnknownName),
            (255, "Connection timed out during banner exchange", DialFault::Unreachable),
            (255, "kex_exchange_identification: read: Connection reset by peer", DialFault::Overloaded),
            (
                2,
                "tpuscope: unrecognized subcommand 'dial-stdio'\n  `tpuscope --help` shows the usage",
                DialFault::OldTpuscope,
            ),
            (6, "tpuscope: no agent: there is no socket /run/x\n  start the agent", DialFault::NoAgent),
            (4, "tpuscope: no permission to connect to /run/x\n  run as root", DialFault::ClosedSocket),
            (255, "client_loop: send disconnect: Broken pipe", DialFault::Other),
        ];
        for (code, said, fault) in cases {
            assert_eq!(of("ssh", code, said).0, fault, "{said}");
        }
        assert_eq!(of("ssh", 255, cases[4].1).1, cases[4].1);
        assert_eq!(of("ssh", 6, cases[10].1).1, "ssh: tpuscope: no agent: there is no socket /run/x");
        assert_eq!(of("ssh", 255, "").1, "ssh: it ended with exit code 255, and said nothing");
    }

    #[test]
    fn what_srun_and_kubectl_say_is_known() {
        let cases = [
            ("srun: error: Unable to create step for job 7: Access/permission denied", DialFault::ForeignJob),
            ("srun: error: Slurm job 7 has expired", DialFault::JobNotRunning),
            (
                "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
                DialFault::JobNotRunning,
            ),
            (
                "srun: error: Unable to create step for job 7: Job is pending execution",
                DialFault::JobNotRunning,
            ),
            (
                "srun: error: Unable to create step: Requested node configuration is not available",
                DialFault::NotInJob,
            ),
            (
                "slurmstepd: error: execve(): tpuscope: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2",
                DialFault::NoTpuscope,
            ),
            ("srun: error: Node failure on n1", DialFault::Lost),
            (
                "srun: error: Unable to create step for job 7: Invalid node name specified",
                DialFault::NotInJob,
            ),
            (
                "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)",
                DialFault::SlurmUnreachable,
            ),
            (
                "srun: error: Unable to create step for job 7: Socket timed out on send/recv operation",
                DialFault::SlurmUnreachable,
            ),
        ];
        for (said, fault) in cases {
            let (found, reason) = of("srun", 1, said);
            assert_eq!(found, fault, "{said}");
            assert!(reason.starts_with("srun: "), "{reason}");
        }
        let ends = [
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "slurmstepd-n0: error: *** STEP 7.3 ON n0 CANCELLED AT 2026-11-30T22:44:05 ***",
            "srun: error: n0: task 0: Terminated",
        ];
        for said in [ends.join("\n"), [ends[1], ends[2], ends[0]].join("\n"), [ends[2], ends[1]].join("\n")] {
            assert_eq!(of("srun", 143, &said).1, format!("srun: {}", ends[1]));
        }
        let pod = "Error from server (NotFound): pods \"p\" not found";
        assert_eq!(of("kubectl", 1, pod), (DialFault::UnknownName, format!("kubectl: {pod}")));
        for (said, fault) in [
            (
                "Error from server (Forbidden): pods \"p\" is forbidden: User \"u\" cannot create resource \"pods/exec\"",
                DialFault::ClusterDenied,
            ),
            (
                "error: You must be logged in to the server (the server has asked for the client to provide credentials)",
                DialFault::ClusterDenied,
            ),
            (
                "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
                DialFault::ClusterUnreachable,
            ),
            (
                "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
                DialFault::ClusterUnreachable,
            ),
            (
                "Error from server (BadRequest): container c is not valid for pod p",
                DialFault::UnknownContainer,
            ),
            ("error: unable to upgrade connection: container not found (\"c\")", DialFault::UnknownContainer),
            (
                "OCI runtime exec failed: exec failed: unable to start container process: exec: \"tpuscope\": executable file not found in $PATH: unknown",
                DialFault::NoTpuscope,
            ),
            (
                "error: cannot exec into a container in a completed pod; current phase is Succeeded",
                DialFault::Other,
            ),
        ] {
            assert_eq!(of("kubectl", 1, said).0, fault, "{said}");
        }
    }

    #[test]
    fn a_program_that_cannot_be_started_is_not_here_or_not_executable() {
        let of = |code: Errno| DialError::not_started("x", &io::Error::from_raw_os_error(code as i32)).fault;
        let found = [Errno::ENOENT, Errno::EACCES, Errno::ENOEXEC, Errno::EMFILE].map(of);
        let (away, denied) = (DialFault::NotStarted, DialFault::NotExecutable);
        assert_eq!(found, [away, denied, denied, DialFault::Other]);
    }

    #[test]
    fn output_is_shown_where_nothing_else_is_said() {
        let nologin =
            DialError::of_command("ssh", FarStatus::Code(1), "", "This account is not available.\n");
        assert_eq!(nologin.reason, "ssh: This account is not available.");
        let garbage = DialError::no_magic("ssh", "\n\u{1b}[1mHello\n");
        assert_eq!(garbage.reason, "ssh: the output is not that of tpuscope dial-stdio: \u{fffd}[1mHello");
        let late = DialError::late("ssh", Duration::from_secs(2), "one\nEnter passphrase: \n");
        assert_eq!(late.reason, "ssh: no answer within 2s; it said: Enter passphrase:");
        let killed = DialError::of_command("x", FarStatus::Killed, "", "");
        assert_eq!(killed.reason, "x: it did not end and was killed, and said nothing");
    }
}
