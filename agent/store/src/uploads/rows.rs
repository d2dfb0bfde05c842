//! The uploads in the state's database. All calls block.
//!
//! What is saved of a running upload is only what saves work after a restart: whatever is missing is found again by looking
//! at the destination.

use std::collections::BTreeMap;

use model::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::{
    file::{FileState, FileUpload, SentPart, ThereFile},
    session_upload::{NameClaim, SessionUpload},
    status::{UploadFailure, UploadPhase, UploadShare, UploadStatus},
};
use crate::{
    catalog::rows::{priority_number, priority_numbered},
    destinations::target::FailureClass,
};

/// Parts that were begun at a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BegunParts {
    pub(crate) destination: String,
    pub(crate) url: String,
    pub(crate) path: String,
    pub(crate) id: String,
}

const COLUMNS: &str = "number, session, destination, url, manifest_id, priority, queued_ns, bytes, state, name_there, \
     done_ns, unverified, failure_class, failure, derived, parts_only";

fn status(row: &Row<'_>) -> rusqlite::Result<UploadStatus> {
    let class: Option<String> = row.get("failure_class")?;
    let failure = class.map(|class| -> rusqlite::Result<_> {
        Ok(UploadFailure { class: FailureClass::named(&class), message: row.get("failure")? })
    });
    let phase = match row.get::<_, i64>("state")? {
        1 => UploadPhase::Done { at: Timestamp(row.get("done_ns")?), unverified: row.get("unverified")? },
        2 => UploadPhase::Failed,
        _ => UploadPhase::Waiting,
    };
    let bytes: u64 = row.get("bytes")?;
    Ok(UploadStatus {
        number: row.get("number")?,
        session: row.get("session")?,
        destination: row.get("destination")?,
        url: row.get("url")?,
        manifest_id: row.get("manifest_id")?,
        name_there: row.get("name_there")?,
        priority: priority_numbered(row.get("priority")?),
        queued: Timestamp(row.get("queued_ns")?),
        bytes,
        sent_bytes: if matches!(phase, UploadPhase::Done { .. }) { bytes } else { 0 },
        phase,
        derived: row.get("derived")?,
        share: share_numbered(row.get("parts_only")?),
        failure: failure.transpose()?,
    })
}

/// As the column `parts_only` has it.
fn share_number(share: UploadShare) -> i64 {
    match share {
        UploadShare::Whole => 0,
        UploadShare::Parts => 1,
        UploadShare::OfHost => 2,
    }
}

fn share_numbered(number: i64) -> UploadShare {
    match number {
        0 => UploadShare::Whole,
        2 => UploadShare::OfHost,
        _ => UploadShare::Parts,
    }
}

/// Adds an upload. Returns whether it is new: a session has one to each destination.
pub(crate) fn add(change: &Transaction<'_>, new: &UploadStatus) -> rusqlite::Result<bool> {
    let failure = new.failure.as_ref();
    let sql = "INSERT INTO uploads (number, session, destination, url, manifest_id, priority, queued_ns, bytes, state, \
               failure_class, failure, derived, parts_only) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
               ON CONFLICT DO NOTHING";
    let added = change.execute(
        sql,
        params![
            new.number,
            new.session,
            new.destination,
            new.url,
            new.manifest_id,
            priority_number(new.priority),
            new.queued.0,
            new.bytes,
            if new.phase == UploadPhase::Failed { 2 } else { 0 },
            failure.map(|failure| failure.class.as_str()),
            failure.map(|failure| &failure.message),
            new.derived,
            share_number(new.share),
        ],
    )?;
    mark_session(change, &new.session)?;
    Ok(added > 0)
}

/// Notes with the session whether it waits for an upload, or all of them are done: retention asks.
fn mark_session(change: &Transaction<'_>, session: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE sessions SET \
               upload = (SELECT iif(count(*) = 0, 0, iif(min(state = 1), 2, 1)) FROM uploads WHERE session = ?1), \
               uploaded_ns = (SELECT max(done_ns) FROM uploads WHERE session = ?1) WHERE name = ?1";
    change.execute(sql, [session]).map(drop)
}

fn mark_session_of(change: &Transaction<'_>, number: i64) -> rusqlite::Result<()> {
    let sql = "SELECT session FROM uploads WHERE number = ?1";
    let session: Option<String> = change.query_row(sql, [number], |row| row.get(0)).optional()?;
    session.map_or(Ok(()), |session| mark_session(change, &session))
}

/// The uploads that are not done, with the bytes that are there already.
pub(crate) fn unfinished(db: &Connection) -> rusqlite::Result<Vec<UploadStatus>> {
    let mut query =
        db.prepare(&format!("SELECT {COLUMNS} FROM uploads WHERE state <> 1 ORDER BY queued_ns, number"))?;
    query.query_map([], status)?.collect()
}

/// All uploads, the oldest first.
pub(crate) fn all(db: &Connection) -> rusqlite::Result<Vec<UploadStatus>> {
    let mut query = db.prepare(&format!("SELECT {COLUMNS} FROM uploads ORDER BY queued_ns, number"))?;
    query.query_map([], status)?.collect()
}

/// The uploads of one session.
pub(crate) fn of_session(db: &Connection, session: &str) -> rusqlite::Result<Vec<UploadStatus>> {
    let sql = format!("SELECT {COLUMNS} FROM uploads WHERE session = ?1 ORDER BY queued_ns, number");
    db.prepare(&sql)?.query_map([session], status)?.collect()
}

/// The checksums of an upload's files, by name, as far as they are known.
pub(crate) fn checksums(db: &Connection, number: i64) -> rusqlite::Result<BTreeMap<String, u32>> {
    let sql = "SELECT file, crc32c FROM upload_files WHERE upload = ?1 AND crc32c IS NOT NULL";
    db.prepare(sql)?.query_map([number], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Puts what is known of an upload into `upload`, if it is about the same URL.
pub(crate) fn restore(
    db: &Connection,
    number: i64,
    url: &str,
    upload: &mut SessionUpload,
) -> rusqlite::Result<()> {
    let sql = "SELECT name_there, refused FROM uploads WHERE number = ?1 AND url = ?2";
    let claim = db
        .query_row(sql, params![number, url], |row| {
            Ok((row.get::<_, Option<String>>(0)?, row.get::<_, u8>(1)?))
        })
        .optional()?;
    let Some((name, refused)) = claim else { return Ok(()) };
    upload.claim = match name.and_then(|name| name.parse().ok()) {
        Some(name) => NameClaim::Claimed(name),
        None => NameClaim::Unclaimed { refused },
    };
    let mut query = db.prepare("SELECT * FROM upload_files WHERE upload = ?1 AND file = ?2 AND size = ?3")?;
    for file in &mut upload.files {
        let found = query
            .query_row(params![number, file.name, file.size], |row| {
                file.damaged = row.get("damaged")?;
                file_state(row)
            })
            .optional()?;
        if let Some(state) = found {
            file.state = state;
        }
        if let FileState::Parts { sent, .. } = &mut file.state {
            *sent = parts(db, number, &file.name)?;
        }
    }
    Ok(())
}

fn file_state(row: &Row<'_>) -> rusqlite::Result<FileState> {
    let crc32c: Option<u32> = row.get("crc32c")?;
    let text = |column| row.get::<_, Option<String>>(column).map(Option::unwrap_or_default);
    Ok(match (row.get::<_, i64>("state")?, crc32c) {
        (1, _) => FileState::Missing { replaces: row.get("generation")? },
        (2, _) => FileState::Parts { id: text("parts_id")?, sent: BTreeMap::new() },
        (3, crc32c) => FileState::Sent { crc32c },
        (4, Some(crc32c)) => FileState::There(ThereFile {
            generation: text("generation")?,
            etag: text("etag")?,
            crc32c,
            verified: row.get("verified")?,
        }),
        (5, _) => FileState::Failed,
        _ => FileState::Unknown,
    })
}

fn parts(db: &Connection, number: i64, file: &str) -> rusqlite::Result<BTreeMap<u32, SentPart>> {
    let mut query =
        db.prepare("SELECT part, tag, crc32c FROM upload_parts WHERE upload = ?1 AND file = ?2")?;
    let part = |row: &Row<'_>| Ok((row.get(0)?, SentPart { tag: row.get(1)?, crc32c: row.get(2)? }));
    query.query_map(params![number, file], part)?.collect()
}

/// Saves the claim, and the URL that it is about.
pub(crate) fn save_claim(
    change: &Transaction<'_>,
    number: i64,
    url: &str,
    claim: &NameClaim,
) -> rusqlite::Result<()> {
    let (name, refused) = match claim {
        NameClaim::Claimed(name) => (Some(name.as_str()), 0),
        NameClaim::Unclaimed { refused } => (None, *refused),
    };
    let sql = "UPDATE uploads SET url = ?2, name_there = ?3, refused = ?4, derived = 0 WHERE number = ?1";
    change.execute(sql, params![number, url, name, refused]).map(drop)
}

/// Saves how far a file is, except its parts.
pub(crate) fn save_file(change: &Transaction<'_>, number: i64, file: &FileUpload) -> rusqlite::Result<()> {
    let (mut generation, mut etag, mut crc, mut verified, mut parts_id) = (None, None, None, false, None);
    let state = match &file.state {
        FileState::Unknown => 0,
        FileState::Missing { replaces } => {
            generation = replaces.as_deref();
            1
        }
        FileState::Parts { id, .. } => {
            parts_id = Some(id.as_str());
            2
        }
        FileState::Sent { crc32c } => {
            crc = *crc32c;
            3
        }
        FileState::There(there) => {
            (generation, etag) = (Some(there.generation.as_str()), Some(there.etag.as_str()));
            (crc, verified) = (Some(there.crc32c), there.verified);
            4
        }
        FileState::Failed => 5,
    };
    let sql = "INSERT INTO upload_files (upload, file, size, state, damaged, generation, etag, crc32c, verified, parts_id) \
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE EXISTS (SELECT 1 FROM uploads WHERE number = ?1) \
               ON CONFLICT (upload, file) DO UPDATE SET size = ?3, state = ?4, damaged = ?5, generation = ?6, \
               etag = ?7, crc32c = ?8, verified = ?9, parts_id = ?10";
    change.execute(
        sql,
        params![number, file.name, file.size, state, file.damaged, generation, etag, crc, verified, parts_id],
    )?;
    if state != 2 {
        let sql = "DELETE FROM upload_parts WHERE upload = ?1 AND file = ?2";
        change.execute(sql, params![number, file.name])?;
    }
    Ok(())
}

/// Saves a part that was sent.
pub(crate) fn save_part(
    change: &Transaction<'_>,
    number: i64,
    file: &str,
    part: u32,
    sent: &SentPart,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO upload_parts (upload, file, part, tag, crc32c) SELECT ?1, ?2, ?3, ?4, ?5 \
               WHERE EXISTS (SELECT 1 FROM upload_files WHERE upload = ?1 AND file = ?2) \
               ON CONFLICT (upload, file, part) DO UPDATE SET tag = ?4, crc32c = ?5";
    change.execute(sql, params![number, file, part, sent.tag, sent.crc32c]).map(drop)
}

/// Remembers parts that were begun, so that they are removed if nothing comes of them.
pub(crate) fn begun(change: &Transaction<'_>, parts: &BegunParts, now: Timestamp) -> rusqlite::Result<()> {
    let sql = "INSERT INTO begun_parts (destination, url, path, parts_id, begun_ns) VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT DO NOTHING";
    let BegunParts { destination, url, path, id } = parts;
    change.execute(sql, params![destination, url, path, id, now.0]).map(drop)
}

/// Forgets parts: their object was made of them, or they were removed.
pub(crate) fn ended(change: &Transaction<'_>, url: &str, path: &str, id: &str) -> rusqlite::Result<()> {
    let sql = "DELETE FROM begun_parts WHERE url = ?1 AND path = ?2 AND parts_id = ?3";
    change.execute(sql, params![url, path, id]).map(drop)
}

/// Parts that were begun before `before` and that no upload goes on with.
pub(crate) fn stale_parts(db: &Connection, before: Timestamp) -> rusqlite::Result<Vec<BegunParts>> {
    let sql = "SELECT destination, url, path, parts_id FROM begun_parts WHERE begun_ns < ?1 \
               AND parts_id NOT IN (SELECT parts_id FROM upload_files WHERE parts_id IS NOT NULL) LIMIT 100";
    let mut query = db.prepare(sql)?;
    let parts = |row: &Row<'_>| {
        Ok(BegunParts { destination: row.get(0)?, url: row.get(1)?, path: row.get(2)?, id: row.get(3)? })
    };
    query.query_map([before.0], parts)?.collect()
}

/// Every file is there.
pub(crate) fn done(
    change: &Transaction<'_>,
    number: i64,
    unverified: u32,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "UPDATE uploads SET state = 1, done_ns = ?2, unverified = ?3, failure_class = NULL, failure = NULL \
               WHERE number = ?1";
    change.execute(sql, params![number, now.0, unverified])?;
    mark_session_of(change, number)
}

/// An attempt failed; with `is_final` no other one follows by itself.
pub(crate) fn failed(
    change: &Transaction<'_>,
    number: i64,
    failure: &UploadFailure,
    is_final: bool,
) -> rusqlite::Result<()> {
    let sql = "UPDATE uploads SET state = ?2, failure_class = ?3, failure = ?4 WHERE number = ?1";
    let state = if is_final { 2 } else { 0 };
    change.execute(sql, params![number, state, failure.class.as_str(), failure.message]).map(drop)
}

/// Gives an upload another priority.
pub(crate) fn set_priority(
    change: &Transaction<'_>,
    number: i64,
    priority: crate::SessionPriority,
) -> rusqlite::Result<()> {
    let sql = "UPDATE uploads SET priority = ?1 WHERE number = ?2";
    change.execute(sql, (priority_number(priority), number)).map(drop)
}

/// A failed upload waits again, and its files get another chance.
pub(crate) fn retry(change: &Transaction<'_>, number: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE uploads SET state = 0, refused = 0 WHERE number = ?1 AND state = 2";
    change.execute(sql, [number])?;
    let sql = "UPDATE upload_files SET damaged = 0, state = iif(state = 5, 0, state) WHERE upload = ?1";
    change.execute(sql, [number]).map(drop)
}

/// Forgets an upload. Parts that it sent are removed from the destination as soon as possible.
pub(crate) fn remove(change: &Transaction<'_>, number: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE begun_parts SET begun_ns = ?2 \
               WHERE parts_id IN (SELECT parts_id FROM upload_files WHERE upload = ?1)";
    change.execute(sql, params![number, i64::MIN])?;
    let sql = "DELETE FROM uploads WHERE number = ?1 RETURNING session";
    let session: Option<String> = change.query_row(sql, [number], |row| row.get(0)).optional()?;
    session.map_or(Ok(()), |session| mark_session(change, &session))
}
