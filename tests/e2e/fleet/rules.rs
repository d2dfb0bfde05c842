//! The alert rules as text: what promtool says of them over time, and what docs/alerts.md says of each.

use std::{path::Path, process::Command};

const RULES: &str = include_str!("../../../packaging/prometheus/alerts.yml");
const PAGE: &str = include_str!("../../../docs/alerts.md");

/// Times of the rules that are too long for a test, and those that it has instead.
const SHORTER: [(&str, &str); 5] =
    [("[5m]", "[5s]"), ("[30m]", "[10s]"), ("[1h]", "[10s]"), ("> 2700", "> 5"), ("> 3600", "> 3")];

/// One rule.
struct AlertRule {
    name: &'static str,
    severity: &'static str,
    /// How long its condition has to hold.
    time: &'static str,
}

fn all() -> Vec<AlertRule> {
    let rule = |text: &'static str| {
        let value = |key: &str| {
            let found = text.lines().find_map(|line| line.trim_start().strip_prefix(key));
            found.unwrap_or_else(|| panic!("{key} is missing in {text}")).trim()
        };
        let name = text.lines().next().unwrap();
        AlertRule { name, severity: value("severity:"), time: value("for:") }
    };
    RULES.split("- alert: ").skip(1).map(rule).collect()
}

/// The names of the rules.
pub(super) fn names() -> Vec<&'static str> {
    all().into_iter().map(|rule| rule.name).collect()
}

/// The rules without the time for which their condition has to hold, and with windows of seconds.
pub(super) fn in_seconds() -> String {
    let held = RULES.lines().filter(|line| !line.trim_start().starts_with("for:"));
    let text: String = held.flat_map(|line| [line, "\n"]).collect();
    SHORTER.iter().fold(text, |text, (long, short)| {
        assert!(text.contains(long), "{long} is in no rule");
        text.replace(long, short)
    })
}

#[test]
fn the_rules_are_sound_and_fire_over_time_as_the_cases_say() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (command, file) in
        [("check", "../packaging/prometheus/alerts.yml"), ("test", "e2e/fleet/alerts_test.yml")]
    {
        let checked = Command::new("promtool").args([command, "rules"]).arg(tests.join(file)).output();
        let checked = checked.expect("promtool is installed by tests/setup.sh");
        let said = [checked.stdout, checked.stderr].concat();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn every_rule_has_a_case_over_time() {
    let cases = include_str!("alerts_test.yml");
    for name in names() {
        assert!(cases.contains(name), "{name} is in no case of alerts_test.yml");
    }
}

#[test]
fn the_page_describes_every_rule_in_the_order_of_the_file() {
    let sections: Vec<&str> = PAGE.split("\n### ").skip(1).collect();
    let described = sections.iter().map(|section| section.lines().next().unwrap());
    assert_eq!(described.collect::<Vec<_>>(), names());
    for (AlertRule { name, severity, time }, section) in all().into_iter().zip(&sections) {
        let head = format!("{name}\n\n{severity}, after {time}\n\n- Meaning: ");
        assert!(section.starts_with(&head), "{section}\nshould begin with\n{head}");
        for part in ["\n- Observed: ", "\n- What to do: "] {
            assert_eq!(section.matches(part).count(), 1, "{part} of {name}");
        }
    }
}
