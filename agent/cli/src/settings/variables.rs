//! The variables of the environment that are settings, and those that only look like one.
//!
//! Must never make an error of a variable that is no setting: it may be of another program.

use std::fmt;

use model::suggestion::nearest;

use super::{SECTIONS, setting_name};

/// Variables with this prefix and `__` in their name are settings.
pub(super) const PREFIX: &str = "TPUSCOPE_";

/// The variables without settings, after the prefix: those of commands, those of a job, and that of the unit.
const OTHERS: &[&str] = &[
    "CONFIG",
    "SOCKET",
    "TLS_DIR",
    "MARKS_SOCKET",
    "IGNORE",
    "RECORD",
    "PROFILER_PORT",
    "JOB_ATTEMPT",
    "JOB_HOSTS",
    "JOB_ID",
    "JOB_NAME",
    "JOB_RANK",
    "UNIT_STOPS_PROFILERS",
];

/// A variable with the prefix of the settings that sets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredVariable {
    /// Its name, cut off where it is long; untrusted.
    pub name: String,
    /// The variable that was meant, if one is similar.
    pub nearest: Option<String>,
}

impl IgnoredVariable {
    /// The variable of this name, if it has the prefix and is none that a command or a job has. The name is none of a setting.
    pub(super) fn of(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX)?;
        if OTHERS.contains(&rest) {
            return None;
        }
        let settings: Vec<String> = SECTIONS.iter().flat_map(|section| section.variables()).collect();
        let one_underscore = settings.iter().find(|known| known.replace("__", "_") == rest);
        let similar = || nearest(rest, settings.iter().map(String::as_str).chain(OTHERS.iter().copied()));
        let meant = one_underscore.map(String::as_str).or_else(similar);
        Some(Self {
            name: name.chars().take(60).collect(),
            nearest: meant.map(|meant| format!("{PREFIX}{meant}")),
        })
    }
}

impl super::Section {
    /// The variables of its settings, after the prefix.
    fn variables(&self) -> Vec<String> {
        let keys = if self.is_list { &[""] } else { self.fields };
        let name = |key: &&str| setting_name(self.name, key).replace('.', "__").to_uppercase();
        keys.iter().map(name).collect()
    }
}

impl fmt::Display for IgnoredVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the variable {} is no setting and is ignored", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(f, " (did you mean {nearest}?)"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_sets_nothing_is_named_with_what_was_meant() {
        let said = |name: &str| IgnoredVariable::of(name).map(|ignored| ignored.to_string());
        for (name, meant) in [
            ("TPUSCOPE_SAMPLER_INTERVAL", "TPUSCOPE_SAMPLER__INTERVAL"),
            ("TPUSCOPE_API_METRICS_WEB_CONFIG", "TPUSCOPE_API__METRICS_WEB_CONFIG"),
            ("TPUSCOPE_SOKCET", "TPUSCOPE_SOCKET"),
            ("TPUSCOPE_DESTINATIONS", "TPUSCOPE_DESTINATION"),
        ] {
            let wanted = format!("the variable {name} is no setting and is ignored (did you mean {meant}?)");
            assert_eq!(said(name), Some(wanted));
        }
        assert_eq!(
            said("TPUSCOPE_QQ").as_deref(),
            Some("the variable TPUSCOPE_QQ is no setting and is ignored")
        );
        for known in
            ["TPUSCOPE_SOCKET", "TPUSCOPE_CONFIG", "TPUSCOPE_RECORD", "TPUSCOPE_IGNORE", "TPU_NAME", "PATH"]
        {
            assert_eq!(said(known), None);
        }
        assert_eq!(
            said(&format!("TPUSCOPE_{}", "X".repeat(1 << 20))).map(|text| text.len() < 200),
            Some(true)
        );
    }
}
