//! The ranges of numbers, durations and sizes. A value with a meaning of its own, such as 0 for no limit, is described in
//! the comment of its setting and is not refused here.
//!
//! Must never depend on the host.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use super::{Config, checks::BrokenRule};

/// The shortest interval between two scans of all processes.
const MIN_SCAN: Duration = Duration::from_millis(250);
/// A smaller history has no room for a point of each series.
const MIN_HISTORY: u64 = 64 << 10;
const MIN_STEP: Duration = Duration::from_secs(1);
const MAX_STEP: Duration = Duration::from_secs(24 * 3600);
/// A new process of the SDK has about this size.
const MIN_SDK_MEMORY: u64 = 64 << 20;
const MIN_SDK_AGE: Duration = Duration::from_secs(60);
/// Profilers know the levels 0 to 3.
const MAX_TRACER_LEVEL: u32 = 3;
/// A shorter window costs more than it shows.
const MIN_WINDOW: Duration = Duration::from_millis(100);
const MIN_EVERY: Duration = Duration::from_secs(5);
const MIN_PAST: u64 = 1 << 20;
const MIN_CONTINUOUS: Duration = Duration::from_secs(120);
const MIN_GROWTH: u64 = 1 << 20;
const ATTEMPTS: RangeInclusive<u32> = 100..=1_000_000;
const MIN_MARKS: u64 = 1 << 20;
const MIN_KEEP_MARKS: Duration = Duration::from_secs(60);
/// A piece of an upload has this size, and waits for its turn within the idle timeout.
const MIN_UPLOAD_RATE: u64 = 64 << 10;
const MAX_UPLOADS: u16 = 16;
const MIN_UPLOAD_IDLE: Duration = Duration::from_secs(1);
/// Cloud Monitoring refuses more than one point of a series in 5 s.
const MIN_EXPORT: Duration = Duration::from_secs(10);
const MAX_EXPORT: Duration = Duration::from_secs(3600);
const MAX_WINDOWS: usize = 8;
const MIN_EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// A few files of one job.
const MIN_EVENT_FILES: u64 = 16 << 20;

/// The settings that are out of their range.
pub(super) fn out_of_range(config: &Config) -> Vec<BrokenRule> {
    let Config {
        sampler,
        libtpu,
        device,
        workload,
        capture,
        recorder,
        jobs,
        marks,
        upload,
        destination,
        export_cloud_monitoring: monitoring,
        export_tensorboard,
        ..
    } = config;
    // In the label of a series, a window has whole seconds.
    let windows: BTreeSet<u64> =
        monitoring.rolling_windows.iter().map(|size| size.get().as_secs()).filter(|size| *size > 0).collect();
    let (window, every) = (recorder.window.get(), recorder.every.get());
    let ids: BTreeSet<u16> = device.extra.iter().map(|chip| chip.device).collect();
    let step = sampler.history_step.get();
    let rules: [(bool, &[&str], &str); _] = [
        (sampler.stale_after == 0, &["sampler.stale_after"], "sampler.stale_after is 0: expected 1 or more"),
        (
            (1..MIN_HISTORY).contains(&sampler.history.get()),
            &["sampler.history"],
            "sampler.history is under 64KiB: expected 64KiB to 1GiB, or 0B for no history",
        ),
        (
            !(MIN_STEP..=MAX_STEP).contains(&step),
            &["sampler.history_step"],
            "sampler.history_step is out of its range: expected 1s to 1d",
        ),
        (
            workload.scan_interval.get() < MIN_SCAN,
            &["workload.scan_interval"],
            "workload.scan_interval is under 250ms: expected 250ms or more",
        ),
        (
            libtpu.max_memory.get() < MIN_SDK_MEMORY,
            &["libtpu.max_memory"],
            "libtpu.max_memory is under 64MiB: expected 64MiB or more",
        ),
        (
            libtpu.max_age.get() < MIN_SDK_AGE,
            &["libtpu.max_age"],
            "libtpu.max_age is under 1m: expected 1m or more",
        ),
        (
            ids.len() < device.extra.len(),
            &["device.extra"],
            "device.extra has a `device` id twice: expected one chip for each id",
        ),
        (
            capture.max_size.get() == 0,
            &["capture.max_size"],
            "capture.max_size is 0: expected more than 0B, because every trace would be refused",
        ),
        (
            capture.connect_timeout.get().is_zero(),
            &["capture.connect_timeout"],
            "capture.connect_timeout is 0: expected more than 0s",
        ),
        (
            capture.probe_timeout.get().is_zero(),
            &["capture.probe_timeout"],
            "capture.probe_timeout is 0: expected more than 0s",
        ),
        (
            capture.max_tracer_level > MAX_TRACER_LEVEL,
            &["capture.max_tracer_level"],
            "capture.max_tracer_level is over 3: expected 0 to 3",
        ),
        (
            window < MIN_WINDOW || window > every / 2 || !window.subsec_nanos().is_multiple_of(1_000_000),
            &["recorder.window", "recorder.every"],
            "recorder.window is out of its range: expected whole milliseconds, 100ms or more and at most half of \
             recorder.every",
        ),
        (every < MIN_EVERY, &["recorder.every"], "recorder.every is under 5s: expected 5s or more"),
        (
            window <= every / 2 && recorder.max_window.get() < window,
            &["recorder.max_window", "recorder.window"],
            "recorder.max_window is shorter than recorder.window: expected at least the same",
        ),
        (
            recorder.keep.get() < every,
            &["recorder.keep", "recorder.every"],
            "recorder.keep is shorter than recorder.every: expected at least the same",
        ),
        (
            recorder.keep_continuous.get() < MIN_CONTINUOUS,
            &["recorder.keep_continuous"],
            "recorder.keep_continuous is under 2m: expected 2m or more, the longest interval of drains",
        ),
        (
            recorder.max_growth.get() < MIN_GROWTH,
            &["recorder.max_growth"],
            "recorder.max_growth is under 1MiB: expected 1MiB or more, because the memory of every process changes a little",
        ),
        (
            recorder.max_slowdown.share() <= 0.0,
            &["recorder.max_slowdown"],
            "recorder.max_slowdown is 0%: expected 1% or more, because the steps of every job differ a little",
        ),
        (
            recorder.max_size.get() < MIN_PAST,
            &["recorder.max_size"],
            "recorder.max_size is under 1MiB: expected 1MiB or more",
        ),
        (marks.max_rate == 0, &["marks.max_rate"], "marks.max_rate is 0: expected 1 or more"),
        (marks.keep.get() < MIN_KEEP_MARKS, &["marks.keep"], "marks.keep is under 1m: expected 1m or more"),
        (
            (1..MIN_MARKS).contains(&marks.max_size.get()),
            &["marks.max_size"],
            "marks.max_size is under 1MiB: expected 1MiB or more, or 0B to take no marks",
        ),
        (
            !ATTEMPTS.contains(&jobs.max_attempts),
            &["jobs.max_attempts"],
            "jobs.max_attempts is out of its range: expected 100 to 1000000",
        ),
        (
            destination.name_twice(),
            &["destination"],
            "destination has a name twice: expected one destination for each name",
        ),
        (
            destination.credentials_of_a_folder(),
            &["destination"],
            "destination: a file:// URL has no credentials: expected `credentials` only with a gs:// URL",
        ),
        (
            (1..MIN_UPLOAD_RATE).contains(&upload.max_rate.get()),
            &["upload.max_rate"],
            "upload.max_rate is under 64KiB: expected 64KiB or more, or 0B for no limit",
        ),
        (
            !(1..=MAX_UPLOADS).contains(&upload.parallel),
            &["upload.parallel"],
            "upload.parallel is out of its range: expected 1 to 16",
        ),
        (
            upload.idle_timeout.get() < MIN_UPLOAD_IDLE,
            &["upload.idle_timeout"],
            "upload.idle_timeout is under 1s: expected 1s or more",
        ),
        (
            !(MIN_EXPORT..=MAX_EXPORT).contains(&monitoring.interval.get()),
            &["export.cloud_monitoring.interval"],
            "export.cloud_monitoring.interval is out of its range: expected 10s to 1h",
        ),
        (
            windows.len() != monitoring.rolling_windows.len() || windows.len() > MAX_WINDOWS,
            &["export.cloud_monitoring.rolling_windows"],
            "export.cloud_monitoring.rolling_windows has a window that cannot be sent: expected at most 8 different ones of \
             1s or more",
        ),
        (
            export_tensorboard.interval.get() < MIN_EXPORT_INTERVAL,
            &["export.tensorboard.interval"],
            "export.tensorboard.interval is under 1s: expected 1s or more",
        ),
        (
            export_tensorboard.max_size.get() < MIN_EVENT_FILES,
            &["export.tensorboard.max_size"],
            "export.tensorboard.max_size is under 16MiB: expected 16MiB or more",
        ),
    ];
    let broken = rules.into_iter().filter(|(broken, ..)| *broken);
    broken.map(|(_, settings, message)| BrokenRule { settings, message }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Layers, load};

    /// The faults of one setting with this value.
    fn faults(setting: &str) -> Vec<String> {
        let flags = [setting.to_owned()];
        load(&Layers { flags: &flags, ..Layers::default() })
            .map_or_else(|errors| errors.into_all().map(|fault| fault.to_string()).collect(), |_| Vec::new())
    }

    #[test]
    fn a_value_out_of_its_range_is_refused_with_the_range() {
        let extra =
            "device.extra=[{device=0x99, name='a', node='vfio'}, {device=0x99, name='b', node='accel'}]";
        let key_of_a_folder = "destination=[{name='a', url='file:///mnt', credentials='/key.json'}]";
        for (bad, expected) in [
            ("sampler.stale_after=0", "expected 1 or more"),
            ("sampler.history=1B", "expected 64KiB to 1GiB"),
            ("sampler.history_step=0s", "expected 1s to 1d"),
            ("sampler.history_step=2d", "expected 1s to 1d"),
            ("workload.scan_interval=0s", "expected 250ms or more"),
            ("libtpu.max_memory=0B", "expected 64MiB or more"),
            ("libtpu.max_age=0s", "expected 1m or more"),
            ("capture.max_size=0B", "expected more than 0B"),
            ("capture.connect_timeout=0s", "expected more than 0s"),
            ("capture.probe_timeout=0s", "expected more than 0s"),
            ("capture.max_tracer_level=9", "expected 0 to 3"),
            ("recorder.window=50ms", "expected whole milliseconds, 100ms or more"),
            ("recorder.window=40s", "at most half of recorder.every"),
            ("recorder.window=100.5ms", "expected whole milliseconds"),
            ("recorder.every=4999ms", "expected 5s or more"),
            ("recorder.max_window=1s", "expected at least the same"),
            ("recorder.keep=10s", "expected at least the same"),
            ("recorder.keep_continuous=10s", "expected 2m or more"),
            ("recorder.max_growth=0B", "expected 1MiB or more"),
            ("recorder.max_slowdown=0%", "expected 1% or more"),
            ("recorder.max_size=0B", "expected 1MiB or more"),
            ("jobs.max_attempts=99", "expected 100 to 1000000"),
            ("marks.max_rate=0", "expected 1 or more"),
            ("marks.keep=59s", "expected 1m or more"),
            ("marks.max_size=1B", "expected 1MiB or more"),
            ("marks.socket=marks.sock", "expected an absolute path"),
            (extra, "expected one chip for each id"),
            ("upload.max_rate=1B", "expected 64KiB or more"),
            ("upload.parallel=0", "expected 1 to 16"),
            ("upload.parallel=17", "expected 1 to 16"),
            ("upload.idle_timeout=0s", "expected 1s or more"),
            ("export.cloud_monitoring.interval=9s", "expected 10s to 1h"),
            ("export.cloud_monitoring.interval=2h", "expected 10s to 1h"),
            ("export.cloud_monitoring.rolling_windows=['500ms']", "expected at most 8 different ones"),
            ("export.cloud_monitoring.rolling_windows=['1.2s', '1.9s']", "expected at most 8 different ones"),
            ("export.cloud_monitoring.endpoint=http://10.0.0.1", "expected https://HOST"),
            ("export.cloud_monitoring.credentials=key.json", "expected an absolute path"),
            ("export.tensorboard.interval=999ms", "expected 1s or more"),
            ("export.tensorboard.max_size=15MiB", "expected 16MiB or more"),
            ("export.tensorboard.directory=boards", "expected an absolute path"),
            (key_of_a_folder, "expected `credentials` only with a gs:// URL"),
            ("api.socket=relative.sock", "expected an absolute path"),
            ("paths.procfs=sys", "expected an absolute path"),
            ("paths.sysfs=", "expected an absolute path"),
            ("libtpu.path=libtpu.so", "expected an absolute path"),
            ("device.tpu_env=tpu-env", "expected an absolute path"),
        ] {
            let faults = faults(bad);
            assert_eq!(faults.len(), 1, "{bad}: {faults:?}");
            assert!(faults[0].starts_with(&format!("--set {bad}: ")), "{faults:?}");
            assert!(faults[0].contains(expected), "{faults:?}");
        }
    }

    #[test]
    fn a_zero_with_a_meaning_is_accepted() {
        for good in [
            "sampler.history=0B",
            "sampler.history=64KiB",
            "agent.stop_timeout=0s",
            "store.max_age=0s",
            "store.max_size=0B",
            "capture.max_tracer_level=0",
            "marks.max_size=0B",
            "marks.socket=",
            "device.tpu_env=",
        ] {
            assert_eq!(faults(good), [""; 0], "{good}");
        }
    }
}
