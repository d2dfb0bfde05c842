//! The sessions in the database, as statements on one connection.
//!
//! What cannot be decoded is left out: only an administrator may use a session whose owners cannot be read.

use std::path::Path;

use model::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::{Deserialize, Serialize};
use xprof::session::{SessionContext, SessionName};

use crate::{
    SessionOwners, StoredSession, UploadState,
    retention::Candidate,
    stored_session::{SessionPriority, StoredPart},
};

const COLUMNS: &str = "name, created_ns, owners, id, bytes, partial, summary, pinned, upload, \
                       (SELECT count(*) FROM parts WHERE session = name)";

/// What a list shows and no statement asks for.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Summary {
    warnings: Vec<String>,
    context: SessionContext,
}

/// What decides about the rights to a session.
#[derive(Debug)]
pub struct SessionKey {
    /// Its name.
    pub name: SessionName,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whose it is.
    pub owners: SessionOwners,
}

/// Count and bytes of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StoreTotals {
    pub(crate) sessions: u64,
    pub(crate) bytes: u64,
}

/// The number of a session that was found in its folder, in place of those of [`UploadState`].
const UNDECIDED: i64 = 3;

fn upload_number(upload: UploadState) -> i64 {
    match upload {
        UploadState::Local => 0,
        UploadState::Pending => 1,
        UploadState::Uploaded => 2,
    }
}

fn upload_of(number: i64) -> UploadState {
    match number {
        1 => UploadState::Pending,
        2 => UploadState::Uploaded,
        _ => UploadState::Local,
    }
}

/// A priority as the database has it.
pub(crate) fn priority_number(priority: SessionPriority) -> i64 {
    match priority {
        SessionPriority::Periodic => 0,
        SessionPriority::Asked => 1,
        SessionPriority::Triggered => 2,
    }
}

/// The priority of a number in the database.
pub(crate) fn priority_numbered(number: i64) -> SessionPriority {
    match number {
        0 => SessionPriority::Periodic,
        2 => SessionPriority::Triggered,
        _ => SessionPriority::Asked,
    }
}

/// Adds a session or replaces what is known of it. Pin and upload stay as they are, unless it is another session of
/// the same name. `found`: nobody said where the session goes, so that it is still to be decided.
pub(crate) fn insert(
    connection: &Connection,
    session: &StoredSession,
    parts: &[StoredPart],
    priority: SessionPriority,
    found: bool,
) -> rusqlite::Result<()> {
    let summary = Summary { warnings: session.warnings.clone(), context: session.context.clone() };
    let json = |text: serde_json::Result<String>| {
        text.map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
    };
    let name = session.name.as_str();
    connection.execute(
        "INSERT INTO sessions
             (name, id, created_ns, bytes, partial, owners, summary, priority, upload, uploaded_ns)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
             (SELECT iif(count(*) = 0, ?9, iif(min(state = 1), 2, 1)) FROM uploads
                  WHERE session = ?1 AND manifest_id IS ?2),
             (SELECT max(done_ns) FROM uploads WHERE session = ?1 AND manifest_id IS ?2))
         ON CONFLICT (name) DO UPDATE SET
             pinned = iif(id IS excluded.id AND created_ns IS excluded.created_ns, pinned, 0),
             upload = iif(id IS excluded.id AND created_ns IS excluded.created_ns AND upload <> 3,
                 upload, excluded.upload),
             id = excluded.id, created_ns = excluded.created_ns, bytes = excluded.bytes,
             partial = excluded.partial, owners = excluded.owners, summary = excluded.summary",
        (
            name,
            session.id.as_ref().map(|id| id.as_str()),
            session.created.map(|created| created.0),
            session.bytes,
            session.partial,
            json(serde_json::to_string(&session.owners.uids))?,
            json(serde_json::to_string(&summary))?,
            priority_number(priority),
            if found { UNDECIDED } else { 0 },
        ),
    )?;
    connection.execute("DELETE FROM parts WHERE session = ?1", [name])?;
    let mut statement =
        connection.prepare("INSERT INTO parts (session, file, size, sha256) VALUES (?1, ?2, ?3, ?4)")?;
    for part in parts {
        statement.execute((name, &part.file, part.size, &part.sha256))?;
    }
    Ok(())
}

/// The sessions that were found in their folders and of which it is not decided where they go.
pub(crate) fn undecided(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT name FROM sessions WHERE upload = ?1 ORDER BY created_ns")?;
    statement.query_map([UNDECIDED], |row| row.get(0))?.collect()
}

/// Notes that a session that was found stays here, unless it has an upload by now.
pub(crate) fn stays_here(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE sessions SET upload = 0 WHERE name = ?1 AND upload = ?2";
    connection.execute(sql, (name, UNDECIDED)).map(drop)
}

/// Forgets a session.
pub(crate) fn remove(connection: &Connection, name: &SessionName) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM sessions WHERE name = ?1", [name.as_str()]).map(drop)
}

/// Whether retention keeps the session. False if there is no such session.
pub(crate) fn set_pinned(
    connection: &Connection,
    name: &SessionName,
    pinned: bool,
) -> rusqlite::Result<bool> {
    let sql = "UPDATE sessions SET pinned = ?2 WHERE name = ?1";
    connection.execute(sql, (name.as_str(), pinned)).map(|changed| changed > 0)
}

/// Whether the session lies elsewhere too, since `at`. False if there is no such session.
pub(crate) fn set_upload(
    connection: &Connection,
    name: &SessionName,
    upload: UploadState,
    at: Timestamp,
) -> rusqlite::Result<bool> {
    let uploaded = (upload == UploadState::Uploaded).then_some(at.0);
    let sql = "UPDATE sessions SET upload = ?2, uploaded_ns = ?3 WHERE name = ?1";
    connection.execute(sql, (name.as_str(), upload_number(upload), uploaded)).map(|changed| changed > 0)
}

/// One session; `sessions` is the folder of all.
pub(crate) fn get(
    connection: &Connection,
    sessions: &Path,
    name: &SessionName,
) -> rusqlite::Result<Option<StoredSession>> {
    let sql = format!("SELECT {COLUMNS} FROM sessions WHERE name = ?1");
    let found = connection
        .query_row(&sql, [name.as_str()], |row| key(row)?.map(|key| session(row, key, sessions)).transpose());
    Ok(found.optional()?.flatten())
}

/// The newest `limit` sessions for which `permitted` holds, oldest first; those of unknown age are the oldest.
pub(crate) fn list(
    connection: &Connection,
    sessions: &Path,
    limit: usize,
    permitted: impl Fn(&SessionKey) -> bool,
) -> rusqlite::Result<Vec<StoredSession>> {
    let sql = format!("SELECT {COLUMNS} FROM sessions ORDER BY created_ns DESC, name DESC");
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut listed = Vec::new();
    while listed.len() < limit {
        let Some(row) = rows.next()? else { break };
        if let Some(key) = key(row)?.filter(&permitted) {
            listed.push(session(row, key, sessions)?);
        }
    }
    listed.reverse();
    Ok(listed)
}

/// The names of all sessions.
pub(crate) fn names(connection: &Connection) -> rusqlite::Result<Vec<SessionName>> {
    let mut statement = connection.prepare("SELECT name FROM sessions ORDER BY name")?;
    let names = statement.query_map([], |row| Ok(row.get_ref(0)?.as_str()?.parse().ok()))?;
    names.filter_map(Result::transpose).collect()
}

/// The parts of a session, by name.
pub(crate) fn parts(connection: &Connection, name: &SessionName) -> rusqlite::Result<Vec<StoredPart>> {
    let mut statement =
        connection.prepare("SELECT file, size, sha256 FROM parts WHERE session = ?1 ORDER BY file")?;
    let part = |row: &Row<'_>| Ok(StoredPart { file: row.get(0)?, size: row.get(1)?, sha256: row.get(2)? });
    statement.query_map([name.as_str()], part)?.collect()
}

/// Count and bytes of all sessions.
pub(crate) fn totals(connection: &Connection) -> rusqlite::Result<StoreTotals> {
    let totals = |row: &Row<'_>| Ok(StoreTotals { sessions: row.get(0)?, bytes: row.get(1)? });
    connection.query_row("SELECT sessions, bytes FROM totals", [], totals)
}

/// A list of sessions that may be removed, as an index has them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RemovalOrder {
    /// Those that were uploaded, oldest first.
    Uploaded,
    /// The others, the least precious first, then the oldest.
    Unsent,
    /// Those that do not wait for an upload, oldest first.
    Oldest,
}

/// Calls `each` with the sessions that may be removed, in this order, until it returns false.
pub(crate) fn candidates(
    connection: &Connection,
    order: RemovalOrder,
    mut each: impl FnMut(Candidate) -> bool,
) -> rusqlite::Result<()> {
    let (wanted, order) = match order {
        RemovalOrder::Uploaded => ("upload = 2", "created_ns, name"),
        RemovalOrder::Unsent => ("upload <> 2", "priority, created_ns, name"),
        RemovalOrder::Oldest => ("upload <> 1 AND created_ns IS NOT NULL", "created_ns, name"),
    };
    let sql = format!(
        "SELECT name, created_ns, bytes, upload FROM sessions WHERE pinned = 0 AND {wanted} ORDER BY {order}"
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let Ok(name) = row.get_ref(0)?.as_str()?.parse() else { continue };
        let created = row.get::<_, Option<i64>>(1)?.map(Timestamp);
        let candidate = Candidate { name, created, bytes: row.get(2)?, upload: upload_of(row.get(3)?) };
        if !each(candidate) {
            break;
        }
    }
    Ok(())
}

fn key(row: &Row<'_>) -> rusqlite::Result<Option<SessionKey>> {
    let Ok(name) = row.get_ref(0)?.as_str()?.parse() else { return Ok(None) };
    let created = row.get::<_, Option<i64>>(1)?.map(Timestamp);
    let uids: Vec<u32> = serde_json::from_str(row.get_ref(2)?.as_str()?).unwrap_or_default();
    Ok(Some(SessionKey { name, created, owners: SessionOwners::of(uids) }))
}

fn session(row: &Row<'_>, key: SessionKey, sessions: &Path) -> rusqlite::Result<StoredSession> {
    let summary: Summary = serde_json::from_str(row.get_ref(6)?.as_str()?).unwrap_or_default();
    let id: Option<String> = row.get(3)?;
    let parts: u64 = row.get(9)?;
    Ok(StoredSession {
        folder: sessions.join(key.name.as_str()),
        name: key.name,
        id: id.and_then(|id| id.parse().ok()),
        owners: key.owners,
        created: key.created,
        bytes: row.get(4)?,
        parts: usize::try_from(parts).unwrap_or(usize::MAX),
        partial: row.get(5)?,
        warnings: summary.warnings,
        context: summary.context,
        pinned: row.get(7)?,
        upload: upload_of(row.get(8)?),
    })
}
