//! What a part lost, from its index and the profiler's own marks.

use std::{
    io::{Read, Seek},
    ops::ControlFlow,
};

use super::planes::{self, PlaneKind};
use crate::{
    loss::{self, CoreCounts, DROP_STAT, Loss, MODULES_LINE, OPS_LINE},
    reader::{Index, LineIndex, PlaneIndex, Reader},
    wire::Error,
};

/// The losses that the file shows by itself.
pub(super) fn of<R: Read + Seek>(reader: &mut Reader<R>, index: &Index) -> Result<Vec<Loss>, Error> {
    let mut losses = Vec::new();
    for plane in &index.planes {
        if let Some(event) = plane.drop_event {
            losses.push(dropped_buffers(reader, index, plane, event)?);
        }
        let dropped = plane.stat(DROP_STAT).and_then(|count| count.int()).unwrap_or(0);
        losses.extend(Loss::dropped_traces(&plane.name, dropped.cast_unsigned()));
    }
    let cores: Vec<CoreCounts> = index
        .planes
        .iter()
        .filter(|plane| matches!(planes::kind(&plane.name, true), PlaneKind::TensorCore { .. }))
        .map(|plane| core(index, plane))
        .collect();
    losses.extend(loss::of_cores(&cores, index.session.window_ps()));
    losses.extend(Loss::size(index.len));
    let devices = index.planes.iter().filter(|plane| plane.name.starts_with(planes::DEVICES));
    let launched = index.planes.iter().any(|plane| plane.launches);
    losses.extend(Loss::no_device(launched, devices.map(events)));
    Ok(losses)
}

fn events(plane: &PlaneIndex) -> u64 {
    plane.lines.iter().map(|line| line.events).sum()
}

fn core(index: &Index, plane: &PlaneIndex) -> CoreCounts {
    let lines = |name| plane.lines_named(name).filter(|line| line.events > 0);
    let count = |name| lines(name).map(|line| line.events).sum();
    let start = |line: &LineIndex| index.session.line_start_ps(line);
    let ends = lines(MODULES_LINE).chain(lines(OPS_LINE));
    let first = |line: &LineIndex| start(line).saturating_add(line.first_ps);
    CoreCounts {
        plane: plane.name.clone(),
        modules: count(MODULES_LINE),
        ops: count(OPS_LINE),
        end_ps: ends.map(|line| start(line).saturating_add(line.last_end_ps)).max(),
        longest_pause_ps: lines(MODULES_LINE)
            .map(|line| line.longest_pause_ps.max(first(line)))
            .max()
            .unwrap_or(0),
    }
}

/// Counts the marks. They stand on a line of few events, so the long ones are not walked.
fn dropped_buffers<R: Read + Seek>(
    reader: &mut Reader<R>,
    index: &Index,
    plane: &PlaneIndex,
    mark: i64,
) -> Result<Loss, Error> {
    let (mut count, mut first_ps) = (0, None::<i64>);
    let short = |name: &str| name != OPS_LINE && name != MODULES_LINE;
    for line in plane.lines.iter().filter(|line| line.events > 0 && short(&line.name)) {
        let start = index.session.line_start_ps(line);
        reader.events(line.span, |event| {
            if event.metadata_id == mark {
                count += 1;
                let at = start.saturating_add(event.offset_ps);
                first_ps = Some(first_ps.map_or(at, |first| first.min(at)));
            }
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
    }
    Ok(Loss { count: Some(count).filter(|&count| count > 0), first_ps, ..Loss::dropped_buffers(&plane.name) })
}
