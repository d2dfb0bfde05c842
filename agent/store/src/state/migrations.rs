//! The steps from an empty database to the present one. A step is only ever added: what a released program wrote has
//! to stay readable.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

/// "tpus": says whose database the file is.
pub(super) const APPLICATION_ID: i64 = 0x7470_7573;

/// One step.
struct Migration {
    sql: &'static str,
    /// The lowest version that a program must know to use a database with this step. It grows only with a step that
    /// is more than an addition.
    min_reader: u32,
}

/// Step n makes version n + 1 of the state.
const MIGRATIONS: &[Migration] = &[
    Migration { sql: include_str!("../../migrations/0001_sessions.sql"), min_reader: 1 },
    Migration { sql: include_str!("../../migrations/0002_uploads.sql"), min_reader: 1 },
    // A program that does not know the column would send the manifest of one host for that of the session.
    Migration { sql: include_str!("../../migrations/0003_parts_only.sql"), min_reader: 3 },
    Migration { sql: include_str!("../../migrations/0004_segments.sql"), min_reader: 3 },
    Migration { sql: include_str!("../../migrations/0005_job_attempts.sql"), min_reader: 3 },
    Migration { sql: include_str!("../../migrations/0006_marks.sql"), min_reader: 3 },
    Migration { sql: include_str!("../../migrations/0007_ledgers.sql"), min_reader: 3 },
    Migration { sql: include_str!("../../migrations/0008_segment_order.sql"), min_reader: 3 },
];

/// Why a database cannot be brought to the present version.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It needs a program that knows this version.
    Newer(u32),
    /// It is another program's, or lacks what every version has.
    Foreign(&'static str),
    /// SQLite refuses.
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Unusable {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// The version that this program knows.
pub(super) fn known() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

/// Brings the database to the version that this program knows. One that is newer and still usable is left as it is.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), Unusable> {
    to_version(connection, MIGRATIONS)
}

fn to_version(connection: &mut Connection, steps: &[Migration]) -> Result<(), Unusable> {
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    match (application, version) {
        (APPLICATION_ID, _) => {}
        (0, 0) if is_empty(connection)? => {}
        _ => return Err(Unusable::Foreign("it is not a database of tpuscope")),
    }
    if version > 0 {
        let needed = min_reader(connection)?;
        if usize::try_from(needed).unwrap_or(usize::MAX) > steps.len() {
            return Err(Unusable::Newer(needed));
        }
    }
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    if done >= steps.len() {
        return Ok(());
    }
    // All or none: on a full disk a new database stays an empty file, which is none.
    let transaction = Transaction::new(connection, TransactionBehavior::Immediate)?;
    for (step, number) in steps.iter().zip(1_u32..).skip(done) {
        transaction.execute_batch(step.sql)?;
        set_meta(&transaction, "min_reader", step.min_reader)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", number)?;
    }
    Ok(transaction.commit()?)
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

fn min_reader(connection: &Connection) -> Result<u32, Unusable> {
    const MISSING: Unusable = Unusable::Foreign("it does not say which programs can read it");
    if !connection.table_exists(None, "meta")? {
        return Err(MISSING);
    }
    meta(connection, "min_reader")?.ok_or(MISSING)
}

/// The value of `key` in the table `meta`.
pub(crate) fn meta<T: rusqlite::types::FromSql>(
    connection: &Connection,
    key: &str,
) -> rusqlite::Result<Option<T>> {
    connection.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Sets the value of `key` in the table `meta`.
pub(crate) fn set_meta(
    connection: &Connection,
    key: &str,
    value: impl rusqlite::ToSql,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    connection.execute(sql, (key, value)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(min_readers: &[u32]) -> Vec<Migration> {
        let more =
            ["", "CREATE TABLE later (x INTEGER) STRICT;", "CREATE TABLE much_later (x INTEGER) STRICT;"];
        let first = MIGRATIONS[0].sql;
        let sql = more.into_iter().enumerate().map(|(n, sql)| if n == 0 { first } else { sql });
        sql.zip(min_readers).map(|(sql, min_reader)| Migration { sql, min_reader: *min_reader }).collect()
    }

    #[test]
    fn a_database_goes_on_from_each_version() {
        for version in 0..=MIGRATIONS.len() {
            let mut connection = Connection::open_in_memory().unwrap();
            to_version(&mut connection, &MIGRATIONS[..version]).unwrap();
            if version > 0 {
                connection
                    .execute(
                        "INSERT INTO sessions (name, bytes, partial, owners, summary) VALUES ('a', 5, 0, '[]', '{}')",
                        [],
                    )
                    .unwrap();
            }
            migrate(&mut connection).unwrap();
            migrate(&mut connection).unwrap();
            let kept: usize =
                connection.query_row("SELECT sessions FROM totals", [], |row| row.get(0)).unwrap();
            assert_eq!(kept, version.min(1));
        }
    }

    #[test]
    fn an_older_program_uses_what_is_only_added_to_and_refuses_the_rest() {
        let mut connection = Connection::open_in_memory().unwrap();
        to_version(&mut connection, &steps(&[1, 1])).unwrap();
        to_version(&mut connection, &steps(&[1])).unwrap();
        let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version, 2);
        to_version(&mut connection, &steps(&[1, 1, 3])).unwrap();
        for old in [&steps(&[1])[..], &steps(&[1, 1])] {
            assert!(matches!(to_version(&mut connection, old), Err(Unusable::Newer(3))));
        }
    }

    #[test]
    fn a_database_of_another_program_is_not_used() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE sessions (x)").unwrap();
        assert!(matches!(migrate(&mut connection), Err(Unusable::Foreign(_))));
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        connection.execute_batch("DROP TABLE meta").unwrap();
        assert!(matches!(migrate(&mut connection), Err(Unusable::Foreign(_))));
    }
}
