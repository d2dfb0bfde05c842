//! `tpuscope slurm check`: tells an administrator what is wrong with the set-up of the hooks on this host.
//!
//! The only command of `slurm` that asks Slurm. Must never change or run anything of it.

mod configuration;
mod findings;
mod program;

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use ::host::regular_file;
use cluster::hosts::slurm_configuration;
use configuration::SlurmConfiguration;
use findings::{Finding, Severity, ThisHost, findings};
use proto::tpuscope::v1::{StatusRequest, host_client::HostClient};
use serde::Serialize;
use server::protocol;

use crate::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    output, remedies,
    settings::Config,
    settings_args::{self, within},
};

/// Limit of each thing that is asked or read.
const LIMIT: Duration = Duration::from_secs(5);
/// The most bytes of a configuration.
const MOST_BYTES: u64 = 4 << 20;
/// Where the configuration is if scontrol does not answer and SLURM_CONF is not set.
const FILES: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// Arguments of `slurm check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Read this slurm.conf [default: what `scontrol show config` says; else SLURM_CONF, /etc/slurm/slurm.conf]
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Print JSON (docs/schemas/slurm-check.schema.json)
    #[arg(long)]
    json: bool,
}

/// The result for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    /// Where the configuration is from.
    source: String,
    findings: Vec<Finding>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (source, configuration) = configuration(args.conf.as_deref())?;
    let no_agent = answers(&args.agent).err().map(|failure| failure.what);
    let settings = settings_args::Args::of_environment().of_agent();
    let slurm_user = settings.map_or_else(|_| Config::default(), |loaded| loaded.config).slurm.user;
    // The scripts may be on a file system that does not answer.
    let findings = within(LIMIT, Path::new("the scripts of the hooks"), move || {
        let host = ThisHost {
            programs: &program::programs,
            is_executable: &is_executable,
            no_agent: no_agent.as_deref(),
            slurm_user: &slurm_user,
        };
        findings(&configuration, &host)
    })?;
    let report = Report { source, findings };
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&text(&report))?;
    }
    let wrong = report.findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if wrong { Exit::Config } else { Exit::Ok })
}

fn text(report: &Report) -> String {
    let mut text = format!("configuration: {}\n", output::one_line(&report.source));
    if report.findings.is_empty() {
        text.push_str("nothing is wrong with the hooks on this host\n");
    }
    for Finding { severity, setting, what, remedy } in &report.findings {
        let severity = match severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let (what, remedy) = (output::one_line(what), output::one_line(remedy));
        text.push_str(&format!("{severity}: {}: {what}\n  {remedy}\n", output::one_line(setting)));
    }
    text
}

/// The configuration, and where it is from.
fn configuration(named: Option<&Path>) -> Result<(String, SlurmConfiguration), Failure> {
    if let Some(file) = named {
        return of_file(file);
    }
    let shown = client::block_on(async { Ok(slurm_configuration(LIMIT).await) })?;
    let error = match shown {
        Ok(text) => return Ok(("scontrol show config".to_owned(), SlurmConfiguration::of_scontrol(&text))),
        Err(error) => error,
    };
    let variable = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let candidates = variable.into_iter().chain(FILES.map(PathBuf::from));
    let found = candidates.into_iter().find(|file| file.exists());
    found.map_or_else(|| Err(remedies::no_slurm_configuration(&error)), |file| of_file(&file))
}

fn of_file(file: &Path) -> Result<(String, SlurmConfiguration), Failure> {
    let path = file.to_owned();
    let read = within(LIMIT, file, move || {
        let mut text = Vec::new();
        regular_file::open(&path)?.take(MOST_BYTES).read_to_end(&mut text).map(|_| text)
    })?;
    let configuration = read.and_then(|bytes| {
        let configuration = SlurmConfiguration::of_file(&String::from_utf8_lossy(&bytes));
        if bytes.contains(&0) || configuration.is_empty() {
            let what = "it is no slurm.conf: it is no text that sets a key as in `ClusterName=lab`";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(configuration)
    });
    let configuration = configuration.map_err(|error| remedies::unread_slurm_configuration(file, &error))?;
    Ok((file.display().to_string(), configuration))
}

/// Whether an agent answers: one that hangs still takes connections.
fn answers(agent: &client::SocketArgs) -> Result<(), Failure> {
    client::block_on(async {
        let mut host = HostClient::new(agent.connect().await?);
        client::within(LIMIT, host.status(StatusRequest { peer: Some(protocol::own()) })).await?;
        Ok(())
    })
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
