//! What XProf makes of a part beyond its steps: spans that mix both clocks, busy time per chip, and a core for a
//! host that has none. For comparison, not for judgement.

use std::collections::HashMap;

use super::{
    core::{ClassTimes, OpsWalk},
    device_events::Interval,
    groups::Groups,
    host::HostEvents,
    host_trace::Core,
    steps::Step,
    union,
    xprof_steps::GroupedCore,
};

/// XProf trims a host-only trace of more steps than this.
const UNTRIMMED: usize = 5;

/// The span of a core's profile with XProf's mix of clocks: the first start by the line's, the last end by
/// the device's.
pub(super) fn span(sparse: bool, out: &OpsWalk, grouped: &GroupedCore) -> i64 {
    if sparse {
        return 0;
    }
    let starts = out.extent.map(|line| line.start).into_iter().chain(grouped.line_start);
    let ends = out.device.map(|device| device.end).into_iter().chain(grouped.device_end);
    starts.min().zip(ends.max()).map_or(0, |(start, end)| end.saturating_sub(start))
}

/// A core's part in its chip's busy time.
pub(super) struct ChipPart {
    /// The chip, if several cores share it.
    pub(super) chip: Option<i64>,
    pub(super) hull: Option<Interval>,
    pub(super) pieces: Vec<(i64, i64)>,
    pub(super) headline_pieces: Vec<(i64, i64)>,
}

/// XProf's busy and idle times are per chip: the first core of a chip with several is given them.
pub(super) fn per_chip(cores: &mut [Core], parts: Vec<ChipPart>) {
    let mut chips: HashMap<i64, (usize, ChipPart)> = HashMap::new();
    for (at, mut part) in parts.into_iter().enumerate() {
        let Some(chip) = part.chip else { continue };
        (cores[at].busy_ps, cores[at].headline_busy_ps, cores[at].idle_ps) = (0, 0, 0);
        match chips.get_mut(&chip) {
            Some((_, known)) => {
                known.pieces.append(&mut part.pieces);
                known.headline_pieces.append(&mut part.headline_pieces);
                known.hull = known.hull.into_iter().chain(part.hull).reduce(Interval::hull);
            }
            None => {
                chips.insert(chip, (at, part));
            }
        }
    }
    for (first, part) in chips.into_values() {
        let core = &mut cores[first];
        core.busy_ps = union::length(part.pieces);
        core.headline_busy_ps = union::length(part.headline_pieces);
        core.idle_ps = part.hull.map_or(0, Interval::len).saturating_sub(core.busy_ps);
    }
}

/// The core that XProf makes up for a host without any.
pub(super) fn host_core(events: &HostEvents, groups: &Groups) -> Option<Core> {
    let mut steps: Vec<Step> = groups
        .markers
        .iter()
        .enumerate()
        .filter_map(|(group, &marker)| {
            let marker = events.markers.get(marker as usize)?;
            Some(Step {
                step_num: Some(group as i64),
                inferred: false,
                run_id: None,
                module: None,
                start_ps: marker.start_ps,
                duration_ps: marker.end_ps.saturating_sub(marker.start_ps),
                waited_ps: 0,
            })
        })
        .collect();
    if steps.len() > UNTRIMMED {
        steps.pop();
        steps.remove(0);
    }
    let core = Core {
        plane: "/host:CPU".to_owned(),
        id: 1,
        step_times: vec![ClassTimes::default(); steps.len()],
        steps,
        ..Core::default()
    };
    (!core.steps.is_empty()).then_some(core)
}
