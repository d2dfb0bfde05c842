//! Marks of programs, and what the agent says of a job from them.

use std::fmt;

use marks::mark_line::MarkFault;
use tonic::{Code, Status};

use super::connection;
use crate::{exit::Exit, failure::Failure};

/// The agent has no answer about a job: it has no marks of it, too many, or several jobs are meant.
pub(crate) fn no_marked_answer(status: &Status) -> Failure {
    match status.code() {
        Code::NotFound => Failure::new(Exit::NotFound, status.message()).remedy(
            "a program sends marks with `tpuscope.marks` of Python or with `tpuscope mark` (docs/python.md); a log of Cloud \
             Logging is read with --from-log",
        ),
        Code::OutOfRange => Failure::new(Exit::TooLarge, status.message())
            .remedy("ask about a part of the job with --start and --end"),
        Code::FailedPrecondition => {
            Failure::new(Exit::Usage, status.message()).remedy("name one of them with --job, and its user with --user")
        }
        _ => connection::refused(status),
    }
}

/// The ledger has no answer. `gaps` says what it lacks.
pub(crate) fn no_answer_of_marks(what: impl fmt::Display, gaps: &[String], strict: bool) -> Failure {
    let failure = Failure::new(Exit::BadInput, what);
    match (gaps.first(), strict) {
        (Some(gap), true) => failure.remedy(gap),
        (Some(gap), false) => failure.remedy(format!("{gap}; --strict answers from what is there")),
        (None, true) => failure.remedy("mark the start of the job and its steps (docs/python.md)"),
        (None, false) => failure.remedy(
            "mark the start of the job and its steps (docs/python.md), or add --strict, which needs less",
        ),
    }
}

/// The agent refused a mark. `fault` is what is wrong, as in the label of its metric; an older agent does not say it.
pub(crate) fn refused_mark(reason: &str, fault: &str) -> Failure {
    let failure = Failure::new(Exit::BadInput, format_args!("the mark was refused: {reason}"));
    let is = |known: MarkFault| fault == known.as_str();
    match () {
        () if is(MarkFault::NoJob) => failure.remedy("name the job with --job"),
        () if is(MarkFault::JobName) => failure.remedy("give --job another name"),
        () if is(MarkFault::TooLong) => failure.remedy("shorten NAME"),
        () if is(MarkFault::Value) => {
            failure.remedy("a step is a number below 2^53; check the clock of the host")
        }
        () => failure,
    }
}

/// STEP without a number.
pub(crate) fn step_without_number() -> Failure {
    Failure::new(Exit::Usage, "a step has a number").remedy("add --step N")
}

/// A number for something else.
pub(crate) fn number_without_step(name: &str) -> Failure {
    Failure::new(Exit::Usage, format_args!("--step is for STEP, not for {name}"))
        .remedy("write `tpuscope mark STEP --step N`, or leave --step out")
}

/// The end of a step.
pub(crate) fn end_of_step() -> Failure {
    Failure::new(Exit::Usage, "the end of a step is not marked: it ends when the next one starts")
        .remedy("leave --end out")
}

/// A phase of a job that neither starts nor ends.
pub(crate) fn phase_without_end(name: &str) -> Failure {
    Failure::new(Exit::Usage, format_args!("{name} starts or ends")).remedy("add --start or --end")
}
