//! What `sessions diff` prints for people: at most a screen.

use std::fmt::Write;

use xprof::{
    analysis::{DurationSummary, InputWait, Straggler, Verdict},
    comparison::{Comparison, OpChange, OpTime, Pair, Per},
};

use super::{
    diff::{ComparedSession, Diff},
    show_tables::cut,
    show_text::{bold_marks, ms, percent},
};
use crate::output::one_line;

/// How many differences of the setup, losses, programs and remarks are printed one by one.
const MOST_ROWS: usize = 6;
/// How many categories are named.
const CATEGORIES: usize = 3;
/// What is printed as 0.000 ms is no change.
const LEAST_PS: i64 = 500_000;
/// The width of what a line is about.
const HEAD: usize = 13;

/// The page, and how its heads are marked.
struct Page {
    text: String,
    bold: (&'static str, &'static str),
}

impl Page {
    fn line(&mut self, head: &str, text: &str) {
        let (on, off) = if head.is_empty() { ("", "") } else { self.bold };
        let width = HEAD.saturating_sub(head.len());
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{on}{head}{off}{:width$}{}", "", one_line(text));
    }

    /// Lines of which only the first has the head, and no more of them than a screen bears.
    fn lines(&mut self, head: &str, texts: impl IntoIterator<Item = String>) {
        let texts: Vec<String> = texts.into_iter().collect();
        for (at, text) in texts.iter().take(MOST_ROWS).enumerate() {
            self.line(if at == 0 { head } else { "" }, text);
        }
        if let Some(more) = texts.len().checked_sub(MOST_ROWS).filter(|&more| more > 0) {
            self.line("", &format!("and {more} more"));
        }
    }
}

pub(super) fn page(diff: &Diff, bold: bool) -> String {
    let mut page = Page { text: String::new(), bold: bold_marks(bold) };
    let Comparison { setup, losses, not_compared, warnings, .. } = &diff.comparison;
    page.line("A", &session(&diff.sessions.a));
    page.line("B", &session(&diff.sessions.b));
    for (name, losses) in [("A", &losses.a), ("B", &losses.b)] {
        page.lines(&format!("loss in {name}"), losses.iter().cloned());
    }
    for (name, session) in [("A", &diff.sessions.a), ("B", &diff.sessions.b)] {
        let missing = session.missing.iter().map(|part| format!("{} {}", part.file, part.why));
        page.lines(&format!("missing in {name}"), missing);
    }
    let differences =
        setup.iter().map(|one| format!("{}: {} -> {}", one.what, cut(&one.a, 60), cut(&one.b, 60)));
    page.lines("recorded", differences);
    figures(&mut page, &diff.comparison);
    operations(&mut page, &diff.comparison);
    page.lines("not compared", not_compared.iter().cloned());
    if warnings.a + warnings.b > 0 {
        let text = format!("{} of A, {} of B: `tpuscope sessions show` has them", warnings.a, warnings.b);
        page.line("warnings", &text);
    }
    page.text
}

fn session(session: &ComparedSession) -> String {
    let created = session.created.map(|created| format!(", {created}")).unwrap_or_default();
    match session.place == session.session {
        true => format!("{}{created}", session.session),
        false => format!("{} ({}){created}", session.session, session.place),
    }
}

fn figures(page: &mut Page, comparison: &Comparison) {
    if let Some(time) = &comparison.step_time {
        let of = time.program.as_ref().map(|program| format!(" of {}", cut(program, 40))).unwrap_or_default();
        page.line("step time", &durations(&time.a, &time.b, time.median_change));
        page.line(
            "",
            &format!(
                "{} -> {} {}{of}",
                time.a.count,
                time.b.count,
                if of.is_empty() { "steps" } else { "runs" }
            ),
        );
    }
    let others = comparison.programs.iter().filter(|program| {
        comparison.step_time.as_ref().and_then(|time| time.program.as_ref()) != Some(&program.program)
    });
    let others = others.map(|program| {
        format!("{}: {}", cut(&program.program, 30), durations(&program.a, &program.b, program.median_change))
    });
    page.lines("programs", others);
    page.line("first change", &comparison.first_change.text);
    if let Some(busy) = &comparison.busy {
        page.line("busy", &format!("{} -> {} of the cores' time", percent(busy.a), percent(busy.b)));
    }
    if comparison.input.a.is_some() || comparison.input.b.is_some() {
        let Pair { a, b } = comparison.input.map(input);
        page.line("input", &format!("{a} -> {b}"));
    }
    if comparison.straggler.a.is_some() || comparison.straggler.b.is_some() {
        let Pair { a, b } = comparison.straggler.map(straggler);
        page.line("straggler", &format!("{a} -> {b}"));
    }
    let collectives = comparison.collectives.iter();
    let collectives =
        collectives.map(|kind| format!("{} {} -> {}", kind.opcode, ms(kind.a_ps), ms(kind.b_ps)));
    let collectives: Vec<String> = collectives.collect();
    if !collectives.is_empty() {
        page.line("collectives", &format!("{} a step", collectives.join(", ")));
    }
}

/// Median and 95th percentile of both.
fn durations(a: &DurationSummary, b: &DurationSummary, change: f64) -> String {
    format!(
        "median {} -> {} ({}), p95 {} -> {}",
        ms(a.median_ps),
        ms(b.median_ps),
        signed_percent(change),
        ms(a.p95_ps),
        ms(b.p95_ps)
    )
}

fn signed_percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

fn input(input: &Option<InputWait>) -> String {
    match input {
        None => "unknown".to_owned(),
        Some(InputWait { share, verdict }) => {
            let verdict = match verdict {
                Verdict::Not => "not input-bound",
                Verdict::Moderately => "moderately input-bound",
                Verdict::Highly => "highly input-bound",
            };
            format!("{verdict} ({})", percent(*share))
        }
    }
}

fn straggler(straggler: &Option<Straggler>) -> String {
    match straggler {
        None => "none".to_owned(),
        Some(slow) => {
            let cores = slow.plane.as_deref().unwrap_or("(all its cores)");
            format!("{} {cores}, {} a step longer ({})", slow.host, ms(slow.excess_ps), percent(slow.share))
        }
    }
}

fn operations(page: &mut Page, comparison: &Comparison) {
    let changed: Vec<&OpChange> =
        comparison.operations.iter().filter(|op| op.change_ps.abs() >= LEAST_PS).collect();
    if changed.is_empty() {
        if !comparison.operations.is_empty() {
            page.line("operations", "all take as long in both");
        }
        return;
    }
    let head = |name: &str| format!("{name:>12}");
    let _ = writeln!(
        page.text,
        "  {:<34} {:<22} {}{}{}  per",
        "operation",
        "category",
        head("A"),
        head("B"),
        head("change")
    );
    for op in changed {
        let _ = writeln!(page.text, "  {}", operation(op));
    }
    let categories = comparison.categories.iter().filter(|one| one.a_ps != one.b_ps).take(CATEGORIES);
    let categories =
        categories.map(|one| format!("{} {} -> {}", cut(&one.category, 22), ms(one.a_ps), ms(one.b_ps)));
    let categories: Vec<String> = categories.collect();
    if !categories.is_empty() {
        let _ = writeln!(page.text, "  by category, a step: {}", one_line(&categories.join(", ")));
    }
}

fn operation(op: &OpChange) -> String {
    let time = |time: Option<OpTime>| time.map_or_else(|| "-".to_owned(), |time| ms(time.self_time_ps));
    let per = match (op.per, &op.program) {
        (Per::ProgramRun, Some(program)) => format!("run of {}", cut(program, 20)),
        (Per::ProgramRun, None) => "run".to_owned(),
        (Per::Step, _) => "step".to_owned(),
    };
    let note = match (op.a, op.b) {
        (None, _) => ", new",
        (_, None) => ", gone",
        _ => "",
    };
    format!(
        "{:<34} {:<22} {:>12}{:>12}{:>12}  {per}{note}",
        cut(&op.name, 34),
        cut(&op.category, 22),
        time(op.a),
        time(op.b),
        signed(op.change_ps)
    )
}

fn signed(ps: i64) -> String {
    let sign = if ps > 0 { "+" } else { "" };
    format!("{sign}{}", ms(ps))
}
