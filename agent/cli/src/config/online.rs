//! `tpuscope config check --online`: whether the destinations of the settings can be used.
//!
//! The running agent does it, because its user, credentials and network rules count. Without an agent this process does.

use std::{collections::BTreeSet, path::Path, time::Duration};

use proto::tpuscope::v1::{CheckDestinationsRequest, DestinationCheck, uploads_client::UploadsClient};
use server::{protocol, upload_messages};
use store::{destinations::Destinations, uploads::check_destinations};

use crate::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    remedies, settings_args,
};

/// The longest check of all destinations.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn check(file: Option<&Path>, agent: &client::SocketArgs, json: bool) -> CommandResult {
    let settings = settings_args::Args::of_file(file.map(Path::to_owned));
    let asked = client::block_on(async {
        let mut uploads = UploadsClient::new(agent.connect_as_in(&settings).await?);
        let request = CheckDestinationsRequest { peer: Some(protocol::own()), destination: String::new() };
        client::within(LIMIT, uploads.check(request)).await
    });
    let (by, checked, other) = match asked {
        Ok(reply) => {
            let checked = reply.into_inner().destinations;
            let config = settings_args::of_agent(file, &[]).map_err(remedies::first_of_all)?.config;
            let other = differing(&config.destination, &checked);
            ("the running agent", checked, other)
        }
        Err(failure) if failure.exit == Exit::NoAgent => {
            output::print_error(&format!(
                "{}; this command checks the destinations as its own user, without the network rules of the unit",
                failure.what
            ));
            ("this command", here(file)?, Vec::new())
        }
        Err(failure) => return Err(failure),
    };
    if json {
        output::json(
            &serde_json::json!({ "checked_by": by, "destinations": checked, "not_checked": other }),
        )?;
    } else if checked.is_empty() {
        output::print("the settings have no destinations\n")?;
    } else {
        checked.iter().try_for_each(|check| output::print(&text(check)))?;
    }
    if !other.is_empty() {
        return Err(remedies::other_destinations(&other));
    }
    remedies::destinations(&checked).map_or(Ok(Exit::Ok), Err)
}

/// The names of destinations that only one side has, or that have another URL there.
fn differing(settings: &Destinations, checked: &[DestinationCheck]) -> Vec<String> {
    let here = settings.0.iter().filter_map(|destination| {
        let url = destination.url.example().ok()?;
        Some((destination.name.to_string(), url.to_string()))
    });
    let here: BTreeSet<_> = here.collect();
    let there = checked.iter().map(|check| (check.name.clone(), check.url.clone()));
    let there: BTreeSet<_> = there.collect();
    let names: BTreeSet<_> = here.symmetric_difference(&there).map(|(name, _)| name.clone()).collect();
    names.into_iter().collect()
}

/// The check by this process.
fn here(file: Option<&Path>) -> Result<Vec<DestinationCheck>, Failure> {
    let config = settings_args::of_agent(file, &[]).map_err(remedies::first_of_all)?.config;
    let (wanted, idle) = (config.destination.0, config.upload.idle_timeout.get());
    let checked =
        client::block_on(async { check_destinations(wanted, idle).await.map_err(Failure::internal) });
    Ok(checked?.into_iter().map(upload_messages::check).collect())
}

fn text(check: &DestinationCheck) -> String {
    let result = |error: &str| if error.is_empty() { "ok".to_owned() } else { one_line(error) };
    // Where the credentials cannot be read it is not known.
    let identity = match check.identity.as_str() {
        "" => String::new(),
        identity => format!(", as {}", one_line(identity)),
    };
    let mut lines = format!("{} ({}){identity}\n", check.name, one_line(&check.url));
    lines.push_str(&format!("  write: {}\n", result(&check.write_error)));
    if check.write_error.is_empty() {
        lines.push_str(&format!("  read: {}\n", result(&check.read_error)));
        let delete = match check.delete_error.as_str() {
            "" => "ok".to_owned(),
            error => {
                format!("{}; uploads need no delete, and the object of this check stays", one_line(error))
            }
        };
        lines.push_str(&format!("  delete: {delete}\n"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_that_the_agent_did_not_check_are_named() {
        let settings = |all: &[(&str, &str)]| {
            let one = |(name, url): &(&str, &str)| serde_json::json!({ "name": name, "url": url });
            serde_json::from_value::<Destinations>(all.iter().map(one).collect()).unwrap()
        };
        let checked = |all: &[(&str, &str)]| {
            let one = |(name, url): &(&str, &str)| DestinationCheck {
                name: (*name).to_owned(),
                url: (*url).to_owned(),
                ..DestinationCheck::default()
            };
            all.iter().map(one).collect::<Vec<_>>()
        };
        let file = settings(&[("a", "gs://bucket/{job}"), ("b", "gs://bucket/b")]);
        let same = checked(&[("b", "gs://bucket/b"), ("a", "gs://bucket/_check")]);
        assert_eq!(differing(&file, &same), [""; 0]);
        let other = checked(&[("a", "gs://other/_check"), ("c", "gs://bucket/c")]);
        assert_eq!(differing(&file, &other), ["a", "b", "c"]);
    }

    #[test]
    fn an_identity_that_is_not_known_is_left_out() {
        let check = DestinationCheck {
            name: "a".to_owned(),
            url: "gs://b".to_owned(),
            ..DestinationCheck::default()
        };
        assert!(text(&check).starts_with("a (gs://b)\n"), "{}", text(&check));
        let known = DestinationCheck { identity: "a@b".to_owned(), ..check };
        assert!(text(&known).starts_with("a (gs://b), as a@b\n"), "{}", text(&known));
    }
}
