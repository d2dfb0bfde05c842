//! Where the parts of a session lie on one time line, for exports.
//!
//! The parts of one job lie as they were aligned. Jobs have nothing in common but the wall clock: each is placed by
//! when its first part began. Must never align parts of different jobs by their steps.

use super::report::{HostReport, Report};

/// A part, and what to add to its times to have them on the first part's time line.
#[derive(Debug, Clone, Copy)]
pub struct PlacedPart<'a> {
    /// The part.
    pub part: &'a HostReport,
    /// What to add, in picoseconds.
    pub offset_ps: i64,
}

impl Report {
    /// Every part that could be read on one time line, and what to know of it.
    pub fn time_line(&self) -> (Vec<PlacedPart<'_>>, Option<String>) {
        let mut placed = parts_of(self, 0);
        let first = self.jobs.first().and_then(|job| job.report.hosts.first());
        let mut unknown = Vec::new();
        for job in &self.jobs {
            let began = job.report.hosts.first();
            let wall = began.and_then(|began| since(began, first?));
            if wall.is_none() {
                unknown.push(job.told_by.as_str());
            }
            placed.extend(parts_of(&job.report, wall.unwrap_or(0)));
        }
        let known =
            "the jobs are not aligned with each other: each is placed by the wall clock of its first host";
        let note = match (self.jobs.is_empty(), unknown.is_empty()) {
            (true, _) => None,
            (false, true) => Some(known.to_owned()),
            (false, false) => Some(format!(
                "{known}; of {} it is not known or more than 106 days away, so it begins with the first job",
                unknown.join("; ")
            )),
        };
        (placed, note)
    }
}

/// How much later a part began than another, by the wall clock.
fn since(part: &HostReport, first: &HostReport) -> Option<i64> {
    part.profile_start_ns?.checked_sub(first.profile_start_ns?)?.checked_mul(1000)
}

fn parts_of(report: &Report, moved_ps: i64) -> Vec<PlacedPart<'_>> {
    let offset = |at: usize| report.alignment.offsets.get(at).map_or(0, |offset| offset.offset_ps);
    let placed = |(at, part)| PlacedPart { part, offset_ps: offset(at).saturating_add(moved_ps) };
    report.hosts.iter().enumerate().map(placed).collect()
}
