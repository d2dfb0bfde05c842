//! The part of Slurm's configuration that hooks depend on: from the text of `slurm.conf`, or from that of `scontrol show config`,
//! which is what the daemons use. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// What Slurm shows where nothing is set.
const NULL: &str = "(null)";
/// What Slurm shows where there is no limit, and the time that a hook has then.
const NO_LIMIT: u64 = 65_534;
/// The keys of lines that describe nodes and partitions, which have other keys beside them.
const LISTS: [&str; 5] = ["nodename", "partitionname", "downnodes", "frontendname", "nodeset"];

/// What hooks depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlurmConfiguration {
    /// The values of each key, which is in lower case.
    values: BTreeMap<String, Vec<String>>,
    /// Files that it includes, which were not read.
    pub(super) includes: Vec<String>,
}

impl SlurmConfiguration {
    /// Of the text of `slurm.conf`.
    pub(super) fn of_file(text: &str) -> Self {
        let mut configuration = Self::default();
        // A line goes on behind a backslash.
        let text = text.replace("\\\n", "");
        for line in text.lines().map(uncommented) {
            if let Some((word, file)) = line.trim().split_once(char::is_whitespace)
                && word.eq_ignore_ascii_case("include")
            {
                configuration.includes.push(file.trim().to_owned());
                continue;
            }
            let pairs = pairs(line);
            if !pairs.first().is_some_and(|(first, _)| LISTS.contains(&&key(first)[..])) {
                pairs.into_iter().for_each(|(name, value)| configuration.add(name, value));
            }
        }
        configuration
    }

    /// Of the text of `scontrol show config`.
    pub(super) fn of_scontrol(text: &str) -> Self {
        let mut configuration = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            configuration.add(name, value);
        }
        configuration
    }

    /// Whether it sets nothing, and names no file that may.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.includes.is_empty()
    }

    fn add(&mut self, name: &str, value: &str) {
        let value = value.trim().trim_matches('"');
        if !value.is_empty() && value != NULL {
            self.values.entry(key(name)).or_default().push(value.to_owned());
        }
    }

    /// The values of a key, which is given in lower case. A program may be named several times, or be a list.
    pub(super) fn programs(&self, key: &str) -> Vec<String> {
        let values = self.values.get(key).into_iter().flatten();
        values.flat_map(|value| value.split(',')).map(|path| path.trim().to_owned()).collect()
    }

    /// The last value of a key.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.last().map(String::as_str)
    }

    /// The flags of `PrologFlags` in lower case.
    pub(super) fn prolog_flags(&self) -> BTreeSet<String> {
        let flags = self.value("prologflags").unwrap_or_default().split(',');
        flags.map(|flag| flag.trim().to_ascii_lowercase()).filter(|flag| !flag.is_empty()).collect()
    }

    /// The seconds that Slurm gives a prolog or an epilog, with the key that sets it. `None`: no limit.
    pub(super) fn time_limit(&self, key: &'static str) -> Option<(&'static str, u64)> {
        let seconds = |key: &'static str| {
            let value = self.value(key)?.split_whitespace().next()?.parse().ok()?;
            (value != 0 && value < NO_LIMIT).then_some((key, value))
        };
        seconds(key).or_else(|| seconds("prologepilogtimeout"))
    }

    /// A user, without the number that scontrol shows beside the name.
    pub(super) fn user(&self, key: &str) -> Option<&str> {
        let user = self.value(key)?;
        Some(user.split_once('(').map_or(user, |(name, _)| name).trim())
    }
}

/// A key in lower case, without the number that newer versions show behind it: `Prolog[0]`.
fn key(name: &str) -> String {
    name.split_once('[').map_or(name, |(name, _)| name).trim().to_ascii_lowercase()
}

/// A line without its comment. `\#` is no comment.
fn uncommented(line: &str) -> &str {
    let starts = line.match_indices('#').find(|(at, _)| !line[..*at].ends_with('\\'));
    starts.map_or(line, |(at, _)| &line[..at])
}

/// The `KEY=VALUE` of a line, up to the first word of another form. A value may be in quotes, and `=` among white space.
fn pairs(line: &str) -> Vec<(&str, &str)> {
    let (mut pairs, mut rest) = (Vec::new(), line.trim_start());
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            break;
        }
        let after = after.trim_start();
        let (value, more) = match after.strip_prefix('"').and_then(|quoted| quoted.split_once('"')) {
            Some(split) => split,
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        pairs.push((name, value));
        rest = more.trim_start();
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_conf_is_read_as_slurm_reads_it() {
        let text = "ClusterName=lab # Prolog=/not/this\nPROLOG=/etc/slurm/prolog.d/* Epilog=\"/etc/slurm/e p\"\n\
            Prologflags = NoHold\nPrologFlags=Alloc,\\\nContain\nPrologEpilogTimeout=30\n#TaskProlog=/no\n\
            NodeName=n[0-3] Prolog=/odd\nSlurmdUser=root\ninclude /etc/slurm/more.conf\nEpilog=/second";
        let read = SlurmConfiguration::of_file(text);
        assert_eq!(read.programs("prolog"), ["/etc/slurm/prolog.d/*"]);
        assert_eq!(read.programs("epilog"), ["/etc/slurm/e p", "/second"]);
        assert_eq!(read.programs("taskprolog"), Vec::<String>::new());
        assert_eq!(read.prolog_flags().into_iter().collect::<Vec<_>>(), ["alloc", "contain"]);
        assert_eq!(read.time_limit("epilogtimeout"), Some(("prologepilogtimeout", 30)));
        assert_eq!(read.user("slurmduser"), Some("root"));
        assert_eq!(read.includes, ["/etc/slurm/more.conf"]);
    }

    #[test]
    fn what_scontrol_shows_is_read() {
        let text = "Configuration data as of 2026-11-30T20:12:38\nEpilog                  = (null)\n\
            Prolog[0]               = /a\nProlog[1]               = /b\nPrologEpilogTimeout     = 65534\n\
            PrologFlags             = Alloc,Contain\nSlurmdUser              = slurm(64030)\n\
            EpilogTimeout           = 20 sec\n";
        let read = SlurmConfiguration::of_scontrol(text);
        assert_eq!(read.programs("prolog"), ["/a", "/b"]);
        assert_eq!(read.programs("epilog"), Vec::<String>::new());
        assert_eq!(read.prolog_flags().into_iter().collect::<Vec<_>>(), ["alloc", "contain"]);
        assert_eq!((read.time_limit("prologtimeout"), read.user("slurmduser")), (None, Some("slurm")));
        assert_eq!(read.time_limit("epilogtimeout"), Some(("epilogtimeout", 20)));
    }
}
