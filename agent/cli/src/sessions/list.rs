//! `tpuscope sessions list`: the sessions of the agent, of a folder, or of a bucket.

use indicatif::HumanBytes;
use model::time::Timestamp;
use proto::tpuscope::v1::{ListSessionsRequest, SessionSummary, sessions_client::SessionsClient};
use server::{protocol, session_messages};
use xprof::session::{self, Fault, FaultKind, MANIFEST_FILE, Manifest, Session, SessionContext};

use super::{bucket_files, context, list_hosts, location::Location, show_tables::cut};
use crate::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    hosts::{HostsArgs, WHICH},
    output::{self, TextTable},
    remedies,
    uploads::row,
};

/// The widest job in a table that is not wide, in characters.
const JOB_WIDTH: usize = 24;

/// Arguments of `sessions list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path or gs:// URL of a logdir whose sessions are listed [default: the sessions of the agent]
    #[arg(value_name = "LOGDIR", value_parser = Location::parser(), conflicts_with = WHICH)]
    location: Option<Location>,
    #[command(flatten)]
    agent: client::SocketArgs,
    /// Further columns: wide adds the recorded length, tracer levels (host/device/python), options and versions
    #[arg(short, long, value_name = "FORMAT", conflicts_with_all = ["json", WHICH])]
    output: Option<Format>,
    /// Print only the newest sessions
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print JSON (docs/schemas/sessions-list.schema.json; of other hosts sessions-list-hosts.schema.json)
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

/// The formats of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// With further columns
    Wide,
}

pub(super) fn run(args: &Args) -> CommandResult {
    if args.hosts.is_given() {
        if args.agent.is_given() {
            return Err(remedies::socket_of_another_host());
        }
        return list_hosts::run(&args.hosts, args.limit.unwrap_or(0), args.json);
    }
    let sessions = match &args.location {
        None => of_agent(args)?,
        Some(location) => elsewhere(location, args.limit)?,
    };
    if args.json {
        output::json(&serde_json::json!({ "sessions": sessions.iter().map(value).collect::<Vec<_>>() }))?;
    } else if sessions.is_empty() {
        output::print("no sessions that you may read; `tpuscope capture` records one\n")?;
    } else {
        output::print(&table(&sessions, args.output))?;
    }
    Ok(Exit::Ok)
}

fn of_agent(args: &Args) -> Result<Vec<SessionSummary>, Failure> {
    let reply = client::block_on(async {
        let mut sessions = SessionsClient::new(args.agent.connect().await?);
        let request = ListSessionsRequest { peer: Some(protocol::own()), limit: args.limit.unwrap_or(0) };
        client::within(client::CALL_TIMEOUT, sessions.list(request)).await
    })?;
    Ok(reply.into_inner().sessions)
}

/// The sessions in a folder or a bucket, oldest first. Of more than `limit` the newest in a folder, in a bucket the last by
/// name.
fn elsewhere(location: &Location, limit: Option<u32>) -> Result<Vec<SessionSummary>, Failure> {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let found = match location {
        Location::Path(path) => session::resolve(path).map_err(|error| remedies::no_session(&error))?,
        Location::Url(url) => bucket_files::list(url, limit)?,
        Location::Name(name) => return Err(remedies::listed_name(name)),
    };
    let mut sessions: Vec<SessionSummary> = found.iter().map(summary).collect();
    sessions.sort_by(|a, b| (a.created_unix_ns, &a.id).cmp(&(b.created_unix_ns, &b.id)));
    sessions.drain(..sessions.len().saturating_sub(limit));
    Ok(sessions)
}

/// A session that is not the agent's, as far as its files say.
fn summary(session: &Session) -> SessionSummary {
    let manifest = session.manifest.as_ref();
    let created = manifest.and_then(Manifest::created_at);
    let unmade = (manifest.is_none() && !session.is_unfinished())
        .then(|| "it has no manifest: whether parts are missing is unknown".to_owned());
    let faults = session.faults.iter().map(ToString::to_string);
    SessionSummary {
        id: session.name.clone(),
        path: session.folder.display().to_string(),
        created_unix_ns: created.and_then(|created| i64::try_from(created.as_nanosecond()).ok()),
        bytes: session.parts.iter().map(|part| part.size).sum(),
        parts: u32::try_from(session.parts.len()).unwrap_or(u32::MAX),
        partial: !session.faults.is_empty(),
        warnings: unmade
            .into_iter()
            .chain(faults)
            .chain(manifest.iter().flat_map(|m| m.all_warnings()))
            .collect(),
        context: manifest.map(|manifest| session_messages::context(SessionContext::of(manifest))),
        ..SessionSummary::default()
    }
}

/// Whether its manifest has not come yet to the destination of its upload.
fn is_unfinished(session: &SessionSummary) -> bool {
    let fault = Fault { file: MANIFEST_FILE.to_owned(), kind: FaultKind::Unfinished };
    session.warnings.contains(&fault.to_string())
}

/// Whether it is in the agent's store.
fn is_of_agent(session: &SessionSummary) -> bool {
    !session.upload.is_empty()
}

/// As JSON.
pub(crate) fn value(session: &SessionSummary) -> serde_json::Value {
    let context = context_of(session);
    let (certain, possible) = context.total_losses();
    serde_json::json!({
        "session": session.id,
        "folder": session.path,
        "created": session.created_unix_ns.map(Timestamp),
        "size": session.bytes,
        "parts": session.parts,
        "complete": !session.partial,
        "warnings": session.warnings,
        "losses": { "certain": certain, "possible": possible },
        "context": context,
        "pinned": is_of_agent(session).then_some(session.pinned),
        "upload": is_of_agent(session).then_some(&session.upload),
        "uploads": row::rows(&session.uploads),
    })
}

fn context_of(session: &SessionSummary) -> SessionContext {
    session.context.clone().map(session_messages::context_of).unwrap_or_default()
}

/// What is there, what it lost, and how many warnings are about something else.
fn state(session: &SessionSummary, context: &SessionContext) -> String {
    let (certain, possible) = context.total_losses();
    let whole = match session.partial {
        true if is_unfinished(session) => return "unfinished".to_owned(),
        true => "partial",
        false => "complete",
    };
    let lost = match (certain, possible) {
        (0, 0) => "",
        (0, _) => ", events may be lost",
        _ => ", events lost",
    };
    // Each loss has one warning.
    let others = (session.warnings.len() as u64).saturating_sub(certain.saturating_add(possible));
    let warnings = match others {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        count => format!(", {count} warnings"),
    };
    let pinned = if session.pinned { ", pinned" } else { "" };
    format!("{whole}{lost}{warnings}{pinned}")
}

/// The columns of the table that is not wide.
pub(super) const HEADS: [&str; 9] =
    ["SESSION", "CREATED (UTC)", "JOB", "USER", "DURATION", "PARTS", "SIZE", "STATE", "WHERE"];

/// Its cells for a session.
pub(super) fn cells(session: &SessionSummary) -> [String; 9] {
    let context = context_of(session);
    let [job, user, duration] = context::cells(&context);
    let created = session.created_unix_ns.map(|ns| Timestamp(ns - ns.rem_euclid(1_000_000_000)));
    let created = created.map_or_else(|| "unknown".to_owned(), |created| created.to_string());
    let (parts, size) = (session.parts.to_string(), HumanBytes(session.bytes).to_string());
    let (state, places) = (state(session, &context), row::places(&session.uploads));
    [session.id.clone(), created, job, user, duration, parts, size, state, places]
}

fn table(sessions: &[SessionSummary], format: Option<Format>) -> String {
    let mut table = match format {
        None => TextTable::new(HEADS),
        Some(Format::Wide) => {
            let [a, b, c, d, e, f, g, h, i] = HEADS;
            TextTable::new([a, b, c, d, e, "RECORDED", "LEVELS", "OPTIONS", "VERSIONS", f, g, h, i])
        }
    };
    for session in sessions {
        let cells = cells(session);
        match format {
            None => table.row(narrow(cells)),
            Some(Format::Wide) => {
                let [a, b, c, d, e, f, g, h, i] = cells;
                let [recorded, levels, options, versions] = context::wide_cells(&context_of(session));
                table.row([a, b, c, d, e, recorded, levels, options, versions, f, g, h, i]);
            }
        }
    }
    table.text()
}

/// The table that is not wide.
pub(crate) fn narrow_table(sessions: &[SessionSummary]) -> String {
    table(sessions, None)
}

/// The cells of a table that is not wide.
pub(super) fn narrow(mut cells: [String; 9]) -> [String; 9] {
    cells[2] = cut(&cells[2], JOB_WIDTH);
    cells
}

#[cfg(test)]
mod tests {
    use xprof::session::PartLosses;

    use super::*;

    #[test]
    fn a_loss_is_called_so() {
        let session = |warnings: usize| SessionSummary {
            warnings: vec!["w".to_owned(); warnings],
            ..SessionSummary::default()
        };
        let context = |losses: &[(u64, u64)]| SessionContext {
            losses: losses
                .iter()
                .map(|&(certain, possible)| PartLosses { file: "h.xplane.pb".to_owned(), certain, possible })
                .collect(),
            ..SessionContext::default()
        };
        assert_eq!(state(&session(0), &context(&[])), "complete");
        assert_eq!(state(&session(2), &context(&[(1, 0), (0, 1)])), "complete, events lost");
        assert_eq!(state(&session(3), &context(&[(0, 1)])), "complete, events may be lost, 2 warnings");
        let partial = SessionSummary { partial: true, ..session(2) };
        assert_eq!(state(&partial, &context(&[(1, 0)])), "partial, events lost, 1 warning");
        let listed = SessionSummary {
            context: Some(session_messages::context(context(&[(1, 0), (2, 3)]))),
            ..session(6)
        };
        assert_eq!(value(&listed)["losses"], serde_json::json!({ "certain": 3, "possible": 3 }));
        assert!(table(&[listed], None).contains("complete, events lost"));
    }

    #[test]
    fn a_long_job_is_cut_where_the_table_is_not_wide() {
        let job = "ns/".to_owned() + &"x".repeat(40);
        let context = SessionContext {
            jobs: vec![serde_json::from_value(serde_json::json!({"kind": "jobset", "id": job})).unwrap()],
            ..SessionContext::default()
        };
        let session = SessionSummary {
            id: "s".into(),
            created_unix_ns: Some(1_800_000_000_000_000_001),
            context: Some(session_messages::context(context)),
            ..SessionSummary::default()
        };
        let session = SessionSummary { pinned: true, ..session };
        let sessions = [session, SessionSummary { id: "t".into(), ..SessionSummary::default() }];
        let narrow = table(&sessions, None);
        assert!(narrow.contains("  jobset ns/xxxxx…xxxxxxxx  ") && !narrow.contains("VERSIONS"), "{narrow}");
        assert!(narrow.contains("CREATED (UTC)") && narrow.contains("2027-01-15T08:00:00Z  "), "{narrow}");
        assert!(narrow.contains("complete, pinned  here\n"), "{narrow}");
        assert!(narrow.contains("t        unknown               -"), "{narrow}");
        let wide = table(&sessions, Some(Format::Wide));
        assert!(wide.contains(&format!("jobset {job}")) && wide.contains("VERSIONS"), "{wide}");
    }
}
