//! `tpuscope certs issue`: certificates of agents, operators and viewers.

use std::path::{Path, PathBuf};

use cluster::identity::{
    authority::{self, CertificateSubject, CertifiedHost, Issued, PersonName, ValidDays},
    role::Role,
};
use model::host_list;

use crate::{
    CommandResult,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    remedies,
};

/// Arguments of `certs issue`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the authority that `certs init` made
    #[arg(value_name = "DIR", default_value = ".")]
    authority: PathBuf,
    #[command(flatten)]
    subject: SubjectArgs,
    /// Further DNS name or IP address of the one host of --agent; repeatable
    #[arg(long, value_name = "NAME")]
    also: Vec<CertifiedHost>,
    /// Days until the certificates expire, at most as long as the authority is valid
    #[arg(long, value_name = "N", default_value = "365", value_parser = super::days())]
    days: u16,
    /// Folder in which each certificate has a folder with its name [default: that of the authority]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Whose certificates they are.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct SubjectArgs {
    /// For the agents of these hosts, one certificate each: DNS names, IP addresses, or lists such as 'tpu-[001-016]'
    #[arg(long, value_name = "HOST", num_args = 1..)]
    agent: Vec<String>,
    /// For a person or program with the rights of root on every host
    #[arg(long, value_name = "NAME")]
    operator: Option<PersonName>,
    /// For a person or program that may read measurements
    #[arg(long, value_name = "NAME")]
    viewer: Option<PersonName>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (out, valid) = (args.out.as_deref().unwrap_or(&args.authority), ValidDays(args.days));
    let subjects = args.subjects()?;
    let folders: Vec<PathBuf> = subjects.iter().map(|subject| out.join(subject.folder_name())).collect();
    for folder in &folders {
        authority::check_free(folder).map_err(|error| remedies::authority(&error))?;
    }
    let mut issued: Vec<Issued> = Vec::with_capacity(subjects.len());
    for (subject, folder) in subjects.iter().zip(&folders) {
        match authority::issue(&args.authority, folder, subject, valid, super::now()) {
            Ok(one) => issued.push(one),
            Err(error) => {
                // All or none: a second attempt finds none in its way.
                issued.iter().for_each(authority::take_back);
                return Err(remedies::authority(&error));
            }
        }
    }
    output::print(&issued.iter().map(line).collect::<String>())?;
    Ok(Exit::Ok)
}

impl Args {
    fn subjects(&self) -> Result<Vec<CertificateSubject>, Failure> {
        let SubjectArgs { agent, operator, viewer } = &self.subject;
        let clients = [(Role::Operator, operator), (Role::Viewer, viewer)];
        let client = clients
            .into_iter()
            .find_map(|(role, name)| Some(CertificateSubject::Client(role, name.clone()?)));
        let mut hosts = Vec::new();
        for list in agent {
            for name in host_list::expand(list).map_err(|error| remedies::certified_list(&error))? {
                let host = name.parse::<CertifiedHost>().map_err(|error| remedies::certified_name(&error))?;
                if hosts.contains(&host) {
                    return Err(remedies::certified_twice(&host));
                }
                hosts.push(host);
            }
        }
        if hosts.len() != 1 && !self.also.is_empty() {
            return Err(remedies::name_without_one_host());
        }
        if let Some(client) = client {
            return Ok(vec![client]);
        }
        let names = |host| [vec![host], self.also.clone()].concat();
        Ok(hosts.into_iter().map(|host| CertificateSubject::Agent(names(host))).collect())
    }
}

/// What was issued, and where.
fn line(issued: &Issued) -> String {
    let Issued { folder, facts } = issued;
    let role = facts.role.clone().ok().flatten().map_or("-", Role::as_str);
    let names = match &facts.names()[..] {
        [] => facts.subject.clone(),
        names => names.join(", "),
    };
    let text = format!(
        "{}: {role} {names}, valid from {} to {}",
        Path::new(folder).display(),
        facts.not_before,
        facts.not_after
    );
    one_line(&text) + "\n"
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct OneCommand {
        #[command(flatten)]
        args: Args,
    }

    fn folders(words: &str) -> Result<Vec<String>, String> {
        let words = ["issue"].into_iter().chain(words.split_whitespace());
        let parsed = OneCommand::try_parse_from(words).map_err(|error| error.to_string())?;
        let subjects = parsed.args.subjects().map_err(|failure| failure.what)?;
        Ok(subjects.iter().map(CertificateSubject::folder_name).collect())
    }

    #[test]
    fn each_host_has_a_certificate_of_its_own() {
        assert_eq!(folders("ca --agent tpu-[1-2] 10.0.0.7").unwrap(), ["tpu-1", "tpu-2", "10.0.0.7"]);
        assert_eq!(folders("--agent tpu-1 --also 10.0.0.7 --also tpu-1.example").unwrap(), ["tpu-1"]);
        assert_eq!(folders("--operator alice").unwrap(), ["alice"]);
        assert_eq!(folders("ca --viewer dash").unwrap(), ["dash"]);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for wrong in [
            "",
            "--agent",
            "--operator alice --viewer bob",
            "--operator alice --also x",
            "--operator a/b",
            "--agent a b --also x",
            "--agent a tpu-[1-2] a",
            "--agent tpu-[1-",
            "--agent a:4393",
            "--agent a --days 0",
            "--agent a --days 8000",
        ] {
            assert!(folders(wrong).is_err(), "{wrong}");
        }
    }
}
