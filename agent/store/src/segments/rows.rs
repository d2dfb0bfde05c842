//! Segments, gaps, choices and foreign uses in the database, as statements on one connection.
//!
//! What cannot be decoded is left out.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    job::JobKind,
    time::Timestamp,
    workload::{ProcessKey, WorkloadId},
};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{RecordedProcess, RecorderChoice, SegmentFacts, SegmentGap, SegmentQuery, StoredSegment};

/// The job of a question: `ID` or `KIND:ID`.
const OF_JOB: &str = "(?3 IS NULL OR ?3 IN (job_id, job_kind || ':' || job_id))";
const PROCESS: &str = "job_kind, job_id, uid, pid, start_ticks, port";
/// Segments of the host that are kept: all are listed in one answer.
const MAX_SEGMENTS: usize = 4096;
/// Gaps of one process that are kept.
const MAX_GAPS: usize = 1000;
/// Choices that are kept.
const MAX_CHOICES: usize = 1000;

/// Adds a segment.
pub(super) fn insert(connection: &Connection, segment: &StoredSegment) -> rusqlite::Result<()> {
    let StoredSegment { number, order, process, start, stop, bytes, trace_bytes, facts } = segment;
    let facts = serde_json::to_string(facts)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    connection
        .execute(
            &format!(
                "INSERT INTO segments ({PROCESS}, number, start_ns, stop_ns, bytes, trace_bytes, facts, kept)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
            ),
            (
                process.workload.kind.as_str(),
                &process.workload.job,
                process.uid,
                process.process.pid,
                process.process.start_ticks,
                process.port,
                number,
                start.0,
                stop.0,
                bytes,
                trace_bytes,
                facts,
                order,
            ),
        )
        .map(drop)
}

/// The order of the next segment.
pub(super) fn next_order(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT coalesce(max(kept), 0) + 1 FROM segments", [], |row| row.get(0))
}

/// Forgets a segment.
pub(super) fn remove(connection: &Connection, number: i64) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM segments WHERE number = ?1", [number]).map(drop)
}

/// The numbers of all segments.
pub(super) fn numbers(connection: &Connection) -> rusqlite::Result<BTreeSet<i64>> {
    connection.prepare("SELECT number FROM segments")?.query_map([], |row| row.get(0))?.collect()
}

/// The bytes of all segments.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT coalesce(sum(bytes), 0) FROM segments", [], |row| row.get(0))
}

/// The segments that ended before `windows`, or before `continuous` if they are no windows, and the oldest that exceed
/// `max_bytes` or [`MAX_SEGMENTS`]; never the newest for its size. The oldest is the one that was kept first: after the clock
/// was set back it may have a time that is still to come.
pub(super) fn surplus(
    connection: &Connection,
    windows: Timestamp,
    continuous: Timestamp,
    max_bytes: u64,
) -> rusqlite::Result<Vec<i64>> {
    let mut statement = connection
        .prepare(
            "SELECT number, bytes, stop_ns, CASE WHEN json_valid(facts) THEN json_extract(facts, '$.strategy') END
             FROM segments ORDER BY kept DESC, start_ns DESC, number DESC",
        )?;
    let mut rows = statement.query([])?;
    let (mut kept, mut count, mut surplus) = (0_u64, 0, Vec::new());
    let mut newer = Timestamp(i64::MAX);
    while let Some(row) = rows.next()? {
        let (number, bytes, stop): (i64, u64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        // It is not younger than what was kept after it.
        newer = newer.min(Timestamp(stop));
        let strategy: Option<String> = row.get(3)?;
        let is_continuous = strategy.is_some_and(|strategy| strategy == "drain" || strategy == "ring");
        let is_old = newer < if is_continuous { continuous } else { windows };
        let is_too_much = count > 0 && kept.saturating_add(bytes) > max_bytes;
        if is_old || is_too_much || count >= MAX_SEGMENTS {
            surplus.push(number);
        } else {
            kept = kept.saturating_add(bytes);
            count += 1;
        }
    }
    Ok(surplus)
}

/// Forgets gaps that ended before `gaps`, and choices and foreign uses from before `choices`.
pub(super) fn forget(connection: &Connection, gaps: Timestamp, choices: Timestamp) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM segment_gaps WHERE stop_ns < ?1", [gaps.0])?;
    connection.execute("DELETE FROM recorder_choices WHERE chosen_ns < ?1", [choices.0])?;
    connection.execute("DELETE FROM recorder_foreign_uses WHERE found_ns < ?1", [choices.0]).map(drop)
}

/// The segments that are wanted, by time.
pub(super) fn list(connection: &Connection, query: &SegmentQuery) -> rusqlite::Result<Vec<StoredSegment>> {
    let mut statement = connection.prepare(&format!(
        "SELECT {PROCESS}, number, start_ns, stop_ns, bytes, trace_bytes, facts, kept FROM segments
         WHERE (?1 IS NULL OR stop_ns > ?1) AND (?2 IS NULL OR start_ns < ?2) AND {OF_JOB}
         ORDER BY start_ns, number"
    ))?;
    let read = statement.query_map(parameters(query), |row| {
        let facts: String = row.get(11)?;
        let known = process(row)?.zip(serde_json::from_str::<SegmentFacts>(&facts).ok());
        let Some((process, facts)) = known else { return Ok(None) };
        Ok(Some(StoredSegment {
            number: row.get(6)?,
            order: row.get(12)?,
            process,
            start: Timestamp(row.get(7)?),
            stop: Timestamp(row.get(8)?),
            bytes: row.get(9)?,
            trace_bytes: row.get(10)?,
            facts,
        }))
    })?;
    read.filter_map(Result::transpose).collect()
}

/// The gaps that are wanted, by time.
pub(super) fn gaps(connection: &Connection, query: &SegmentQuery) -> rusqlite::Result<Vec<SegmentGap>> {
    let mut statement = connection.prepare(&format!(
        "SELECT {PROCESS}, start_ns, stop_ns, windows, reason FROM segment_gaps
         WHERE (?1 IS NULL OR stop_ns > ?1) AND (?2 IS NULL OR start_ns < ?2) AND {OF_JOB}
         ORDER BY start_ns, number"
    ))?;
    let read = statement.query_map(parameters(query), |row| {
        let Some(process) = process(row)? else { return Ok(None) };
        Ok(Some(SegmentGap {
            process,
            start: Timestamp(row.get(6)?),
            stop: Timestamp(row.get(7)?),
            windows: row.get(8)?,
            reason: row.get(9)?,
        }))
    })?;
    read.filter_map(Result::transpose).collect()
}

/// Until when something is known of each process: the end of its newest segment or gap.
pub(super) fn ends(connection: &Connection) -> rusqlite::Result<BTreeMap<ProcessKey, Timestamp>> {
    let mut statement = connection.prepare(
        "SELECT pid, start_ticks, max(stop_ns) FROM (
             SELECT pid, start_ticks, stop_ns FROM segments UNION ALL SELECT pid, start_ticks, stop_ns FROM segment_gaps
         ) GROUP BY pid, start_ticks",
    )?;
    let read = statement.query_map([], |row| {
        Ok((ProcessKey { pid: row.get(0)?, start_ticks: row.get(1)? }, Timestamp(row.get(2)?)))
    })?;
    read.collect()
}

fn parameters(query: &SegmentQuery) -> (Option<i64>, Option<i64>, Option<&str>) {
    (query.from.map(|at| at.0), query.to.map(|at| at.0), query.job.as_deref())
}

/// The process of a row that begins with [`PROCESS`].
fn process(row: &Row<'_>) -> rusqlite::Result<Option<RecordedProcess>> {
    let Some(kind) = JobKind::named(&row.get::<_, String>(0)?) else { return Ok(None) };
    Ok(Some(RecordedProcess {
        workload: WorkloadId { kind, job: row.get(1)? },
        uid: row.get(2)?,
        process: ProcessKey { pid: row.get(3)?, start_ticks: row.get(4)? },
        port: row.get(5)?,
    }))
}

/// Notes a gap. One that goes on for the reason of the process's last gap makes that longer, unless a segment lies
/// between the two.
pub(super) fn note_gap(connection: &Connection, gap: &SegmentGap) -> rusqlite::Result<()> {
    let SegmentGap { process, start, stop, windows, reason } = gap;
    let key = (process.process.pid, process.process.start_ticks, process.port);
    let last: Option<(i64, String, i64, i64)> = connection
        .query_row(
            "SELECT number, reason, start_ns, stop_ns FROM segment_gaps WHERE pid = ?1 AND start_ticks = ?2 AND port = ?3
             ORDER BY number DESC LIMIT 1",
            key,
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .optional()?;
    // One that begins before it is of a clock that was set back.
    let last = last.filter(|(_, last, begin, _)| last == reason && *begin <= start.0);
    if let Some((number, _, _, after)) = last {
        let recorded: bool = connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM segments WHERE pid = ?1 AND start_ticks = ?2 AND port = ?3 AND start_ns >= ?4)",
            (key.0, key.1, key.2, after),
            |row| row.get(0),
        )?;
        if !recorded {
            let sql = "UPDATE segment_gaps SET stop_ns = max(stop_ns, ?2), windows = windows + ?3 WHERE number = ?1";
            return connection.execute(sql, (number, stop.0, windows)).map(drop);
        }
    }
    connection.execute(
        &format!(
            "INSERT INTO segment_gaps ({PROCESS}, start_ns, stop_ns, windows, reason)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
        ),
        (
            process.workload.kind.as_str(),
            &process.workload.job,
            process.uid,
            key.0,
            key.1,
            key.2,
            start.0,
            stop.0,
            windows,
            reason,
        ),
    )?;
    let sql = "DELETE FROM segment_gaps WHERE number IN (SELECT number FROM segment_gaps
               WHERE pid = ?1 AND start_ticks = ?2 AND port = ?3 ORDER BY number DESC LIMIT -1 OFFSET ?4)";
    connection.execute(sql, (key.0, key.1, key.2, MAX_GAPS)).map(drop)
}

/// What was chosen for jobs.
pub(super) fn choices(connection: &Connection) -> rusqlite::Result<Vec<RecorderChoice>> {
    let mut statement = connection
        .prepare("SELECT job_kind, job_id, uid, is_on, strategy FROM recorder_choices ORDER BY chosen_ns")?;
    let read = statement.query_map([], |row| {
        let kind = JobKind::named(&row.get::<_, String>(0)?);
        let (job, uid, is_on, strategy) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
        Ok(kind.map(|kind| RecorderChoice { workload: WorkloadId { kind, job }, uid, is_on, strategy }))
    })?;
    read.filter_map(Result::transpose).collect()
}

/// Notes a choice.
pub(super) fn choose(
    connection: &Connection,
    choice: &RecorderChoice,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let RecorderChoice { workload, uid, is_on, strategy } = choice;
    connection.execute(
        "INSERT INTO recorder_choices VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET
             is_on = excluded.is_on, strategy = excluded.strategy, chosen_ns = excluded.chosen_ns",
        (workload.kind.as_str(), &workload.job, uid, is_on, strategy, now.0),
    )?;
    let sql = "DELETE FROM recorder_choices WHERE (job_kind, job_id, uid) IN (SELECT job_kind, job_id, uid
               FROM recorder_choices ORDER BY chosen_ns DESC LIMIT -1 OFFSET ?1)";
    connection.execute(sql, [MAX_CHOICES]).map(drop)
}

/// The processes whose profiler another program was found to use, and what was found.
pub(super) fn foreign_uses(connection: &Connection) -> rusqlite::Result<BTreeMap<ProcessKey, String>> {
    let mut statement = connection.prepare("SELECT pid, start_ticks, what FROM recorder_foreign_uses")?;
    let read = statement
        .query_map([], |row| Ok((ProcessKey { pid: row.get(0)?, start_ticks: row.get(1)? }, row.get(2)?)))?;
    read.collect()
}

/// Notes that another program uses the profiler of a process.
pub(super) fn note_foreign_use(
    connection: &Connection,
    process: ProcessKey,
    what: &str,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO recorder_foreign_uses (pid, start_ticks, found_ns, what) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT DO UPDATE SET found_ns = excluded.found_ns, what = excluded.what";
    connection.execute(sql, (process.pid, process.start_ticks, now.0, what)).map(drop)
}

/// Forgets that.
pub(super) fn forget_foreign_use(connection: &Connection, process: ProcessKey) -> rusqlite::Result<()> {
    let sql = "DELETE FROM recorder_foreign_uses WHERE pid = ?1 AND start_ticks = ?2";
    connection.execute(sql, (process.pid, process.start_ticks)).map(drop)
}
