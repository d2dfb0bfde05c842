//! `tpuscope certs show`: what the certificates of a file say.

use std::{fmt::Write, path::PathBuf};

use cluster::identity::{
    certificate::{CertificateFacts, Validity},
    files,
    role::Role,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    CommandResult,
    exit::Exit,
    output::{self, one_line},
    remedies,
};

/// Arguments of `certs show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File in PEM with one or more certificates
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON (docs/schemas/certs-show.schema.json)
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let found = files::certificates(&args.file).map_err(|error| remedies::identity(&error))?;
    let facts: Result<Vec<_>, _> =
        found.iter().map(|certificate| files::facts(certificate, &args.file)).collect();
    let (facts, now) = (facts.map_err(|error| remedies::identity(&error))?, super::now());
    if args.json {
        let certificates = facts.iter().map(|facts| CertificateJson::of(facts, now)).collect();
        output::json(&FileJson { certificates })?;
    } else {
        output::print(&text(&facts, now))?;
    }
    Ok(Exit::Ok)
}

fn text(all: &[CertificateFacts], now: Timestamp) -> String {
    let mut text = String::new();
    for facts in all {
        let role = match &facts.role {
            Ok(Some(role)) => role.to_string(),
            Ok(None) if facts.is_authority => "- (an authority)".to_owned(),
            Ok(None) => "-".to_owned(),
            Err(error) => format!("- ({error})"),
        };
        let lines = [
            ("subject", facts.subject.clone()),
            ("role", role),
            ("names", facts.names().join(", ")),
            ("issuer", facts.issuer.clone()),
            ("serial", facts.serial.clone()),
            ("valid", format!("{} to {}: {}", facts.not_before, facts.not_after, facts.validity_at(now))),
        ];
        let gap = if text.is_empty() { "" } else { "\n" };
        text.push_str(gap);
        for (name, value) in lines {
            let value = if value.is_empty() { output::NOTHING.to_owned() } else { one_line(&value) };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<8} {value}");
        }
    }
    text
}

#[derive(Debug, Serialize)]
struct FileJson<'a> {
    certificates: Vec<CertificateJson<'a>>,
}

#[derive(Debug, Serialize)]
struct CertificateJson<'a> {
    subject: &'a str,
    role: Option<&'static str>,
    authority: bool,
    dns_names: &'a [String],
    addresses: Vec<String>,
    uris: &'a [String],
    issuer: &'a str,
    serial: &'a str,
    not_before: String,
    not_after: String,
    valid: bool,
}

impl<'a> CertificateJson<'a> {
    fn of(facts: &'a CertificateFacts, now: Timestamp) -> Self {
        Self {
            subject: &facts.subject,
            role: facts.role.clone().ok().flatten().map(Role::as_str),
            authority: facts.is_authority,
            dns_names: &facts.dns_names,
            addresses: facts.addresses.iter().map(ToString::to_string).collect(),
            uris: &facts.uris,
            issuer: &facts.issuer,
            serial: &facts.serial,
            not_before: facts.not_before.to_string(),
            not_after: facts.not_after.to_string(),
            valid: matches!(facts.validity_at(now), Validity::Valid(_)),
        }
    }
}
