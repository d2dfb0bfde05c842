//! Attempts in the database, as statements on one connection.
//!
//! What cannot be decoded is left out.

use model::{
    job::{JobKey, JobKind},
    time::Timestamp,
};
use rusqlite::{Connection, Row};

use super::{AttemptQuery, StoredAttempt};

const COLUMNS: &str =
    "kind, cluster, uid, id, attempt, is_open, start_ns, last_event_ns, name, other_id, facts";

/// The attempts of the jobs of this kind, user and id, by number.
pub(super) fn of_job(connection: &Connection, key: &JobKey) -> rusqlite::Result<Vec<StoredAttempt>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM job_attempts WHERE kind = ?1 AND uid = ?2 AND id = ?3 ORDER BY cluster, attempt"
    );
    let mut statement = connection.prepare(&sql)?;
    let read = statement.query_map((key.kind.as_str(), key.uid, &key.id), decoded)?;
    read.filter_map(Result::transpose).collect()
}

/// The attempts that are wanted, the newest first. Where they are more than `limit`, those of the users who have most are left
/// out, the oldest first.
pub(super) fn list(
    connection: &Connection,
    query: AttemptQuery<'_>,
    limit: usize,
) -> rusqlite::Result<Vec<StoredAttempt>> {
    let (condition, name) = match query {
        AttemptQuery::All => ("?1 IS NULL", None),
        AttemptQuery::Open => ("?1 IS NULL AND is_open", None),
        AttemptQuery::Named(name) => ("(id = ?1 OR name = ?1 OR other_id = ?1)", Some(name)),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM job_attempts WHERE number IN (
             SELECT number FROM (
                 SELECT number, row_number() OVER (
                     PARTITION BY uid ORDER BY coalesce(start_ns, last_event_ns) DESC, number DESC) AS place
                 FROM job_attempts WHERE {condition})
             ORDER BY place, number DESC LIMIT ?2)
         ORDER BY coalesce(start_ns, last_event_ns) DESC, number DESC"
    );
    let mut statement = connection.prepare(&sql)?;
    let read = statement.query_map((name, i64::try_from(limit).unwrap_or(i64::MAX)), decoded)?;
    read.filter_map(Result::transpose).collect()
}

/// Makes the rows `after` of the rows `before`, and writes only what differs.
pub(super) fn replace(
    connection: &Connection,
    before: &[StoredAttempt],
    after: &[StoredAttempt],
) -> rusqlite::Result<()> {
    let is_same =
        |one: &StoredAttempt, other: &StoredAttempt| one.key == other.key && one.attempt == other.attempt;
    for gone in before.iter().filter(|old| !after.iter().any(|new| is_same(old, new))) {
        let sql = "DELETE FROM job_attempts WHERE kind = ?1 AND uid = ?2 AND id = ?3 AND cluster = ?4 AND attempt = ?5";
        let StoredAttempt { key, attempt, .. } = gone;
        connection.execute(sql, (key.kind.as_str(), key.uid, &key.id, &key.cluster, attempt))?;
    }
    for new in after.iter().filter(|new| !before.contains(new)) {
        put(connection, new)?;
    }
    Ok(())
}

fn put(connection: &Connection, stored: &StoredAttempt) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO job_attempts ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (kind, uid, id, cluster, attempt) DO UPDATE SET
             is_open = excluded.is_open, start_ns = excluded.start_ns, last_event_ns = excluded.last_event_ns,
             name = excluded.name, other_id = excluded.other_id, facts = excluded.facts"
    );
    let StoredAttempt { key, attempt, is_open, start, last_event, name, other_id, facts } = stored;
    let row = (
        key.kind.as_str(),
        &key.cluster,
        key.uid,
        &key.id,
        attempt,
        is_open,
        start.map(|start| start.0),
        last_event.0,
        name,
        other_id,
        facts,
    );
    connection.prepare(&sql)?.execute(row).map(drop)
}

/// Notes that these attempts were alive at this time.
pub(super) fn touch(
    connection: &Connection,
    attempts: &[(&JobKey, u32)],
    at: Timestamp,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(
        "UPDATE job_attempts SET last_event_ns = max(last_event_ns, ?6)
         WHERE kind = ?1 AND uid = ?2 AND id = ?3 AND cluster = ?4 AND attempt = ?5 AND is_open",
    )?;
    for (key, attempt) in attempts {
        statement.execute((key.kind.as_str(), key.uid, &key.id, &key.cluster, attempt, at.0))?;
    }
    Ok(())
}

/// How many attempts of this user have not ended.
pub(super) fn open_of(connection: &Connection, uid: u32) -> rusqlite::Result<usize> {
    let sql = "SELECT count(*) FROM job_attempts WHERE is_open AND uid = ?1";
    connection.query_row(sql, [uid], |row| row.get(0))
}

/// Whether there is something to prune.
pub(super) fn has_surplus(
    connection: &Connection,
    before: Option<Timestamp>,
    max_attempts: usize,
) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT (SELECT count(*) FROM job_attempts) > ?2
             OR EXISTS (SELECT 1 FROM job_attempts WHERE NOT is_open AND last_event_ns < ?1)",
        (before.map(|before| before.0), i64::try_from(max_attempts).unwrap_or(i64::MAX)),
        |row| row.get(0),
    )
}

/// Removes attempts that ended before `before`, and those that exceed `max_attempts`.
pub(super) fn prune(
    connection: &Connection,
    before: Option<Timestamp>,
    max_attempts: usize,
) -> rusqlite::Result<usize> {
    let old = connection.execute(
        "DELETE FROM job_attempts WHERE NOT is_open AND last_event_ns < ?1",
        [before.map(|before| before.0)],
    )?;
    // The oldest of the user who has most: one user's jobs never push out those of others.
    let surplus = connection.execute(
        "DELETE FROM job_attempts WHERE NOT is_open AND number IN (
             SELECT number FROM (
                 SELECT number, row_number() OVER (
                     PARTITION BY uid ORDER BY is_open DESC, last_event_ns DESC, number DESC) AS place
                 FROM job_attempts)
             ORDER BY place, number DESC LIMIT -1 OFFSET ?1)",
        [i64::try_from(max_attempts).unwrap_or(i64::MAX)],
    )?;
    Ok(old + surplus)
}

fn decoded(row: &Row<'_>) -> rusqlite::Result<Option<StoredAttempt>> {
    let Some(kind) = JobKind::named(&row.get::<_, String>(0)?) else { return Ok(None) };
    let key = JobKey { kind, cluster: row.get(1)?, uid: row.get(2)?, id: row.get(3)? };
    Ok(Some(StoredAttempt {
        key,
        attempt: row.get(4)?,
        is_open: row.get(5)?,
        start: row.get::<_, Option<i64>>(6)?.map(Timestamp),
        last_event: Timestamp(row.get(7)?),
        name: row.get(8)?,
        other_id: row.get(9)?,
        facts: row.get(10)?,
    }))
}
