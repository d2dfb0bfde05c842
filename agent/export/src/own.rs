//! What the agent says of itself: its cost, and how its sources do.

use std::{fs, time::Duration};

use model::{sample::Origin, time::Timestamp};
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        time::TimeVal,
    },
    unistd::{SysconfVar, sysconf},
};

use super::page::{Label, Page, Type};

/// The figures that only the agent knows.
#[derive(Debug)]
pub struct Own<'a> {
    /// When it started.
    pub started: Timestamp,
    /// Chips found on this host.
    pub chips: usize,
    /// Processes that hold them.
    pub owners: usize,
    /// The first sample is there and the sampler goes on.
    pub ready: bool,
    /// The sources.
    pub sources: &'a [SourceFigures],
}

/// The figures of one source.
#[derive(Debug, Clone)]
pub struct SourceFigures {
    /// Which.
    pub origin: Origin,
    /// Reads so far.
    pub reads: u64,
    /// How often something went missing.
    pub errors: u64,
    /// How long the last read took.
    pub last_read: Option<Duration>,
    /// How long ago it ended.
    pub age: Option<Duration>,
    /// Series that it gives now.
    pub series: usize,
}

pub(super) fn write(own: &Own<'_>, page: &mut Page) {
    page.family("tpuscope_build_info", Type::Gauge, "1, with the agent's version.");
    page.sample("tpuscope_build_info", &[("version", Label::Text(env!("CARGO_PKG_VERSION")))], 1.0);
    single(page, "tpuscope_start_time_seconds", "When the agent started.", own.started.0 as f64 / 1e9);
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let name = "tpuscope_cpu_seconds_total";
        page.family(name, Type::Counter, "CPU time of the agent, its children apart.");
        page.sample(name, &[], seconds(usage.user_time()) + seconds(usage.system_time()));
    }
    if let Some(bytes) = resident_bytes() {
        single(page, "tpuscope_resident_memory_bytes", "Memory of the agent, its children apart.", bytes);
    }
    single(page, "tpuscope_ready", "1 when samples are taken, 0 when not.", f64::from(u8::from(own.ready)));
    single(page, "tpuscope_chips", "Chips found on this host.", own.chips as f64);
    single(page, "tpuscope_owners", "Processes that hold chips of this host.", own.owners as f64);
    sources(own.sources, page);
}

fn sources(sources: &[SourceFigures], page: &mut Page) {
    type Get = fn(&SourceFigures) -> Option<f64>;
    let families: [(&str, Type, &str, Get); 5] = [
        ("tpuscope_source_reads_total", Type::Counter, "Reads of the source.", |it| Some(it.reads as f64)),
        (
            "tpuscope_source_errors_total",
            Type::Counter,
            "How often something that the source was asked for went missing; counted when it begins.",
            |it| Some(it.errors as f64),
        ),
        (
            "tpuscope_source_read_duration_seconds",
            Type::Gauge,
            "How long the last read of the source took.",
            |it| it.last_read.map(|took| took.as_secs_f64()),
        ),
        ("tpuscope_source_age_seconds", Type::Gauge, "Time since the last read of the source ended.", |it| {
            it.age.map(|age| age.as_secs_f64())
        }),
        ("tpuscope_source_series", Type::Gauge, "Series that the source gives now.", |it| {
            Some(it.series as f64)
        }),
    ];
    for (name, kind, help, get) in families {
        if sources.iter().all(|source| get(source).is_none()) {
            continue;
        }
        page.family(name, kind, help);
        for source in sources {
            if let Some(value) = get(source) {
                page.sample(name, &[("source", Label::Text(source.origin.as_str()))], value);
            }
        }
    }
}

fn single(page: &mut Page, name: &str, help: &str, value: f64) {
    page.family(name, Type::Gauge, help);
    page.sample(name, &[], value);
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// Of this process: its own /proc, whatever root the host's is mounted at.
fn resident_bytes() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split(' ').nth(1)?.parse().ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * page as f64)
}

#[cfg(test)]
mod tests {
    use super::super::page::Format;
    use super::*;

    #[test]
    fn the_docs_list_every_series_with_its_help() {
        let source = SourceFigures {
            origin: Origin::Sim,
            reads: 1,
            errors: 0,
            last_read: Some(Duration::from_millis(2)),
            age: Some(Duration::ZERO),
            series: 3,
        };
        let own = Own { started: Timestamp(0), chips: 0, owners: 0, ready: true, sources: &[source] };
        let mut page = Page::new(Format::Text, 0);
        write(&own, &mut page);
        let page = page.finish();
        let shown: Vec<(&str, &str)> =
            page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' ')).collect();
        let docs = include_str!("../../../docs/metrics.md");
        let listed: Vec<(&str, &str)> = docs
            .lines()
            .filter(|line| line.starts_with("| `tpuscope_"))
            .map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                (cells[1].trim_matches('`'), cells[5])
            })
            .collect();
        assert_eq!(shown, listed);
    }
}
