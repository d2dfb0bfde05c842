//! The texts of procfs. Liberal: a line that makes no sense is passed over.

use model::{catalog, metric::Descriptor};

use super::HostValue;

/// USER_HZ, 100 on every Linux that has TPUs (x86-64 and arm64).
pub(super) const TICKS_PER_SECOND: f64 = 100.0;
/// The most network devices.
const MOST_DEVICES: usize = 64;
const SECTOR: f64 = 512.0;

/// `/proc/stat`: the first line, and how many processors follow.
pub(super) fn cpu(text: &str, per_second: f64) -> Vec<HostValue> {
    const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    let mut lines = text.lines();
    let Some(total) = lines.next().and_then(|line| line.strip_prefix("cpu ")) else { return Vec::new() };
    let of_mode = |(mode, ticks): (&&str, f64)| {
        HostValue::of(&catalog::HOST_CPU_SECONDS_TOTAL, "mode", mode, ticks / per_second)
    };
    let ticks = total.split_ascii_whitespace().map_while(|word| word.parse().ok());
    let mut found: Vec<HostValue> = MODES.iter().zip(ticks).map(of_mode).collect();
    let processors = lines.take_while(|line| line.starts_with("cpu")).count();
    if processors > 0 {
        found.push(HostValue::plain(&catalog::HOST_CPUS, processors as f64));
    }
    found
}

/// `/proc/loadavg`.
pub(super) fn load(text: &str) -> Vec<HostValue> {
    let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    first.map(|load| HostValue::plain(&catalog::HOST_LOAD1, load)).into_iter().collect()
}

/// `/proc/meminfo`.
pub(super) fn memory(text: &str) -> Vec<HostValue> {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kib * 1024.0)
    };
    let swap = of("SwapTotal").zip(of("SwapFree")).map(|(total, free)| total - free);
    let values = [
        (&catalog::HOST_MEMORY_TOTAL_BYTES, of("MemTotal")),
        (&catalog::HOST_MEMORY_AVAILABLE_BYTES, of("MemAvailable")),
        (&catalog::HOST_SWAP_USED_BYTES, swap),
    ];
    values.into_iter().filter_map(|(metric, value)| Some(HostValue::plain(metric, value?))).collect()
}

/// `/proc/net/dev`: all but the loopback and the host's ends of containers' links.
pub(super) fn network(text: &str) -> Vec<HostValue> {
    const COLUMNS: [(usize, &Descriptor); 6] = [
        (0, &catalog::HOST_NETWORK_RECEIVE_BYTES_TOTAL),
        (2, &catalog::HOST_NETWORK_RECEIVE_ERRORS_TOTAL),
        (3, &catalog::HOST_NETWORK_RECEIVE_DROPS_TOTAL),
        (8, &catalog::HOST_NETWORK_TRANSMIT_BYTES_TOTAL),
        (10, &catalog::HOST_NETWORK_TRANSMIT_ERRORS_TOTAL),
        (11, &catalog::HOST_NETWORK_TRANSMIT_DROPS_TOTAL),
    ];
    let device = |line: &'_ str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<f64> = counts.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        Some((name.trim().to_owned(), counts))
    };
    let wanted =
        |(name, counts): &(String, Vec<f64>)| name != "lo" && !name.starts_with("veth") && counts.len() >= 12;
    let devices = text.lines().filter_map(device).filter(wanted).take(MOST_DEVICES);
    devices
        .flat_map(|(name, counts)| {
            COLUMNS.map(|(column, metric)| HostValue::of(metric, "device", &name, counts[column]))
        })
        .collect()
}

/// `/proc/diskstats`, of these disks.
pub(super) fn disks(text: &str, names: &[String]) -> Vec<HostValue> {
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some(name) = words.get(2).filter(|name| names.iter().any(|known| known == *name)) else {
            continue;
        };
        let number = |column: usize| words.get(column).and_then(|word| word.parse::<f64>().ok());
        let values = [
            (&catalog::HOST_DISK_READ_BYTES_TOTAL, number(5).map(|sectors| sectors * SECTOR)),
            (&catalog::HOST_DISK_WRITTEN_BYTES_TOTAL, number(9).map(|sectors| sectors * SECTOR)),
            (&catalog::HOST_DISK_IO_SECONDS_TOTAL, number(12).map(|milliseconds| milliseconds / 1000.0)),
        ];
        found.extend(
            values
                .into_iter()
                .filter_map(|(metric, value)| Some(HostValue::of(metric, "device", name, value?))),
        );
    }
    found
}

/// `/proc/pressure/*`. "Full" of the CPU means nothing for a whole host.
pub(super) fn pressure(text: &str, resource: &'static str) -> Vec<HostValue> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let microseconds: f64 = line.rsplit_once("total=")?.1.trim().parse().ok()?;
        Some(microseconds / 1e6)
    };
    let stalled = if resource == "cpu" { None } else { total("full") };
    let values = [
        (&catalog::HOST_PRESSURE_WAITING_SECONDS_TOTAL, total("some")),
        (&catalog::HOST_PRESSURE_STALLED_SECONDS_TOTAL, stalled),
    ];
    values
        .into_iter()
        .filter_map(|(metric, value)| Some(HostValue::of(metric, "resource", resource, value?)))
        .collect()
}
