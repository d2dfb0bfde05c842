//! What a trace says of the processes of the host that are not in it: the warnings of its XSpace.
//!
//! Warnings are the last field that is added to a trace that is passed on: the bytes before them stay as they are. Must never
//! lose a process of the caller without a word.

use ::sessions::target::Targets;
use bytes::Bytes;
use model::untrusted::clean;
use prost::Message;
use proto::tensorflow::profiler::XSpace;
use xprof::session::Missing;

/// The most warnings of a trace, and characters of each.
const MAX_WARNINGS: usize = 100;
const MAX_WARNING: usize = 500;

/// The warnings of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Remarks(Vec<String>);

impl Remarks {
    /// Of a session: the processes that have no part, and what else there is to know.
    pub(super) fn new(missing: &[Missing], others: impl IntoIterator<Item = String>) -> Self {
        let missing = missing.iter().map(|missing| {
            format!("{} is missing: {}", missing.process.as_deref().unwrap_or(&missing.host), missing.why)
        });
        let mut all: Vec<String> = missing.chain(others).map(|text| clean(&text, MAX_WARNING)).collect();
        if all.len() > MAX_WARNINGS {
            let more = all.len() - MAX_WARNINGS;
            all.truncate(MAX_WARNINGS);
            all.push(format!("{more} more warnings are not shown"));
        }
        Self(all)
    }

    /// Of these targets before they are captured.
    pub(super) fn before(targets: &Targets) -> Self {
        Self::new(&targets.missing, targets.warnings.iter().cloned().chain(beside(targets)))
    }

    pub(super) fn texts(&self) -> &[String] {
        &self.0
    }

    /// The field of an XSpace that has them, to follow the bytes of a trace: in protobuf, fields of one message add up.
    pub(super) fn field(&self) -> Bytes {
        XSpace { warnings: self.0.clone(), ..XSpace::default() }.encode_to_vec().into()
    }
}

/// What the manifest of a session does not say of its targets.
pub(super) fn beside(targets: &Targets) -> Vec<String> {
    let notes = targets.targets.iter().flat_map(|target| target.notes.iter().cloned());
    notes.chain(targets.left_out()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(why: &str) -> Missing {
        Missing { host: "h".to_owned(), process: Some("pid 7 (python)".to_owned()), why: why.to_owned() }
    }

    #[test]
    fn processes_that_are_not_in_a_trace_are_its_last_warnings() {
        let targets = Targets {
            missing: vec![missing("no profiler\nof it")],
            warnings: vec!["pid 8 was left out: old".to_owned()],
            denied: 2,
            ..Targets::default()
        };
        let trace =
            XSpace { hostnames: vec!["h".to_owned()], warnings: vec!["own".to_owned()], ..XSpace::default() };
        let added = [&trace.encode_to_vec()[..], &Remarks::before(&targets).field()].concat();
        let wanted = [
            "own",
            "pid 7 (python) is missing: no profiler\u{fffd}of it",
            "pid 8 was left out: old",
            "left out, because not yours: 2 processes",
        ];
        let warnings = wanted.map(str::to_owned).to_vec();
        assert_eq!(XSpace::decode(&added[..]), Ok(XSpace { warnings, ..trace }));
    }

    #[test]
    fn a_trace_of_all_processes_is_not_changed_and_warnings_are_bounded() {
        assert!(Remarks::before(&Targets::default()).field().is_empty());
        let many = Remarks::new(&[], (0..1000).map(|_| "w".repeat(9000)));
        assert_eq!(many.texts().len(), MAX_WARNINGS + 1);
        assert_eq!(many.texts()[MAX_WARNINGS], "900 more warnings are not shown");
        assert!(many.field().len() < 1 << 16, "{}", many.field().len());
    }
}
