//! What a part lost, from its index and the profiler's own marks.

use std::{
    io::{Read, Seek},
    ops::ControlFlow,
};

use super::planes::{self, PlaneKind};
use crate::{
    loss::{self, CoreCounts, DROP_STAT, Loss, MODULES_LINE, OPS_LINE},
    reader::{Index, PlaneIndex, Reader},
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
    let has_device = index.planes.iter().any(|plane| plane.name.starts_with(planes::DEVICES));
    let launched = index.planes.iter().any(|plane| plane.launches);
    losses.extend((launched && !has_device).then(Loss::no_device_plane));
    Ok(losses)
}

fn core(index: &Index, plane: &PlaneIndex) -> CoreCounts {
    let count = |name| plane.lines_named(name).map(|line| line.events).sum();
    let lines = plane.lines_named(MODULES_LINE).chain(plane.lines_named(OPS_LINE));
    let ends = lines.filter(|line| line.events > 0);
    CoreCounts {
        plane: plane.name.clone(),
        modules: count(MODULES_LINE),
        ops: count(OPS_LINE),
        end_ps: ends.map(|line| index.session.line_start_ps(line).saturating_add(line.last_end_ps)).max(),
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
