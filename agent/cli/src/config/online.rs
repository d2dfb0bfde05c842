//! `tpuscope config check --online`: whether the destinations of the settings can be used.
//!
//! The running agent does it, because its user, credentials and network rules count. Without an agent this process does.

use std::{path::Path, time::Duration};

use proto::tpuscope::v1::{CheckDestinationsRequest, DestinationCheck, uploads_client::UploadsClient};
use server::{protocol, upload_messages};
use store::uploads::check_destinations;

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
    let (by, checked) = match asked {
        Ok(reply) => ("the running agent", reply.into_inner().destinations),
        Err(failure) if failure.exit == Exit::NoAgent => {
            output::print_error(&format!(
                "{}; this command checks the destinations as its own user, without the network rules of the unit",
                failure.what
            ));
            ("this command", here(file)?)
        }
        Err(failure) => return Err(failure),
    };
    if json {
        output::json(&serde_json::json!({ "checked_by": by, "destinations": checked }))?;
    } else if checked.is_empty() {
        output::print("the settings have no destinations\n")?;
    } else {
        checked.iter().try_for_each(|check| output::print(&text(check)))?;
    }
    let failed = checked.iter().find(|check| !check.write_error.is_empty() || !check.read_error.is_empty());
    failed.map_or(Ok(Exit::Ok), |check| Err(remedies::destination(check)))
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
    let mut lines = format!("{} ({}), as {}\n", check.name, one_line(&check.url), one_line(&check.identity));
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
