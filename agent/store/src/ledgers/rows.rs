//! Ledgers and their hours in the database, as statements on one connection.
//!
//! What cannot be decoded is left out.

use model::job::{JobKey, JobKind};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{HourStep, KeptHour, KeptLedger};

const KEY: &str = "job_kind, job_cluster, job_id, uid";
const IS_KEY: &str = "job_kind = ?1 AND job_cluster = ?2 AND job_id = ?3 AND uid = ?4";
/// Hours that are made shorter in one transaction.
const AT_A_TIME: usize = 256;

/// Adds a ledger or replaces it; returns its number.
pub(super) fn put(connection: &Connection, ledger: &KeptLedger) -> rusqlite::Result<i64> {
    let KeptLedger { key, name, first, end, state } = ledger;
    let sql = format!(
        "INSERT INTO ledgers ({KEY}, name, first_s, end_s, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT ({KEY}) DO UPDATE SET
             name = excluded.name, first_s = excluded.first_s, end_s = excluded.end_s, state = excluded.state
         RETURNING number"
    );
    let parameters = (key.kind.as_str(), &key.cluster, &key.id, key.uid, name, first, end, state);
    connection.prepare(&sql)?.query_row(parameters, |row| row.get(0))
}

/// Adds an hour or replaces it.
pub(super) fn put_hour(connection: &Connection, ledger: i64, hour: &KeptHour) -> rusqlite::Result<()> {
    let sql = "INSERT INTO ledger_hours VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (ledger, hour) DO UPDATE SET step_s = excluded.step_s, content = excluded.content";
    let KeptHour { hour, step, content } = hour;
    connection.prepare(sql)?.execute((ledger, hour, step.seconds(), content)).map(drop)
}

/// Forgets a ledger with its hours.
pub(super) fn remove(connection: &Connection, ledger: i64) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM ledgers WHERE number = ?1", [ledger]).map(drop)
}

/// Forgets the ledger of a job with its hours.
pub(super) fn forget(connection: &Connection, key: &JobKey) -> rusqlite::Result<()> {
    connection.execute(&format!("DELETE FROM ledgers WHERE {IS_KEY}"), parameters(key)).map(drop)
}

/// Forgets an hour.
pub(super) fn remove_hour(connection: &Connection, ledger: i64, hour: u64) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM ledger_hours WHERE ledger = ?1 AND hour = ?2", (ledger, hour)).map(drop)
}

/// All ledgers, the newest first, without their states.
pub(super) fn list(connection: &Connection) -> rusqlite::Result<Vec<KeptLedger>> {
    let sql = format!("SELECT {KEY}, name, first_s, end_s, '' FROM ledgers ORDER BY end_s DESC, number DESC");
    let found: rusqlite::Result<Vec<_>> = connection.prepare(&sql)?.query_map([], ledger)?.collect();
    Ok(found?.into_iter().flatten().collect())
}

/// The ledger of a job.
pub(super) fn find(connection: &Connection, key: &JobKey) -> rusqlite::Result<Option<KeptLedger>> {
    let sql = format!("SELECT {KEY}, name, first_s, end_s, state FROM ledgers WHERE {IS_KEY}");
    let found = connection.query_row(&sql, parameters(key), ledger).optional()?;
    Ok(found.flatten())
}

/// The hours of a ledger from one to another.
pub(super) fn hours(
    connection: &Connection,
    key: &JobKey,
    from: u64,
    to: u64,
) -> rusqlite::Result<Vec<KeptHour>> {
    let sql = format!(
        "SELECT hour, step_s, content FROM ledger_hours WHERE ledger = (SELECT number FROM ledgers WHERE {IS_KEY})
         AND hour BETWEEN ?5 AND ?6 ORDER BY hour"
    );
    let (kind, cluster, id, uid) = parameters(key);
    let (from, to) = (signed(from), signed(to));
    let found: rusqlite::Result<Vec<_>> = connection
        .prepare(&sql)?
        .query_map((kind, cluster, id, uid, from, to), |row| hour(row, 0))?
        .collect();
    Ok(found?.into_iter().flatten().collect())
}

/// Hours by the second that ended before a second, with the numbers of their ledgers: some of them.
pub(super) fn by_second(connection: &Connection, before: i64) -> rusqlite::Result<Vec<(i64, KeptHour)>> {
    let sql = "SELECT hour, step_s, content, ledger FROM ledger_hours JOIN ledgers ON ledger = number
        WHERE step_s = 1 AND first_s + (hour + 1) * 3600 <= ?1 LIMIT ?2";
    let found: rusqlite::Result<Vec<_>> = connection
        .prepare(sql)?
        .query_map((before, AT_A_TIME), |row| Ok(hour(row, 0)?.map(|hour| (row.get(3), hour))))?
        .collect();
    found?.into_iter().flatten().map(|(ledger, hour)| Ok((ledger?, hour))).collect()
}

/// Ledgers that ended before a second, and beyond the most the oldest of the user who has most.
pub(super) fn surplus(connection: &Connection, before: i64, most: usize) -> rusqlite::Result<Vec<i64>> {
    let sql = "SELECT number FROM ledgers WHERE end_s < ?1
        UNION SELECT number FROM (
            SELECT number, row_number() OVER (PARTITION BY uid ORDER BY end_s DESC, number DESC) AS place
            FROM ledgers ORDER BY place, end_s DESC, number DESC LIMIT -1 OFFSET ?2)";
    connection.prepare(sql)?.query_map((before, most), |row| row.get(0))?.collect()
}

/// Whether there is an hour that ended before a second.
pub(super) fn has_hours_before(connection: &Connection, before: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM ledger_hours JOIN ledgers ON ledger = number
        WHERE first_s + (hour + 1) * 3600 <= ?1)";
    connection.query_row(sql, [before], |row| row.get(0))
}

/// Forgets the hours that ended before a second.
pub(super) fn remove_hours_before(connection: &Connection, before: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM ledger_hours WHERE EXISTS
        (SELECT 1 FROM ledgers WHERE number = ledger AND first_s + (hour + 1) * 3600 <= ?1)";
    connection.execute(sql, [before]).map(drop)
}

/// The bytes of all hours.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT coalesce(sum(length(content)), 0) FROM ledger_hours", [], |row| row.get(0))
}

/// Forgets hours beyond so many bytes: the oldest of the user who has most.
pub(super) fn remove_beyond(connection: &Connection, most: u64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM ledger_hours WHERE (ledger, hour) IN (
        SELECT ledger, hour FROM (
            SELECT ledger, hour, sum(length(content)) OVER (ORDER BY place, began DESC, ledger) AS sooner
            FROM (
                SELECT ledger, hour, content, first_s + hour * 3600 AS began, row_number() OVER (
                    PARTITION BY uid ORDER BY first_s + hour * 3600 DESC, ledger) AS place
                FROM ledger_hours JOIN ledgers ON ledger = number)
        ) WHERE sooner > ?1)";
    connection.execute(sql, [most]).map(drop)
}

fn parameters(key: &JobKey) -> (&'static str, &str, &str, u32) {
    (key.kind.as_str(), &key.cluster, &key.id, key.uid)
}

fn signed(hour: u64) -> i64 {
    i64::try_from(hour).unwrap_or(i64::MAX)
}

fn ledger(row: &Row<'_>) -> rusqlite::Result<Option<KeptLedger>> {
    let Some(kind) = JobKind::named(&row.get::<_, String>(0)?) else { return Ok(None) };
    let key = JobKey { kind, cluster: row.get(1)?, id: row.get(2)?, uid: row.get(3)? };
    Ok(Some(KeptLedger { key, name: row.get(4)?, first: row.get(5)?, end: row.get(6)?, state: row.get(7)? }))
}

fn hour(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<KeptHour>> {
    let step = match row.get::<_, u32>(at + 1)? {
        1 => HourStep::Second,
        60 => HourStep::Minute,
        _ => return Ok(None),
    };
    Ok(Some(KeptHour { hour: row.get(at)?, step, content: row.get(at + 2)? }))
}
