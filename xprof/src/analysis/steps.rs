//! A core's steps as they truly were: every step that the core worked on, with the number that the host gave.
//!
//! A step's number comes from the host's marker that launched its program; where the launch lies outside the
//! trace, from the run ids if they count up with the steps without exception. Neither: the step has no number.

use std::collections::{HashMap, HashSet};

use super::{
    core::{CoreLines, places_in},
    device_events::{DeviceEvent, Interval},
    groups::Groups,
    host::{HostStep, Launch, RUN_ID_BITS},
    range_min::RangeMin,
    untaken::Untaken,
};

/// One step of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its number, where it is known.
    pub step_num: Option<i64>,
    /// Whether the number was inferred from run ids.
    pub inferred: bool,
    /// The run id of its first program; each core counts its own.
    pub run_id: Option<u64>,
    /// Its first program's execution, an index of the core's modules.
    pub module: Option<u32>,
    /// Its start on the session's time line: that of its first program, where there is one.
    pub start_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
    /// How long before its start its step event began: the core waited for its program.
    pub waited_ps: i64,
}

impl Step {
    /// Where it lies.
    pub(super) fn interval(&self) -> Interval {
        Interval::new(self.start_ps, self.duration_ps)
    }

    /// Its end.
    pub fn end_ps(&self) -> i64 {
        self.interval().end
    }
}

/// Where a core's steps come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOrigin {
    /// The core's own step line.
    StepLine,
    /// No step line: the programs that the host's step markers launched.
    Launches,
    /// Neither step line nor step markers: each program's execution by itself.
    Modules,
}

/// A core's steps and where they come from.
#[derive(Debug)]
pub(super) struct CoreSteps {
    pub(super) steps: Vec<Step>,
    pub(super) origin: StepOrigin,
    /// Program executions, or step events, that belong to no step.
    pub(super) outside: usize,
}

/// A step event, or a program's execution that may be one.
#[derive(Debug, Clone, Copy)]
struct Draft {
    at: Interval,
    waited_ps: i64,
    num: Option<i64>,
    inferred: bool,
    run_id: Option<u64>,
    program: Option<i64>,
    module: Option<u32>,
}

/// The host's part in finding steps.
pub(super) struct HostSide<'a> {
    pub(super) markers: &'a [HostStep],
    pub(super) groups: &'a Groups,
}

impl HostSide<'_> {
    /// The group that launched `module` on core `ordinal`.
    pub(super) fn group(&self, ordinal: i64, module: &DeviceEvent, mask: u64) -> Option<u32> {
        self.groups.launches.get(&launch(ordinal, module, mask)?).copied()
    }

    /// When the host enqueued `module` on core `ordinal`.
    pub(super) fn enqueued(&self, ordinal: i64, module: &DeviceEvent) -> Option<i64> {
        self.groups.enqueued.get(&launch(ordinal, module, RUN_ID_BITS)?).copied()
    }

    fn step_num(&self, ordinal: i64, module: &DeviceEvent) -> Option<i64> {
        let group = self.group(ordinal, module, RUN_ID_BITS)?;
        self.markers.get(*self.groups.markers.get(group as usize)? as usize)?.step_num
    }
}

fn launch(ordinal: i64, module: &DeviceEvent, mask: u64) -> Option<Launch> {
    Some(Launch {
        ordinal,
        queue_id: module.queue_id?,
        run_id: module.run_id? & mask,
        core_type: module.core_type,
    })
}

/// The steps of a TensorCore.
pub(super) fn tensor_core(lines: &CoreLines, ordinal: i64, host: &HostSide<'_>) -> CoreSteps {
    let nums: Vec<Option<i64>> = lines.modules.iter().map(|module| host.step_num(ordinal, module)).collect();
    let has_line = !lines.steps.is_empty();
    let mut drafts = if has_line { from_step_line(lines, &nums) } else { Vec::new() };
    let origin = match (has_line, nums.iter().any(Option::is_some)) {
        (true, _) => StepOrigin::StepLine,
        (false, true) => StepOrigin::Launches,
        (false, false) => StepOrigin::Modules,
    };
    if !has_line {
        let modules = lines.modules.iter().zip(&nums).enumerate();
        drafts.extend(modules.map(|(at, (module, &num))| from_module(at, module, num)));
    }
    infer(&mut drafts);
    let before = drafts.len();
    retain_steps(&mut drafts, origin);
    let outside = before - drafts.len();
    CoreSteps { steps: merge(drafts), origin, outside }
}

fn from_module(at: usize, module: &DeviceEvent, num: Option<i64>) -> Draft {
    Draft {
        at: module.at,
        waited_ps: 0,
        num,
        inferred: false,
        run_id: module.run_id,
        program: Some(module.metadata_id),
        module: Some(at as u32),
    }
}

/// The events of the step line, and the executions of their programs that no step event covers: a trace that
/// XProf has grouped lacks the events of steps that were launched before it began.
fn from_step_line(lines: &CoreLines, nums: &[Option<i64>]) -> Vec<Draft> {
    let mut drafts = Vec::with_capacity(lines.steps.len());
    let mut uncovered = Untaken::new(lines.modules.len());
    let mut programs = HashSet::new();
    let least_num = RangeMin::of(nums);
    for step in &lines.steps {
        let places = places_in(&lines.modules, step.at);
        let first = lines.modules[places.clone()].first();
        uncovered.take(places.clone(), |at| {
            programs.insert(lines.modules[at].metadata_id);
        });
        // An event may begin with the wait for its program; the step itself begins with the program.
        let start = first.map_or(step.at.start, |module| module.at.start);
        drafts.push(Draft {
            at: Interval { start, ..step.at },
            waited_ps: start - step.at.start,
            module: first.map(|_| places.start as u32),
            num: least_num.least(places),
            inferred: false,
            run_id: first.and_then(|module| module.run_id),
            program: first.map(|module| module.metadata_id),
        });
    }
    let uncovered = lines.modules.iter().enumerate().filter(|&(at, _)| uncovered.is_left(at));
    let uncovered = uncovered.filter(|(_, module)| programs.contains(&module.metadata_id));
    drafts.extend(uncovered.map(|(at, module)| from_module(at, module, nums[at])));
    drafts.sort_by_key(|draft| draft.at);
    drafts
}

/// The numbers of one core's steps by the run ids of their programs. A program that lies in several steps is the
/// last one's.
pub(super) fn numbers_by_run(steps: &[Step], modules: &[DeviceEvent]) -> HashMap<u64, i64> {
    let mut numbers = HashMap::new();
    let mut untaken = Untaken::new(modules.len());
    for step in steps.iter().rev().filter(|step| step.run_id.is_some()) {
        let Some(num) = step.step_num else { continue };
        untaken.take(places_in(modules, step.interval()), |at| {
            if let Some(run) = modules[at].run_id {
                numbers.entry(run).or_insert(num);
            }
        });
    }
    numbers
}

/// Run ids that count up with the step numbers: `stride` runs a step, in a fixed order of programs.
struct Counting {
    run_id: i64,
    num: i64,
    stride: i64,
    programs: HashMap<i64, Option<i64>>,
}

impl Counting {
    /// The rule that all numbered drafts follow, if they all follow one.
    fn of(drafts: &[Draft]) -> Option<Self> {
        let known: Vec<(i64, i64, Option<i64>)> = drafts
            .iter()
            .filter_map(|draft| Some((i64::try_from(draft.run_id?).ok()?, draft.num?, draft.program)))
            .collect();
        let mut firsts = known.clone();
        firsts.dedup_by_key(|first| first.1);
        let (&(run_id, num, _), rest) = firsts.split_first()?;
        let &(last_run, last_num, _) = rest.last().filter(|_| rest.len() >= 2)?;
        let stride = last_run.checked_sub(run_id)?.checked_div(last_num.checked_sub(num)?)?;
        let counting = Self { run_id, num, stride, programs: HashMap::new() };
        let starts_step = |&(run, step, _): &(i64, i64, Option<i64>)| {
            let by_num = step.checked_sub(num).and_then(|steps| steps.checked_mul(stride));
            by_num.is_some() && by_num == run.checked_sub(run_id)
        };
        if stride < 1 || !firsts.iter().all(starts_step) {
            return None;
        }
        counting.with_programs(&known)
    }

    fn with_programs(mut self, known: &[(i64, i64, Option<i64>)]) -> Option<Self> {
        for &(run, num, program) in known {
            if self.num_of(run) != Some(num) {
                return None;
            }
            let phase = self.phase(run)?;
            if *self.programs.entry(phase).or_insert(program) != program {
                return None;
            }
        }
        Some(self)
    }

    fn phase(&self, run: i64) -> Option<i64> {
        Some(run.checked_sub(self.run_id)?.rem_euclid(self.stride))
    }

    fn num_of(&self, run: i64) -> Option<i64> {
        self.num.checked_add(run.checked_sub(self.run_id)?.div_euclid(self.stride))
    }

    fn infer(&self, draft: &Draft) -> Option<i64> {
        let run = i64::try_from(draft.run_id?).ok()?;
        let phase = self.phase(run)?;
        (self.programs.get(&phase) == Some(&draft.program)).then(|| self.num_of(run))?
    }
}

fn infer(drafts: &mut [Draft]) {
    let Some(counting) = Counting::of(drafts) else { return };
    for draft in drafts.iter_mut().filter(|draft| draft.num.is_none()) {
        draft.num = counting.infer(draft).filter(|&num| num >= 0);
        draft.inferred = draft.num.is_some();
    }
}

/// Leaves out what is no step: other programs than those of the numbered steps.
fn retain_steps(drafts: &mut Vec<Draft>, origin: StepOrigin) {
    let programs: HashSet<Option<i64>> =
        drafts.iter().filter(|draft| draft.num.is_some()).map(|draft| draft.program).collect();
    match origin {
        StepOrigin::Modules => {}
        StepOrigin::Launches => drafts.retain(|draft| draft.num.is_some()),
        StepOrigin::StepLine if programs.is_empty() => {}
        StepOrigin::StepLine => {
            drafts.retain(|draft| draft.num.is_some() || programs.contains(&draft.program));
        }
    }
}

/// Consecutive drafts of one number are one step.
fn merge(drafts: Vec<Draft>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::with_capacity(drafts.len());
    for draft in drafts {
        match steps.last_mut().filter(|last| last.step_num.is_some() && last.step_num == draft.num) {
            Some(last) => {
                last.duration_ps = last.end_ps().max(draft.at.end).saturating_sub(last.start_ps);
                last.inferred &= draft.inferred;
            }
            None => steps.push(Step {
                step_num: draft.num,
                inferred: draft.inferred,
                run_id: draft.run_id,
                module: draft.module,
                start_ps: draft.at.start,
                duration_ps: draft.at.len(),
                waited_ps: draft.waited_ps,
            }),
        }
    }
    steps
}

/// The steps of a SparseCore: numbered by the run ids that its TensorCore knows, else by overlap.
pub(super) fn sparse_core(
    lines: &CoreLines,
    numbers: &HashMap<u64, i64>,
    tensor_core: Option<&[Step]>,
) -> CoreSteps {
    let (events, origin) = match lines.steps.is_empty() {
        false => (&lines.steps, StepOrigin::StepLine),
        true => (&lines.modules, StepOrigin::Modules),
    };
    let drafts = events.iter().map(|event| {
        let places = places_in(&lines.modules, event.at);
        let first = lines.modules[places.clone()].first();
        let run_id = event.run_id.or_else(|| first?.run_id);
        let num = run_id.and_then(|run| numbers.get(&run).copied());
        let num = num.or_else(|| overlapping(tensor_core?, event.at)?.step_num);
        let module = first.map(|_| places.start as u32);
        Draft { at: event.at, waited_ps: 0, num, inferred: false, run_id, program: None, module }
    });
    CoreSteps { steps: merge(drafts.collect()), origin, outside: 0 }
}

/// The step that starts last before the middle of `at`, if `at` lies mostly in it.
fn overlapping(steps: &[Step], at: Interval) -> Option<&Step> {
    let middle = at.start.saturating_add(at.len() / 2);
    let after = steps.partition_point(|step| step.start_ps <= middle);
    steps[..after].last().filter(|step| middle < step.end_ps())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(start: i64, run_id: u64, program: i64, num: Option<i64>) -> Draft {
        Draft {
            at: Interval::new(start, 10),
            waited_ps: 0,
            num,
            inferred: false,
            run_id: Some(run_id),
            program: Some(program),
            module: None,
        }
    }

    fn numbers(drafts: &[Draft]) -> Vec<Option<i64>> {
        drafts.iter().map(|draft| draft.num).collect()
    }

    fn module(start: i64, program: i64, run_id: u64) -> DeviceEvent {
        DeviceEvent {
            metadata_id: program,
            at: Interval::new(start, 10),
            run_id: Some(run_id),
            ..DeviceEvent::default()
        }
    }

    #[test]
    fn steps_that_overlap_have_all_their_programs() {
        let step = |start, duration| DeviceEvent { at: Interval::new(start, duration), ..module(0, 9, 0) };
        let lines = CoreLines {
            steps: vec![step(0, 100), step(15, 60), step(20, 5), step(200, 5)],
            modules: (0..12).map(|at| module(10 * at, at % 2, at as u64)).collect(),
            ..CoreLines::default()
        };
        let nums: Vec<Option<i64>> = (0..12).map(|at| (at > 2).then_some(20 - at)).collect();
        let drafts = from_step_line(&lines, &nums);
        let found: Vec<_> =
            drafts.iter().map(|draft| (draft.at.start, draft.waited_ps, draft.num, draft.run_id)).collect();
        let expected = [
            (0, 0, Some(11), Some(0)),
            (20, 0, None, Some(2)),
            (20, 5, Some(13), Some(2)),
            (100, 0, Some(10), Some(10)),
            (110, 0, Some(9), Some(11)),
            (200, 0, None, None),
        ];
        assert_eq!(found, expected);
        let numbers = numbers_by_run(&merge(drafts), &lines.modules);
        let of_runs: Vec<_> = (0..12).map(|run| numbers.get(&run).copied()).collect();
        let [first, inner] = [Some(11), Some(13)];
        assert_eq!(of_runs[..2], [first; 2]);
        assert_eq!(of_runs[2..8], [inner; 6], "the last step that has a program tells its number");
        assert_eq!(of_runs[8..], [first, first, Some(10), Some(9)]);
    }

    #[test]
    fn numbers_are_inferred_where_run_ids_count_steps() {
        // Two programs a step; the first step's launches lie before the trace.
        let mut drafts = vec![
            draft(0, 10, 1, None),
            draft(10, 11, 2, None),
            draft(20, 12, 1, Some(5)),
            draft(30, 13, 2, Some(5)),
            draft(40, 14, 1, Some(6)),
            draft(50, 15, 2, Some(6)),
            draft(60, 16, 1, Some(7)),
            draft(70, 17, 2, Some(7)),
            // Another program in the place of the first.
            draft(80, 18, 9, None),
        ];
        infer(&mut drafts);
        let expected = [4, 4, 5, 5, 6, 6, 7, 7].map(Some);
        assert_eq!(numbers(&drafts)[..8], expected);
        assert_eq!(drafts[8].num, None);
        let steps = merge(drafts[..8].to_vec());
        assert_eq!(steps.len(), 4);
        assert_eq!((steps[0].start_ps, steps[0].duration_ps, steps[0].inferred), (0, 20, true));
        assert!(!steps[1].inferred);
    }

    #[test]
    fn nothing_is_inferred_from_run_ids_that_skip() {
        let mut drafts = vec![
            draft(0, 10, 1, None),
            draft(10, 11, 1, Some(5)),
            draft(20, 12, 1, Some(6)),
            draft(30, 14, 1, Some(7)),
        ];
        infer(&mut drafts);
        assert_eq!(drafts[0].num, None);
        // Two known steps prove no rule.
        let mut drafts = vec![draft(0, 10, 1, None), draft(10, 11, 1, Some(5)), draft(20, 12, 1, Some(6))];
        infer(&mut drafts);
        assert_eq!(drafts[0].num, None);
    }

    #[test]
    fn programs_outside_steps_are_no_steps() {
        let mut drafts = vec![draft(0, 1, 9, None), draft(10, 2, 1, Some(5)), draft(20, 7, 1, None)];
        retain_steps(&mut drafts, StepOrigin::StepLine);
        assert_eq!(numbers(&drafts), [Some(5), None]);
        retain_steps(&mut drafts, StepOrigin::Launches);
        assert_eq!(numbers(&drafts), [Some(5)]);
    }
}
