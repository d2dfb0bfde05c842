//! Marks, their jobs and their recorders in the database, as statements on one connection.

use std::collections::{BTreeMap, btree_map::Entry};

use model::{job::JobKind, time::Timestamp, workload::WorkloadId};
use rusqlite::{Connection, OptionalExtension, Row, Statement};

use super::{Appended, MarkBatch, MarkedJob, NewMark, StoredMark};

/// What a mark takes in the database beside its payload, and a job beside its marks, in bytes.
const MARK_BYTES: usize = 48;
const JOB_BYTES: u64 = 256;
/// Recorders of one user that are remembered.
const MAX_RECORDERS: usize = 2000;

const JOB: &str = "number, uid, name, job_kind, job_id, marks, lost, refused, removed, last_ns";

/// Adds marks within one transaction. Its statements are prepared once.
pub(super) struct Appender<'c> {
    connection: &'c Connection,
    now: Timestamp,
    insert: Statement<'c>,
    make_job: Statement<'c>,
    count_job: Statement<'c>,
    find_recorder: Statement<'c>,
    save_recorder: Statement<'c>,
}

/// A job of a batch: its number, and what was added to it.
struct JobCount {
    number: i64,
    marks: u64,
    bytes: usize,
}

type JobCounts<'a> = BTreeMap<&'a str, JobCount>;

/// Up to where the marks of a recorder are stored.
struct Recorder {
    number: i64,
    stored: u64,
    /// The job of its last mark.
    job: Option<i64>,
    /// What that job is still to be told of.
    lost: i64,
    refused: i64,
}

impl<'c> Appender<'c> {
    pub(super) fn new(connection: &'c Connection, now: Timestamp) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            now,
            insert: connection
                .prepare("INSERT INTO marks (job, recorder, at_ns, payload) VALUES (?1, ?2, ?3, ?4)")?,
            make_job: connection.prepare(
                "INSERT INTO mark_jobs (uid, name, job_kind, job_id, last_ns) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET job_kind = coalesce(excluded.job_kind, job_kind),
                     job_id = coalesce(excluded.job_id, job_id)
                 RETURNING number",
            )?,
            count_job: connection.prepare(
                "UPDATE mark_jobs SET marks = marks + ?2, bytes = bytes + ?3, last_ns = ?4 WHERE number = ?1",
            )?,
            find_recorder: connection.prepare(
                "SELECT number, stored, job, lost, refused FROM mark_recorders WHERE uid = ?1 AND id = ?2",
            )?,
            save_recorder: connection.prepare(
                "UPDATE mark_recorders SET stored = ?2, job = ?3, lost = ?4, refused = ?5, last_ns = ?6
                 WHERE number = ?1",
            )?,
        })
    }

    /// Adds the marks of a batch that are not stored yet.
    pub(super) fn append(&mut self, batch: &MarkBatch) -> rusqlite::Result<Appended> {
        let mut jobs = JobCounts::new();
        let Some((id, first)) = &batch.numbered else {
            for mark in batch.marks.iter().flatten() {
                self.insert(&mut jobs, batch.uid, mark, None)?;
            }
            return Ok(Appended { added: self.count(&jobs)?, ..Appended::default() });
        };
        let mut recorder = self.recorder(batch.uid, id)?;
        let lost = first.saturating_sub(recorder.stored.saturating_add(1));
        let mut doubled = 0;
        for (number, mark) in (*first..).zip(&batch.marks) {
            match mark {
                _ if number <= recorder.stored => doubled += 1,
                None => recorder.refused += 1,
                Some(mark) => {
                    recorder.job = Some(self.insert(&mut jobs, batch.uid, mark, Some(recorder.number))?);
                }
            }
        }
        let added = self.count(&jobs)?;
        recorder.lost = recorder.lost.saturating_add(signed(lost));
        let last = first.saturating_add(batch.marks.len() as u64).saturating_sub(1);
        recorder.stored = recorder.stored.max(last);
        self.save(&recorder)?;
        Ok(Appended { stored: recorder.stored, added, doubled, lost })
    }

    /// Inserts a mark. Returns the number of its job.
    fn insert<'a>(
        &mut self,
        jobs: &mut JobCounts<'a>,
        uid: u32,
        mark: &'a NewMark,
        recorder: Option<i64>,
    ) -> rusqlite::Result<i64> {
        let count = match jobs.entry(mark.job.as_str()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (kind, id) = mark.workload.as_ref().map(|id| (id.kind.as_str(), id.job.as_str())).unzip();
                let row = (uid, &mark.job, kind, id, self.now.0);
                let number = self.make_job.query_row(row, |row| row.get(0))?;
                new.insert(JobCount { number, marks: 0, bytes: 0 })
            }
        };
        self.insert.execute((count.number, recorder, mark.at.0, &mark.payload))?;
        count.marks += 1;
        count.bytes += mark.payload.len() + MARK_BYTES;
        Ok(count.number)
    }

    /// Adds the counts to the jobs. Returns how many marks were added.
    fn count(&mut self, jobs: &JobCounts<'_>) -> rusqlite::Result<u64> {
        for count in jobs.values() {
            self.count_job.execute((count.number, count.marks, count.bytes, self.now.0))?;
        }
        Ok(jobs.values().map(|count| count.marks).sum())
    }

    fn recorder(&mut self, uid: u32, id: &str) -> rusqlite::Result<Recorder> {
        let found = self.find_recorder.query_row((uid, id), |row| {
            Ok(Recorder {
                number: row.get(0)?,
                stored: row.get(1)?,
                job: row.get(2)?,
                lost: row.get(3)?,
                refused: row.get(4)?,
            })
        });
        if let Some(found) = found.optional()? {
            return Ok(found);
        }
        let sql = "INSERT INTO mark_recorders (uid, id, stored, last_ns) VALUES (?1, ?2, 0, ?3)";
        self.connection.execute(sql, (uid, id, self.now.0))?;
        let number = self.connection.last_insert_rowid();
        Ok(Recorder { number, stored: 0, job: None, lost: 0, refused: 0 })
    }

    /// Keeps how far a recorder is, and tells its job, once it has one, what it lacks.
    fn save(&mut self, recorder: &Recorder) -> rusqlite::Result<()> {
        let Recorder { number, stored, job, mut lost, mut refused } = *recorder;
        if let Some(job) = job
            && (lost, refused) != (0, 0)
        {
            // Never beyond what fits.
            let sql = "UPDATE mark_jobs SET lost = lost + min(?2, 9223372036854775807 - lost),
                       refused = refused + ?3 WHERE number = ?1";
            self.connection.execute(sql, (job, lost, refused))?;
            (lost, refused) = (0, 0);
        }
        let row = (number, signed(stored), job, lost, refused, self.now.0);
        self.save_recorder.execute(row).map(drop)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The jobs with this name or workload, the one that marked last first; all without a name.
pub(super) fn jobs(
    connection: &Connection,
    named: Option<&str>,
    uid: Option<u32>,
) -> rusqlite::Result<Vec<MarkedJob>> {
    let (kind, id) = match named.and_then(|name| name.split_once(':')) {
        Some((kind, id)) if JobKind::named(kind).is_some() => (Some(kind), Some(id)),
        _ => (None, named),
    };
    let mut statement = connection.prepare(&format!(
        "SELECT {JOB} FROM mark_jobs
         WHERE (?1 IS NULL OR name = ?1 OR (job_id = ?3 AND (?2 IS NULL OR job_kind = ?2)))
           AND (?4 IS NULL OR uid = ?4)
         ORDER BY last_ns DESC, number DESC"
    ))?;
    statement.query_map((named, kind, id, uid), marked_job)?.collect()
}

/// The job that the processes of a workload marked last.
pub(super) fn last_of(connection: &Connection, workload: &WorkloadId) -> rusqlite::Result<Option<MarkedJob>> {
    let sql = format!(
        "SELECT {JOB} FROM mark_jobs WHERE job_kind = ?1 AND job_id = ?2 ORDER BY last_ns DESC, number DESC LIMIT 1"
    );
    let parameters = (workload.kind.as_str(), workload.job.as_str());
    connection.query_row(&sql, parameters, marked_job).optional()
}

/// The job with this number.
pub(super) fn job(connection: &Connection, number: i64) -> rusqlite::Result<Option<MarkedJob>> {
    let sql = format!("SELECT {JOB} FROM mark_jobs WHERE number = ?1");
    connection.prepare(&sql)?.query_row([number], marked_job).optional()
}

fn marked_job(row: &Row<'_>) -> rusqlite::Result<MarkedJob> {
    let kind = row.get::<_, Option<String>>(3)?.and_then(|kind| JobKind::named(&kind));
    let workload = kind.zip(row.get(4)?).map(|(kind, job)| WorkloadId { kind, job });
    Ok(MarkedJob {
        number: row.get(0)?,
        uid: row.get(1)?,
        name: row.get(2)?,
        workload,
        marks: row.get(5)?,
        lost: row.get(6)?,
        refused: row.get(7)?,
        removed: row.get(8)?,
        last: Timestamp(row.get(9)?),
    })
}

/// The marks of a job after a number, in the order in which they came.
pub(super) fn read(
    connection: &Connection,
    job: i64,
    after: i64,
    limit: usize,
    window: Option<(Timestamp, Timestamp)>,
) -> rusqlite::Result<Vec<StoredMark>> {
    let (start, end) = window.map(|(start, end)| (start.0, end.0)).unzip();
    let sql = "SELECT number, recorder, at_ns, payload FROM marks
               WHERE job = ?1 AND number > ?2 AND (?4 IS NULL OR (at_ns > ?4 AND at_ns <= ?5))
               ORDER BY number LIMIT ?3";
    let mut statement = connection.prepare(sql)?;
    let marks = statement.query_map((job, after, limit, start, end), |row| {
        Ok(StoredMark {
            number: row.get(0)?,
            recorder: row.get(1)?,
            at: Timestamp(row.get(2)?),
            payload: row.get(3)?,
        })
    })?;
    marks.collect()
}

/// The bytes of all marks.
pub(super) fn bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(sum(bytes), 0) + count(*) * ?1 FROM mark_jobs";
    connection.query_row(sql, [JOB_BYTES], |row| row.get(0))
}

/// What is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Surplus {
    /// A job with all its marks.
    Job(i64),
    /// The oldest marks of a job.
    OldestOf(i64),
}

/// The next thing that has no room: a job whose last mark came before `before`; else, while there are more than
/// `max_bytes`, of the user who has the most bytes the job that has been silent the longest, or the oldest marks of the
/// only one.
pub(super) fn surplus(
    connection: &Connection,
    before: Timestamp,
    max_bytes: u64,
) -> rusqlite::Result<Option<Surplus>> {
    let old = connection
        .query_row(
            "SELECT number FROM mark_jobs WHERE last_ns < ?1 ORDER BY last_ns LIMIT 1",
            [before.0],
            |row| row.get(0),
        )
        .optional()?;
    if let Some(old) = old {
        return Ok(Some(Surplus::Job(old)));
    }
    if bytes(connection)? <= max_bytes {
        return Ok(None);
    }
    let largest =
        "SELECT uid FROM mark_jobs GROUP BY uid ORDER BY sum(bytes) + count(*) * ?1 DESC, uid LIMIT 1";
    let sql = format!(
        "SELECT number, count(*) OVER () FROM mark_jobs WHERE uid = ({largest}) ORDER BY last_ns, number LIMIT 1"
    );
    let found = connection.query_row(&sql, [JOB_BYTES], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)));
    Ok(found.optional()?.map(|(number, jobs)| match jobs {
        1 => Surplus::OldestOf(number),
        _ => Surplus::Job(number),
    }))
}

/// Removes at most `most` marks of what has no room, and a job that has no marks left.
pub(super) fn remove(connection: &Connection, surplus: Surplus, most: usize) -> rusqlite::Result<()> {
    let (job, most) = match surplus {
        Surplus::Job(job) => (job, most),
        // An eighth, so that this is not done for each new mark.
        Surplus::OldestOf(job) => {
            let marks: usize =
                connection
                    .query_row("SELECT marks FROM mark_jobs WHERE number = ?1", [job], |row| row.get(0))?;
            (job, most.min(marks / 8 + 1))
        }
    };
    let oldest = "SELECT number FROM marks WHERE job = ?1 ORDER BY number LIMIT ?2";
    let sum = format!(
        "SELECT count(*), coalesce(sum(length(CAST(payload AS BLOB))), 0) FROM marks WHERE number IN ({oldest})"
    );
    let (marks, bytes): (usize, usize) =
        connection.query_row(&sum, (job, most), |row| Ok((row.get(0)?, row.get(1)?)))?;
    connection.execute(&format!("DELETE FROM marks WHERE number IN ({oldest})"), (job, most))?;
    let sql = "UPDATE mark_jobs SET marks = marks - ?2, bytes = bytes - ?3, removed = removed + ?2
               WHERE number = ?1";
    connection.execute(sql, (job, marks, bytes + marks * MARK_BYTES))?;
    if marks < most {
        connection.execute("DELETE FROM mark_jobs WHERE number = ?1", [job])?;
    }
    Ok(())
}

/// Forgets recorders from before `before`, and the oldest of a user who has too many.
pub(super) fn forget_recorders(connection: &Connection, before: Timestamp) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM mark_recorders WHERE last_ns < ?1", [before.0])?;
    let sql = "DELETE FROM mark_recorders WHERE number IN (
                   SELECT number FROM (
                       SELECT number, row_number() OVER (PARTITION BY uid ORDER BY last_ns DESC, number DESC) AS place
                       FROM mark_recorders)
                   WHERE place > ?1)";
    connection.execute(sql, [MAX_RECORDERS]).map(drop)
}
