//! How much of the steps was spent waiting for input.

use serde::Serialize;

use super::{
    Rules,
    align::Aligned,
    category::Class,
    core::{of_class, worked},
    host_trace::HostTrace,
};

/// The part of the steps that waited for input.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct InputWait {
    /// In parts of the steps' time.
    pub share: f64,
    /// How it is called.
    pub verdict: Verdict,
}

/// XProf's words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Below 5 %.
    Not,
    /// Below 20 %.
    Moderately,
    /// 20 % and above.
    Highly,
}

/// The parts of one step over its cores.
#[derive(Debug, Default, Clone, Copy)]
struct Parts {
    infeed: i64,
    rest: i64,
    /// Whether anything tells of input: an infeed, or a wait of the host for it.
    is_told: bool,
}

/// Judges the steps; `None` where there is none on a device, or where nothing in them tells of input: an input
/// pipeline that the trace does not show may be all that the steps wait for. XProf calls that not input-bound. A step's infeed is that of the core that waited longest; where there is no infeed, the
/// time that the device idled while the host waited for input counts.
pub(super) fn judge(hosts: &[HostTrace], aligned: &Aligned, rules: Rules) -> Option<InputWait> {
    let mut sum = Parts::default();
    for steps in &aligned.steps {
        let parts = parts(hosts, steps, rules);
        sum.infeed = sum.infeed.saturating_add(parts.infeed);
        sum.rest = sum.rest.saturating_add(parts.rest);
        sum.is_told |= parts.is_told;
    }
    let all = sum.infeed.saturating_add(sum.rest);
    if all <= 0 || (rules == Rules::True && !sum.is_told) {
        return None;
    }
    let share = sum.infeed as f64 / all as f64;
    let verdict = match share {
        share if share < 0.05 => Verdict::Not,
        share if share < 0.20 => Verdict::Moderately,
        _ => Verdict::Highly,
    };
    Some(InputWait { share, verdict })
}

fn parts(hosts: &[HostTrace], steps: &[super::align::StepRef], rules: Rules) -> Parts {
    let (mut infeed, mut outfeed, mut cores) = (0i64, 0i64, 0i64);
    let (mut compute, mut shortest, mut collective) = (i64::MAX, i64::MAX, 0i64);
    let mut host_input = 0;
    for step in steps {
        let trace = &hosts[step.host];
        let core = &trace.cores[step.core];
        let (Some(times), Some(at)) = (core.step_times.get(step.step), core.steps.get(step.step)) else {
            continue;
        };
        let own = |class| of_class(times, class);
        infeed = infeed.max(own(Class::Infeed));
        outfeed = outfeed.saturating_add(own(Class::Outfeed));
        collective = collective.max(own(Class::Collective));
        cores += 1;
        let aside = [Class::Infeed, Class::Outfeed, Class::HostTransfer];
        let working = aside.into_iter().fold(worked(times), |rest, class| rest.saturating_sub(own(class)));
        compute = compute.min(working);
        shortest = shortest.min(at.duration_ps.saturating_add(at.waited_ps));
        let waited = at.step_num.and_then(|num| trace.input_ps.get(&num)).copied().unwrap_or(0);
        host_input = host_input.max(waited);
    }
    if cores == 0 {
        return Parts::default();
    }
    let outfeed = outfeed / cores;
    let idle = shortest.saturating_sub(compute.saturating_add(infeed).saturating_add(outfeed)).max(0);
    let waited = if infeed == 0 { host_input.min(idle) } else { 0 };
    // XProf adds the collectives although compute already holds them.
    let twice = if rules == Rules::Xprof { collective } else { 0 };
    let rest = [outfeed, idle.saturating_sub(waited), twice];
    let rest = rest.into_iter().fold(compute, i64::saturating_add);
    Parts { infeed: infeed.saturating_add(waited), rest, is_told: infeed > 0 || host_input > 0 }
}
