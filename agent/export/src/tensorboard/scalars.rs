//! What the ledgers say, as scalars of TensorBoard. Pure.
//!
//! The exact and the strict ledger have the tags and the steps of ml-goodput-measurement: percents at the largest productive
//! step, and the deviation of each step at that step. The proxy ledger has the same tags, but its own reasons, at the
//! seconds since the job's start.

use goodput::{answer::JobAnswer, export::tensorboard};

/// The deviations of one call: a job that is seen for the first time may have had millions of steps.
const MOST_DEVIATIONS: usize = 10_000;

const STEP_DEVIATION: &str = "step_deviation";
const GOODPUT: &str = "goodput/goodput";
const COVERAGE: &str = "goodput/coverage";
const SCHEDULING: &str = "goodput/scheduling_goodput";

/// Scalars of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalarGroup {
    /// The global step.
    pub step: i64,
    /// Tags with their values.
    pub values: Vec<(String, f64)>,
}

/// What the proxy ledger says of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyFigures<'a> {
    /// Seconds since the job's start.
    pub elapsed_seconds: u64,
    /// Those of which the state is known.
    pub known_seconds: u64,
    /// Productive share of the known seconds; absent where too few are known.
    pub goodput_ratio: Option<f64>,
    /// Known share of all seconds.
    pub coverage_ratio: f64,
    /// Share of the seconds in which all chips were open.
    pub scheduling_goodput_ratio: Option<f64>,
    /// Lost seconds by reason.
    pub lost: Vec<(&'a str, u64)>,
}

/// The scalars of a job by its marks or its log. Of step deviations only those after `last_step`, which it moves to the
/// last of them.
pub fn of_job(answer: &JobAnswer, last_step: &mut Option<i64>) -> Vec<ScalarGroup> {
    let scalars = tensorboard(answer.goodput_percent, &answer.badput_percent, answer.returned_step);
    let values = scalars.into_iter().map(|(tag, value, _)| (tag, value)).collect();
    let mut groups = vec![ScalarGroup { step: answer.returned_step, values }];
    let list = &answer.deviations;
    // Of a long job only the first and the last ones are listed.
    let known = list.step_deviations.iter().chain(&list.step_deviations_tail).next();
    let after = *last_step;
    let mut new: Vec<(i64, f64)> = known
        .into_iter()
        .flatten()
        .copied()
        .filter(|(step, _)| after.is_none_or(|after| *step > after))
        .collect();
    new.sort_by_key(|(step, _)| *step);
    new.drain(..new.len().saturating_sub(MOST_DEVIATIONS));
    *last_step = new.last().map(|(step, _)| *step).max(after);
    let deviation = |(step, value)| ScalarGroup { step, values: vec![(STEP_DEVIATION.to_owned(), value)] };
    groups.extend(new.into_iter().map(deviation));
    groups
}

/// The scalars of a job by the proxy ledger; none without a known second.
pub fn of_proxy(figures: &ProxyFigures<'_>) -> Vec<ScalarGroup> {
    if figures.known_seconds == 0 {
        return Vec::new();
    }
    let percent = |ratio: f64| ratio * 100.0;
    let ratios = [
        (GOODPUT, figures.goodput_ratio),
        (COVERAGE, Some(figures.coverage_ratio)),
        (SCHEDULING, figures.scheduling_goodput_ratio),
    ];
    let ratios = ratios.into_iter().filter_map(|(tag, ratio)| Some((tag.to_owned(), percent(ratio?))));
    // Where too little is known for one figure, it is too little for the others.
    let lost = figures.lost.iter().filter(|_| figures.goodput_ratio.is_some());
    let lost = lost.map(|(reason, seconds)| {
        (format!("badput/{reason}"), percent(as_f64(*seconds) / as_f64(figures.known_seconds)))
    });
    let step = i64::try_from(figures.elapsed_seconds).unwrap_or(i64::MAX);
    vec![ScalarGroup { step, values: ratios.chain(lost).collect() }]
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a job")]
fn as_f64(seconds: u64) -> f64 {
    seconds as f64
}

#[cfg(test)]
mod tests {
    use goodput::{
        answer::{LedgerAnswer, ask},
        entry::{LogEntry, Payload},
        exact::{Calculator, CalculatorOptions},
        export::SeriesLabels,
        log::EventLog,
        query::LedgerQuery,
        time::Nanos,
    };

    use super::*;

    /// A job with a step each 10 s.
    fn job(steps: u32) -> JobAnswer {
        let entry = |second: u32, payload: String| -> LogEntry {
            let time = Nanos((1_772_323_200 + i64::from(second)) * 1_000_000_000);
            Payload::parse(payload.as_bytes()).unwrap().entry(time, "".into())
        };
        let at = |second: u32| 1_772_323_200.0 + f64::from(second);
        let start = format!(r#"{{"job_name":"j","job_start_time":{:?}}}"#, at(0));
        let step = |step: u32| {
            let start = at(step * 10 + step % 2);
            entry(
                step * 10 + 1,
                format!(r#"{{"job_name":"j","step_count":{step},"step_start_time":{start:?}}}"#),
            )
        };
        let entries = [entry(0, start)].into_iter().chain((0..steps).map(step)).collect();
        let labels = SeriesLabels {
            location: String::new(),
            workload_id: "j".into(),
            replica_id: String::new(),
            accelerator_type: String::new(),
            cluster_name: None,
        };
        let now = at(steps * 10 + 5);
        let query = LedgerQuery::Cumulative { now, ideal_step_time: None, reuse_calculator: None };
        let log = EventLog::from_entries(entries).unwrap();
        match ask(&mut Calculator::new(CalculatorOptions::default()), &log, &query, &labels) {
            LedgerAnswer::Job(answer) => *answer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_has_the_library_s_tags_and_each_deviation_once() {
        let mut last = None;
        let first = of_job(&job(6), &mut last);
        let tags: Vec<&str> = first[0].values.iter().map(|(tag, _)| tag.as_str()).collect();
        assert_eq!(tags[..2], ["goodput/goodput", "badput/tpu_initialization"]);
        assert!(tags.contains(&"badput/data_loading_async") && tags.contains(&"badput/other"), "{tags:?}");
        let steps: Vec<i64> = first[1..].iter().map(|group| group.step).collect();
        assert!(steps.is_sorted() && steps.len() >= 4, "{steps:?}");
        assert!(first[1..].iter().all(|group| group.values[0].0 == "step_deviation"));
        assert_eq!(of_job(&job(6), &mut last).len(), 1, "nothing is written again");
        let more = of_job(&job(8), &mut last);
        assert_eq!(
            more.iter().skip(1).map(|group| group.step).collect::<Vec<_>>(),
            [steps.last().unwrap() + 1, steps.last().unwrap() + 2]
        );
    }

    #[test]
    fn the_proxy_has_no_figure_of_too_little() {
        let figures = ProxyFigures {
            elapsed_seconds: 200,
            known_seconds: 160,
            goodput_ratio: Some(0.75),
            coverage_ratio: 0.8,
            scheduling_goodput_ratio: None,
            lost: vec![("init", 40), ("stall", 0)],
        };
        let groups = of_proxy(&figures);
        let wanted = [
            ("goodput/goodput", 75.0),
            ("goodput/coverage", 80.0),
            ("badput/init", 25.0),
            ("badput/stall", 0.0),
        ];
        assert_eq!(groups[0].step, 200);
        assert_eq!(groups[0].values, wanted.map(|(tag, value)| (tag.to_owned(), value)));
        let little = ProxyFigures { goodput_ratio: None, ..figures.clone() };
        assert_eq!(of_proxy(&little)[0].values, [("goodput/coverage".to_owned(), 80.0)]);
        assert_eq!(of_proxy(&ProxyFigures { known_seconds: 0, ..figures }), []);
    }
}
