//! Whose a session is and how it was recorded, as text: lines of `sessions show`, cells of `sessions list`.

use std::{
    io::{self, Write},
    time::Duration,
};

use jiff::Timestamp;
use xprof::session::{PartJob, SessionContext, SessionUser, TracerLevels};

use super::show_text::bold_marks;
use crate::output::one_line;

/// What is not known.
const UNKNOWN: &str = "-";

/// Prints what is known, a line for each kind.
pub(super) fn print(
    out: &mut impl Write,
    created: Option<Timestamp>,
    context: &SessionContext,
    bold: bool,
) -> io::Result<()> {
    let (on, off) = bold_marks(bold);
    let created = created.map(|created| created.to_string()).unwrap_or_default();
    let lines = [
        ("created", created),
        ("job", all(context.jobs.iter().map(job))),
        ("command", all(context.commands.iter().cloned())),
        ("user", all(context.users.iter().map(user_with_id))),
        ("window", window(context)),
        ("tracers", tracers(context)),
        ("versions", versions(context)),
    ];
    for (what, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
        writeln!(out, "{on}{what}{off}{:width$}{}", "", one_line(text), width = 11 - what.len())?;
    }
    Ok(())
}

fn all(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

fn job(job: &PartJob) -> String {
    let attempt = job
        .attempt
        .filter(|&attempt| attempt > 0)
        .map(|attempt| format!(" attempt {attempt}"))
        .unwrap_or_default();
    let name = job.name.as_ref().filter(|name| **name != job.id).map(|name| format!(" ({name})"));
    format!("{} {}{attempt}{}", job.kind, job.id, name.unwrap_or_default())
}

fn user_with_id(user: &SessionUser) -> String {
    match (&user.name, user.uid) {
        (Some(name), Some(uid)) if *name != uid.to_string() => format!("{name} ({uid})"),
        _ => user_name(user),
    }
}

fn user_name(user: &SessionUser) -> String {
    user.name.clone().or_else(|| user.uid.map(|uid| uid.to_string())).unwrap_or_default()
}

fn window(context: &SessionContext) -> String {
    let requested = context.requested_ns.map(|ns| format!("{} requested", seconds(ns)));
    let recorded = context.recorded_ns.map(|ns| format!("{} recorded", seconds(ns)));
    all(requested.into_iter().chain(recorded))
}

fn seconds(ns: u64) -> String {
    format!("{:.3} s", Duration::from_nanos(ns).as_secs_f64())
}

fn tracers(context: &SessionContext) -> String {
    let levels = context.tracer_levels.map(|levels| {
        let TracerLevels { host, device, python } = levels;
        format!("host {host}, device {device}, python {python}")
    });
    all(levels.into_iter().chain(Some(options(context)).filter(|options| !options.is_empty())))
}

fn options(context: &SessionContext) -> String {
    all(context.options.iter().map(|(name, value)| format!("{name}={value}")))
}

fn versions(context: &SessionContext) -> String {
    all(context.versions.iter().map(|(library, versions)| {
        format!("{library} {}", versions.iter().cloned().collect::<Vec<_>>().join(" and "))
    }))
}

/// The cells of every table of sessions: job, user, length of the window that was asked for.
pub(super) fn cells(context: &SessionContext) -> [String; 3] {
    let jobs = context.jobs.iter().map(|job| format!("{} {}", job.kind, job.id));
    let job = first(jobs).or_else(|| first(context.commands.iter().cloned()));
    // Windows are asked for in whole milliseconds.
    let requested = context.requested_ns.map(|ns| model::unit::Duration::from_millis(ns / 1_000_000));
    [
        job.unwrap_or_else(unknown),
        first(context.users.iter().map(user_name)).unwrap_or_else(unknown),
        requested.map_or_else(unknown, |requested| requested.to_string()),
    ]
}

/// The further cells of a wide table: recorded window, tracer levels, options, versions.
pub(super) fn wide_cells(context: &SessionContext) -> [String; 4] {
    let or_unknown = |text: String| if text.is_empty() { unknown() } else { text };
    [
        context.recorded_ns.map_or_else(unknown, seconds),
        context
            .tracer_levels
            .map_or_else(unknown, |levels| format!("{}/{}/{}", levels.host, levels.device, levels.python)),
        or_unknown(options(context)),
        or_unknown(versions(context)),
    ]
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// The first of several, and how many more there are.
fn first(mut texts: impl Iterator<Item = String>) -> Option<String> {
    let first = texts.next()?;
    Some(match texts.count() {
        0 => first,
        more => format!("{first} +{more}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> SessionContext {
        serde_json::from_value(serde_json::json!({
            "jobs": [{"kind": "slurm", "id": "77", "name": "train", "attempt": 1}, {"kind": "slurm", "id": "78", "attempt": 0}],
            "commands": ["python"],
            "users": [{"uid": 1000, "name": "ada"}],
            "requested_ns": 2_000_000_000_u64,
            "recorded_ns": 2_003_000_000_u64,
            "tracer_levels": {"host": 2, "device": 1, "python": 0},
            "options": {"tpu_trace_mode": "TRACE_COMPUTE"},
            "versions": {"jaxlib": ["0.10.1", "0.10.2"], "libtpu": ["0.0.52"]},
        }))
        .unwrap()
    }

    #[test]
    fn people_read_what_is_known() {
        let mut out = Vec::new();
        print(&mut out, Some("2026-03-04T05:06:07Z".parse().unwrap()), &context(), false).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "created    2026-03-04T05:06:07Z\n\
             job        slurm 77 attempt 1 (train), slurm 78\n\
             command    python\n\
             user       ada (1000)\n\
             window     2.000 s requested, 2.003 s recorded\n\
             tracers    host 2, device 1, python 0, tpu_trace_mode=TRACE_COMPUTE\n\
             versions   jaxlib 0.10.1 and 0.10.2, libtpu 0.0.52\n"
        );
        let mut out = Vec::new();
        print(&mut out, None, &SessionContext::default(), false).unwrap();
        assert_eq!(out, b"", "what is not known is not mentioned");
    }

    #[test]
    fn a_table_has_the_first_of_several() {
        assert_eq!(cells(&context()), ["slurm 77 +1", "ada", "2s"]);
        assert_eq!(
            wide_cells(&context()),
            ["2.003 s", "2/1/0", "tpu_trace_mode=TRACE_COMPUTE", "jaxlib 0.10.1 and 0.10.2, libtpu 0.0.52"]
        );
        assert_eq!(cells(&SessionContext::default()), ["-"; 3]);
        assert_eq!(wide_cells(&SessionContext::default()), ["-"; 4]);
        let bare = SessionContext { jobs: Vec::new(), ..context() };
        assert_eq!(cells(&bare)[0], "python", "a bare process is called by its command");
    }
}
