//! The texts of procfs. Liberal: a line that makes no sense is passed over.

use super::Found;

/// USER_HZ, 100 on every Linux that has TPUs (x86-64 and arm64).
pub(super) const TICKS_PER_SECOND: f64 = 100.0;
/// The most network devices.
const MOST_DEVICES: usize = 64;
const SECTOR: f64 = 512.0;

/// `/proc/stat`: the first line, and how many processors follow.
pub(super) fn cpu(text: &str, per_second: f64) -> Vec<Found> {
    const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    let mut lines = text.lines();
    let Some(total) = lines.next().and_then(|line| line.strip_prefix("cpu ")) else { return Vec::new() };
    let of_mode =
        |(mode, ticks): (&&str, f64)| Found::of("host_cpu_seconds_total", "mode", mode, ticks / per_second);
    let ticks = total.split_ascii_whitespace().map_while(|word| word.parse().ok());
    let mut found: Vec<Found> = MODES.iter().zip(ticks).map(of_mode).collect();
    let processors = lines.take_while(|line| line.starts_with("cpu")).count();
    if processors > 0 {
        found.push(Found::plain("host_cpus", processors as f64));
    }
    found
}

/// `/proc/loadavg`.
pub(super) fn load(text: &str) -> Vec<Found> {
    let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    first.map(|load| Found::plain("host_load1", load)).into_iter().collect()
}

/// `/proc/meminfo`.
pub(super) fn memory(text: &str) -> Vec<Found> {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kib * 1024.0)
    };
    let swap = of("SwapTotal").zip(of("SwapFree")).map(|(total, free)| total - free);
    let values = [
        ("host_memory_total_bytes", of("MemTotal")),
        ("host_memory_available_bytes", of("MemAvailable")),
        ("host_swap_used_bytes", swap),
    ];
    values.into_iter().filter_map(|(metric, value)| Some(Found::plain(metric, value?))).collect()
}

/// `/proc/net/dev`: all but the loopback and the host's ends of containers' links.
pub(super) fn network(text: &str) -> Vec<Found> {
    const COLUMNS: [(usize, &str); 6] = [
        (0, "host_network_receive_bytes_total"),
        (2, "host_network_receive_errors_total"),
        (3, "host_network_receive_drops_total"),
        (8, "host_network_transmit_bytes_total"),
        (10, "host_network_transmit_errors_total"),
        (11, "host_network_transmit_drops_total"),
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
            COLUMNS.map(|(column, metric)| Found::of(metric, "device", &name, counts[column]))
        })
        .collect()
}

/// `/proc/diskstats`, of these disks.
pub(super) fn disks(text: &str, names: &[String]) -> Vec<Found> {
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some(name) = words.get(2).filter(|name| names.iter().any(|known| known == *name)) else {
            continue;
        };
        let number = |column: usize| words.get(column).and_then(|word| word.parse::<f64>().ok());
        let values = [
            ("host_disk_read_bytes_total", number(5).map(|sectors| sectors * SECTOR)),
            ("host_disk_written_bytes_total", number(9).map(|sectors| sectors * SECTOR)),
            ("host_disk_io_seconds_total", number(12).map(|milliseconds| milliseconds / 1000.0)),
        ];
        found.extend(
            values.into_iter().filter_map(|(metric, value)| Some(Found::of(metric, "device", name, value?))),
        );
    }
    found
}

/// `/proc/pressure/*`. "Full" of the CPU means nothing for a whole host.
pub(super) fn pressure(text: &str, resource: &'static str) -> Vec<Found> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let microseconds: f64 = line.rsplit_once("total=")?.1.trim().parse().ok()?;
        Some(microseconds / 1e6)
    };
    let stalled = if resource == "cpu" { None } else { total("full") };
    let values = [
        ("host_pressure_waiting_seconds_total", total("some")),
        ("host_pressure_stalled_seconds_total", stalled),
    ];
    values
        .into_iter()
        .filter_map(|(metric, value)| Some(Found::of(metric, "resource", resource, value?)))
        .collect()
}
