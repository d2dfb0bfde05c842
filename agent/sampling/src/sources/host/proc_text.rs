//! The values in the texts of procfs. `procfs-core` parses the texts; a text that it refuses is an error, which the
//! source reports as an absence.
//!
//! It costs more than searching for the few values that are wanted: 29 µs instead of 9 µs for all texts of a host with 2
//! processors, 75 µs instead of 18 µs with 208. The kernel needs about 60 µs to write them, once a second, so no promise
//! depends on it. It panics on some texts that no kernel writes: those are refused first, by [`meminfo_is_sound`] and
//! [`pressure_line`].

#![expect(clippy::cast_precision_loss, reason = "a sample is an f64, and counts below 2^53 are exact")]

use std::collections::BTreeSet;

use procfs_core::{
    DiskStat, ExplicitSystemInfo, FromBufRead, FromBufReadSI, FromRead, KernelStats, LoadAverage, Meminfo,
    PressureRecord, ProcError, net::InterfaceDeviceStatus, parse_pressure_record,
};

use model::catalog;

use super::{HostValue, kernel_files::MAX_DEVICES};

/// USER_HZ, 100 on every Linux that has TPUs (x86-64 and arm64).
const TICKS_PER_SECOND: u64 = 100;
const SECTOR_BYTES: f64 = 512.0;

/// The reason why a text has no values.
#[derive(Debug, thiserror::Error)]
pub(super) enum TextError {
    /// The parser refuses it.
    #[error("{0}")]
    Refused(#[from] ProcError),
    /// The kernel writes no such text.
    #[error("it is not a text of this kind")]
    Shape,
}

type Values = Result<Vec<HostValue>, TextError>;

/// `/proc/stat`.
pub(super) fn cpu(text: &str) -> Values {
    const KERNEL: ExplicitSystemInfo = ExplicitSystemInfo {
        boot_time_secs: 0,
        ticks_per_second: TICKS_PER_SECOND,
        page_size: 0,
        is_little_endian: cfg!(target_endian = "little"),
    };
    let stat = KernelStats::from_buf_read(text.as_bytes(), &KERNEL)?;
    let total = stat.total;
    let modes = [
        ("user", Some(total.user)),
        ("nice", Some(total.nice)),
        ("system", Some(total.system)),
        ("idle", Some(total.idle)),
        ("iowait", total.iowait),
        ("irq", total.irq),
        ("softirq", total.softirq),
        ("steal", total.steal),
    ];
    let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND as f64;
    let mut values: Vec<HostValue> = modes
        .into_iter()
        .filter_map(|(mode, ticks)| {
            Some(HostValue::of(&catalog::HOST_CPU_SECONDS_TOTAL, "mode", mode, seconds(ticks?)))
        })
        .collect();
    if !stat.cpu_time.is_empty() {
        values.push(HostValue::plain(&catalog::HOST_CPUS, stat.cpu_time.len() as f64));
    }
    Ok(values)
}

/// `/proc/loadavg`.
pub(super) fn load(text: &str) -> Values {
    let load = LoadAverage::from_read(text.as_bytes())?;
    // The kernel writes two decimals, which an f32 has and an f64 made of it has not.
    let one = (f64::from(load.one) * 100.0).round() / 100.0;
    Ok(vec![HostValue::plain(&catalog::HOST_LOAD1, one)])
}

/// `/proc/meminfo`.
pub(super) fn memory(text: &str) -> Values {
    if !meminfo_is_sound(text) {
        return Err(TextError::Shape);
    }
    let memory = Meminfo::from_buf_read(text.as_bytes())?;
    let values = [
        (&catalog::HOST_MEMORY_TOTAL_BYTES, Some(memory.mem_total)),
        (&catalog::HOST_MEMORY_AVAILABLE_BYTES, memory.mem_available),
        (&catalog::HOST_SWAP_USED_BYTES, Some(memory.swap_total.saturating_sub(memory.swap_free))),
    ];
    Ok(values
        .into_iter()
        .filter_map(|(metric, value)| Some(HostValue::plain(metric, value? as f64)))
        .collect())
}

/// The parser cuts the last byte off each name, wherever a character ends, and multiplies each number unchecked.
fn meminfo_is_sound(text: &str) -> bool {
    const MAX_DIGITS: usize = 12;
    text.is_ascii()
        && text
            .lines()
            .all(|line| line.split_ascii_whitespace().nth(1).is_none_or(|it| it.len() <= MAX_DIGITS))
}

/// `/proc/net/dev`: all devices but the loopback and the host's ends of containers' links.
pub(super) fn network(text: &str, real: &BTreeSet<String>) -> Values {
    let devices = InterfaceDeviceStatus::from_buf_read(text.as_bytes())?.0;
    let mut devices: Vec<_> = devices.into_values().filter(|device| device.name != "lo").collect();
    // In a container's namespace no device is real; its own is all there is.
    if devices.iter().any(|device| real.contains(&device.name)) {
        devices.retain(|device| real.contains(&device.name));
    }
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    let omitted = cut(&mut devices, "network");
    let values = devices.iter().flat_map(|device| {
        [
            (&catalog::HOST_NETWORK_RECEIVE_BYTES_TOTAL, device.recv_bytes),
            (&catalog::HOST_NETWORK_RECEIVE_ERRORS_TOTAL, device.recv_errs),
            (&catalog::HOST_NETWORK_RECEIVE_DROPS_TOTAL, device.recv_drop),
            (&catalog::HOST_NETWORK_TRANSMIT_BYTES_TOTAL, device.sent_bytes),
            (&catalog::HOST_NETWORK_TRANSMIT_ERRORS_TOTAL, device.sent_errs),
            (&catalog::HOST_NETWORK_TRANSMIT_DROPS_TOTAL, device.sent_drop),
        ]
        .map(|(metric, count)| HostValue::of(metric, "device", &device.name, count as f64))
    });
    Ok(values.chain([omitted]).collect())
}

/// Cuts a class of devices at the limit, and counts what is cut.
fn cut<T>(devices: &mut Vec<T>, class: &str) -> HostValue {
    let omitted = devices.len().saturating_sub(MAX_DEVICES);
    devices.truncate(MAX_DEVICES);
    HostValue::of(&catalog::HOST_DEVICES_OMITTED, "class", class, omitted as f64)
}

/// `/proc/diskstats`, of these disks.
pub(super) fn disks(text: &str, names: &BTreeSet<String>) -> Values {
    // The file lists partitions and virtual devices too.
    let listed = text.lines().filter_map(|line| {
        let name = names.get(line.split_ascii_whitespace().nth(2)?)?;
        Some((line, name))
    });
    let mut lines: Vec<_> = listed.collect();
    let mut values = vec![cut(&mut lines, "disk")];
    for (line, name) in lines {
        let disk = DiskStat::from_line(line)?;
        let of_disk = [
            (&catalog::HOST_DISK_READ_BYTES_TOTAL, disk.sectors_read as f64 * SECTOR_BYTES),
            (&catalog::HOST_DISK_WRITTEN_BYTES_TOTAL, disk.sectors_written as f64 * SECTOR_BYTES),
            (&catalog::HOST_DISK_IO_SECONDS_TOTAL, disk.time_in_progress as f64 / 1000.0),
        ];
        values.extend(of_disk.map(|(metric, value)| HostValue::of(metric, "device", name, value)));
    }
    Ok(values)
}

/// `/proc/pressure/*`. For the CPU, "full" has no meaning for a whole host, and old kernels leave it out.
pub(super) fn pressure(text: &str, resource: &'static str) -> Values {
    let mut values = Vec::new();
    for line in text.lines() {
        let metric = match line.split_ascii_whitespace().next() {
            Some("some") => &catalog::HOST_PRESSURE_WAITING_SECONDS_TOTAL,
            Some("full") if resource != "cpu" => &catalog::HOST_PRESSURE_STALLED_SECONDS_TOTAL,
            _ => continue,
        };
        let stalled = pressure_line(line)?.total as f64 / 1e6;
        values.push(HostValue::of(metric, "resource", resource, stalled));
    }
    Ok(values)
}

/// The parser cuts off the first five bytes without counting them.
fn pressure_line(line: &str) -> Result<PressureRecord, TextError> {
    if !line.is_ascii() || line.len() < 5 {
        return Err(TextError::Shape);
    }
    Ok(parse_pressure_record(line)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) {
        let _ = cpu(text);
        let _ = load(text);
        let _ = memory(text);
        let _ = network(text, &BTreeSet::new());
        let _ = disks(text, &BTreeSet::from(["sda".to_owned()]));
        let _ = pressure(text, "io");
    }

    #[test]
    fn texts_on_which_the_parser_panics_are_refused() {
        for text in ["MemTotalé 5 kB\n", "MemTotal: 18446744073709551615 kB\n"] {
            assert!(matches!(memory(text), Err(TextError::Shape)), "{text}");
        }
        for text in ["some", "full", "some\u{e9}avg10=0"] {
            assert!(
                pressure(text, "io").is_err() || pressure(text, "io").is_ok_and(|it| it.is_empty()),
                "{text}"
            );
        }
    }

    #[test]
    fn an_old_kernel_has_no_full_line_for_the_cpu() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n";
        assert_eq!(pressure(text, "cpu").unwrap().len(), 1);
    }

    #[test]
    fn a_load_keeps_its_decimals() {
        assert_eq!(load("0.35 1.00 0.50 2/500 1234\n").unwrap()[0].value, 0.35);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(
            text in any::<String>(),
            near in "((cpu|MemTotal:|some|full|eth0:|8 0 sda|é)[ 0-9a-zé:=./]{0,60}\n){0,6}",
        ) {
            all(&text);
            all(&near);
        }

        /// A damaged byte in a text of this host.
        #[test]
        fn a_damaged_text_is_parsed_or_refused(at in any::<prop::sample::Index>(), put in any::<char>()) {
            for file in ["stat", "loadavg", "meminfo", "net/dev", "diskstats", "pressure/io"] {
                let Ok(text) = std::fs::read_to_string(format!("/proc/{file}")) else { continue };
                let mut text: Vec<char> = text.chars().collect();
                let at = at.index(text.len().max(1));
                if let Some(there) = text.get_mut(at) {
                    *there = put;
                }
                all(&text.into_iter().collect::<String>());
            }
        }
    }
}
