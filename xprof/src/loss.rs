//! What tells that a trace lost events, said the same way while it arrives and whenever it is read.
//!
//! Judges by what a trace shows of itself: the profiler's own marks, how the cores of one process compare, and the
//! size at which profilers stop. Cores are compared by their programs and operations alone: what else their planes
//! hold (such as asynchronous operations, which one core of a real v6e alone has) differs without any loss.
//! Must never call a difference a loss where it can have another cause: the message then says "may".

use std::fmt;

use serde::Serialize;

use crate::session::LossEntry;

/// The event by which the profiler marks that it dropped device trace buffers.
pub const DROP_EVENT: &str = "Trace Buffers Dropped";
/// The stat of a plane that counts the traces that were dropped.
pub const DROP_STAT: &str = "dropped_traces";
/// The host's event for the launch of a program on a device.
pub const LAUNCH_EVENT: &str = "DoEnqueueProgram";
/// The lines by which cores are compared.
pub const OPS_LINE: &str = "XLA Ops";
/// See [`OPS_LINE`].
pub const MODULES_LINE: &str = "XLA Modules";

/// Profilers cannot send or write a trace of 2 GiB; traces cut by that were seen from 1.9 GB on.
const NEAR_LIMIT: u64 = 1_800_000_000;
/// A core is silent at its end where it is so for longer than both of these, and so many times longer than it ever
/// was before: a core that works in bursts is only idle.
const SILENT_PS: i64 = 200_000_000_000;
const SILENT_SHARE: f64 = 0.2;
const SILENT_TIMES: i64 = 3;
/// An end so far behind the session, or as far as the session is long, is none.
const FAR_PS: i64 = 60_000_000_000_000;
/// A core has far fewer events than another where it has less than half, and the other at least so many.
const ENOUGH_EVENTS: u64 = 10;

/// What kind of loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// The profiler marks dropped buffers.
    DroppedBuffers,
    /// The profiler counts dropped traces.
    DroppedTraces,
    /// A core lacks program runs that the host launched or other cores show.
    MissingRuns,
    /// Programs ran on a core without any of their operations.
    MissingOperations,
    /// A core's events end before the session, or before those of the other cores.
    EndsEarly,
    /// A core has far fewer programs or operations than another.
    FewEvents,
    /// The trace is about as large as a trace can be.
    SizeLimit,
    /// The host launched programs on a device, and no device is in the trace.
    NoDevicePlane,
    /// The host launched programs on devices, and their planes are empty.
    NoDeviceEvents,
}

impl LossKind {
    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DroppedBuffers => "dropped_buffers",
            Self::DroppedTraces => "dropped_traces",
            Self::MissingRuns => "missing_runs",
            Self::MissingOperations => "missing_operations",
            Self::EndsEarly => "ends_early",
            Self::FewEvents => "few_events",
            Self::SizeLimit => "size_limit",
            Self::NoDevicePlane => "no_device_plane",
            Self::NoDeviceEvents => "no_device_events",
        }
    }

    /// Whether nothing but a loss explains it.
    pub fn is_certain(self) -> bool {
        !matches!(self, Self::EndsEarly | Self::FewEvents | Self::SizeLimit)
    }
}

impl LossKind {
    /// Whether it is one of the devices' work as a whole: it is none where the capture did not ask for that work.
    pub fn is_of_all_devices(self) -> bool {
        matches!(self, Self::NoDevicePlane | Self::NoDeviceEvents)
    }
}

/// A loss, certain or likely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// What was lost.
    pub kind: LossKind,
    /// The plane, where it is one's.
    pub plane: Option<String>,
    /// How many are counted, where they are.
    pub count: Option<u64>,
    /// Where on the session's time line the first mark lies, in picoseconds.
    pub first_ps: Option<i64>,
    /// In words.
    pub message: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Loss {
    fn new(kind: LossKind, plane: Option<&str>, message: String) -> Self {
        Self { kind, plane: plane.map(str::to_owned), count: None, first_ps: None, message }
    }

    /// A [`DROP_EVENT`] in `plane`.
    pub fn dropped_buffers(plane: &str) -> Self {
        let message = format!(
            "{plane}: the profiler dropped trace buffers (event `{DROP_EVENT}`): events are missing; capture a shorter window"
        );
        Self::new(LossKind::DroppedBuffers, Some(plane), message)
    }

    /// The [`DROP_STAT`] of `plane`; none where it counts nothing.
    pub fn dropped_traces(plane: &str, count: u64) -> Option<Self> {
        let message = format!(
            "{plane}: the profiler counts {count} dropped traces (stat `{DROP_STAT}`): events are missing; capture a shorter window"
        );
        (count > 0)
            .then(|| Self { count: Some(count), ..Self::new(LossKind::DroppedTraces, Some(plane), message) })
    }

    /// What a manifest keeps of it.
    pub fn to_entry(&self) -> LossEntry {
        let Self { kind, plane, count, .. } = self;
        LossEntry {
            kind: kind.as_str().to_owned(),
            certain: kind.is_certain(),
            plane: plane.clone(),
            count: *count,
        }
    }

    /// A loss of `plane`, in the words of who found it.
    pub(crate) fn of_plane(kind: LossKind, plane: &str, message: String) -> Self {
        Self::new(kind, Some(plane), message)
    }

    /// A trace of so many bytes.
    pub fn size(bytes: u64) -> Option<Self> {
        (bytes >= NEAR_LIMIT).then(|| {
            let message = format!(
                "the trace has {:.2} GB: profilers stop near 2 GB, so its end may be missing; capture a shorter window",
                bytes as f64 / 1e9
            );
            Self { count: Some(bytes), ..Self::new(LossKind::SizeLimit, None, message) }
        })
    }

    /// A trace without device planes whose host launched programs on one.
    pub fn no_device_plane() -> Self {
        let message = format!(
            "no device plane, although the host launched programs on a device (`{LAUNCH_EVENT}`): the device was not traced; check the device tracer level, and whether another profiler was active"
        );
        Self::new(LossKind::NoDevicePlane, None, message)
    }

    /// A trace with device planes that have no event, whose host launched programs.
    pub fn no_device_events() -> Self {
        let message = format!(
            "the planes of the devices have no events, although the host launched programs on a device (`{LAUNCH_EVENT}`): the device was not traced, or its trace was lost"
        );
        Self::new(LossKind::NoDeviceEvents, None, message)
    }

    /// What tells that a host launched programs on devices that show nothing; a device is the number of its events.
    pub(crate) fn no_device(launched: bool, devices: impl Iterator<Item = u64>) -> Option<Self> {
        match devices.max() {
            None => launched.then(Self::no_device_plane),
            Some(0) => launched.then(Self::no_device_events),
            Some(_) => None,
        }
    }
}

/// What is compared of a core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoreCounts {
    /// Its plane.
    pub plane: String,
    /// How many programs it ran.
    pub modules: u64,
    /// How many operations.
    pub ops: u64,
    /// Where the last of them ended on the session's time line, by the lines' clock.
    pub end_ps: Option<i64>,
    /// The longest time without a program before that, from the session's start on.
    pub longest_pause_ps: i64,
}

/// What the TensorCores of one process lost, by comparison with each other and with the session, which lasted
/// `window_ps` where that is known. At most one of a kind for each core.
pub fn of_cores(cores: &[CoreCounts], window_ps: Option<i64>) -> Vec<Loss> {
    // An end far outside the session is a fault of the file: it tells nothing of this core or another.
    let cores: Vec<CoreCounts> = cores
        .iter()
        .map(|core| match window_ps {
            Some(window)
                if core.end_ps.is_some_and(|end| end > window.saturating_add(window.max(FAR_PS))) =>
            {
                CoreCounts { end_ps: Some(window), ..core.clone() }
            }
            _ => core.clone(),
        })
        .collect();
    let active = || cores.iter().filter(|core| core.end_ps.is_some());
    active().filter_map(|core| few_events(core, &cores)).chain(active().filter_map(|core| {
        let others = active().filter(|other| other.plane != core.plane).filter_map(|other| other.end_ps).max();
        let before_window = window_ps.and_then(|window| silent(core, window, window)).map(|silent| {
            format!(
                "{}: its events end {} before the end of the session: its trace buffer may have been full, or the device idle",
                core.plane,
                time(silent)
            )
        });
        let message = before_window.or_else(|| {
            let others = others?;
            let silent = silent(core, others, window_ps.unwrap_or(others))?;
            Some(format!(
                "{}: its events end {} before those of another core: its trace buffer may have been full",
                core.plane,
                time(silent)
            ))
        });
        message.map(|message| Loss::of_plane(LossKind::EndsEarly, &core.plane, message))
    })).collect()
}

/// How long `core` is silent before `end`, if that is long.
fn silent(core: &CoreCounts, end: i64, window: i64) -> Option<i64> {
    let silent = end.saturating_sub(core.end_ps?);
    let pause = core.longest_pause_ps.saturating_mul(SILENT_TIMES);
    (silent > SILENT_PS.max(pause) && silent as f64 > SILENT_SHARE * window as f64).then_some(silent)
}

type Count = fn(&CoreCounts) -> u64;

fn few_events(core: &CoreCounts, cores: &[CoreCounts]) -> Option<Loss> {
    let most = |count: Count| cores.iter().max_by_key(|core| count(core));
    let modules = ((|core| core.modules) as Count, "program runs");
    let ops = ((|core| core.ops) as Count, "operations");
    [modules, ops].into_iter().find_map(|(count, what)| {
        let other = most(count)?;
        let (has, others) = (count(core), count(other));
        (others >= ENOUGH_EVENTS && has < others.div_ceil(2)).then(|| {
            let message = format!(
                "{}: {has} {what} where {} has {others}: events may be missing, or the core did other work",
                core.plane, other.plane
            );
            Loss { count: Some(has), ..Loss::new(LossKind::FewEvents, Some(&core.plane), message) }
        })
    })
}

fn time(ps: i64) -> String {
    format!("{:.1} s", ps as f64 / 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000_000;

    fn core(plane: &str, modules: u64, ops: u64, end_ps: i64) -> CoreCounts {
        CoreCounts { plane: plane.to_owned(), modules, ops, end_ps: Some(end_ps), longest_pause_ps: S / 10 }
    }

    fn messages(cores: &[CoreCounts], window_ps: Option<i64>) -> Vec<String> {
        of_cores(cores, window_ps).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_cores_lost_nothing() {
        let cores = [core("a", 10, 1000, 9 * S), core("b", 10, 980, 9 * S - S / 10)];
        assert_eq!(messages(&cores, Some(10 * S)), Vec::<String>::new());
        assert_eq!(messages(&cores, None), Vec::<String>::new());
        // Few runs differ by chance; a core without any event ran nothing.
        let few =
            [core("a", 3, 9, S), core("b", 1, 4, S), CoreCounts { plane: "c".into(), ..Default::default() }];
        assert_eq!(messages(&few, Some(S)), Vec::<String>::new());
    }

    #[test]
    fn a_core_that_falls_silent_or_short_is_named() {
        let cores = [core("a", 10, 1000, 9 * S), core("b", 4, 300, 5 * S)];
        let found = messages(&cores, Some(10 * S));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("b: 4 program runs where a has 10"), "{found:?}");
        assert!(found[1].starts_with("b: its events end 5.0 s before the end of the session"), "{found:?}");
        let found = messages(&[core("a", 10, 1000, 9 * S), core("b", 10, 300, 9 * S)], None);
        assert!(found[0].starts_with("b: 300 operations where a has 1000"), "{found:?}");
        let found = messages(&[core("a", 10, 1000, 9 * S), core("b", 10, 900, 6 * S)], None);
        assert!(found[0].starts_with("b: its events end 3.0 s before those of another core"), "{found:?}");
    }

    #[test]
    fn a_core_that_works_in_bursts_is_idle() {
        let core = CoreCounts { longest_pause_ps: 2 * S, ..core("a", 10, 1000, 5 * S) };
        assert_eq!(messages(std::slice::from_ref(&core), Some(10 * S)), Vec::<String>::new());
        assert_eq!(messages(&[core], Some(12 * S)).len(), 1);
    }

    #[test]
    fn kinds_have_one_name() {
        use LossKind::{
            DroppedBuffers, DroppedTraces, EndsEarly, FewEvents, MissingOperations, MissingRuns,
            NoDeviceEvents, NoDevicePlane, SizeLimit,
        };
        let all = [
            DroppedBuffers,
            DroppedTraces,
            MissingRuns,
            MissingOperations,
            EndsEarly,
            FewEvents,
            SizeLimit,
            NoDevicePlane,
            NoDeviceEvents,
        ];
        for kind in all {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }

    #[test]
    fn sizes_near_the_limit_are_told() {
        assert_eq!(Loss::size(1_799_999_999), None);
        assert!(Loss::size(1_930_000_000).unwrap().to_string().starts_with("the trace has 1.93 GB"));
        assert_eq!(Loss::dropped_traces("p", 0), None);
    }
}
