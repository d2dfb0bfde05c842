//! Several hosts under one Prometheus: each alert rule that is installed with the agent fires once where it should, and
//! none of them on a sound host; each query of the boards has an answer; and the steps that a job marks are series.

mod boards;
mod hosts;
mod rules;

use std::collections::BTreeSet;

use fakes::wait::{LIMIT, until, wait_with};
use hosts::{BlindHost, SoundHost, WaitingHost, WorkingHost};

use crate::agent::scrape::Prometheus;

/// The Slurm job of the host `working`.
const JOB: &str = "77";

/// The alerts that were seen to fire.
#[derive(Default)]
struct Fired(BTreeSet<&'static str>);

impl Fired {
    /// Waits until these alerts fire for an instance.
    fn wait(&mut self, prometheus: &Prometheus, instance: &str, alerts: &[&'static str]) {
        for &alert in alerts {
            let wanted = (alert.to_owned(), instance.to_owned());
            let what = format!("{alert} of {instance}");
            wait_with(
                &what,
                LIMIT,
                || format!("{:?}", prometheus.firing()),
                || prometheus.firing().contains(&wanted).then_some(()),
            );
            self.0.insert(alert);
        }
    }
}

fn firing_for(prometheus: &Prometheus, instance: &str) -> BTreeSet<String> {
    let firing = prometheus.firing().into_iter();
    firing.filter(|(_, of)| of == instance).map(|(alert, _)| alert).collect()
}

#[test]
fn alerts_fire_where_they_should_boards_have_values_and_marked_steps_are_series() {
    let (mut working, waiting) = (WorkingHost::start(), WaitingHost::start());
    let (blind, mut sound) = (BlindHost::start(), SoundHost::start());
    let targets = [
        ("working", working.agent.http()),
        ("waiting", waiting.agent.http()),
        ("blind", blind.agent.http()),
        ("sound", sound.agent.http()),
    ];
    let prometheus = Prometheus::over(&targets, &rules::in_seconds());
    steps_are_series(&prometheus);
    boards::have_values(&prometheus, || working.advance());

    let mut fired = Fired::default();
    let on_working = ["TpuChipsMissing", "TpuChipFault", "TpuscopeCertificateExpires"];
    fired.wait(&prometheus, "working", &on_working);
    let notes = working.agent.status()["notes"].to_string();
    assert!(notes.contains("5 of 8 expected chips found (") && notes.contains("tpu-env says"), "{notes}");
    fired.wait(&prometheus, "blind", &["TpuChipsUnknown", "TpuscopeStoreDiskLow"]);
    assert_eq!(firing_for(&prometheus, "blind").len(), 2, "{:?}", prometheus.firing());
    assert_eq!(prometheus.query("tpuscope_chips{instance=\"blind\"}"), []);
    blind.says_why();

    working.gets_sick();
    let sick = ["TpuChipThrottled", "TpuLinkBad", "TpuHbmNearlyFull", "TpuChipIdle"];
    fired.wait(&prometheus, "working", &sick);
    working.stops();
    fired.wait(&prometheus, "working", &["TpuJobIdle", "TpuJobGoodputLow"]);
    let on_waiting = ["TpuJobNotStarted", "TpuscopeUploadStuck", "TpuscopeExporterFailing"];
    fired.wait(&prometheus, "waiting", &on_waiting);

    no_alert_fired_for_the_sound_host(&prometheus);
    one_key_joins_chips_links_and_throttling(&prometheus);
    sound.loses_its_runtime();
    fired.wait(&prometheus, "sound", &["TpuscopeSourceDown"]);
    drop(sound);
    fired.wait(&prometheus, "sound", &["TpuscopeAgentDown"]);
    drop((working, waiting, blind));
    fired.wait(&prometheus, "", &["TpuscopeNoAgent"]);
    assert_eq!(fired.0, rules::names().into_iter().collect());
}

/// What the job marks each second, as Prometheus has it.
fn steps_are_series(prometheus: &Prometheus) {
    let of_job = |metric: &str| {
        let labels =
            "instance=\"working\", workload=\"77\", workload_kind=\"slurm\", ledger=\"exact\", source=\"\"";
        format!("{metric}{{{labels}}}")
    };
    let value = |query: &str| prometheus.query(query).first().map(|(_, value)| *value);
    let (sum, count) = (of_job("tpu_job_step_seconds_sum"), of_job("tpu_job_step_seconds_count"));
    until("five steps", || value(&count).is_some_and(|steps| steps >= 5.0));
    // No step is shorter than the pause in it.
    let mean = value(&format!("{sum} / {count}")).unwrap();
    assert!(mean >= 1.02, "{mean}");
    let up_to_a_second =
        format!("{} == 0", of_job("tpu_job_step_seconds_bucket").replace('}', ", le=\"1.0\"}"));
    assert_eq!(prometheus.query(&up_to_a_second).len(), 1, "{up_to_a_second}");
    assert!(value(&of_job("tpu_job_step_ideal_seconds")).is_some_and(|ideal| ideal >= 1.02));
    assert!(value(&of_job("tpu_job_step_deviation_seconds")).is_some_and(|deviation| deviation >= 0.0));
    // Steps have numbers from 0.
    assert!(value(&format!("{} - {count}", of_job("tpu_job_last_step"))).is_some_and(|ahead| ahead >= 0.0));
    assert!(value(&of_job("tpu_job_disruptions_total").replace("exact", "proxy")).is_some());
    // The exact ledger of the same marks: productive and lost time are all of it.
    let productive = of_job("tpu_job_goodput_seconds");
    until("the exact ledger", || value(&productive).is_some_and(|seconds| seconds >= 3.0));
    for name in ["tpu_job_goodput_coverage_ratio", "tpu_job_disruptions_total"] {
        let wanted = if name.ends_with("_total") { 0.0 } else { 1.0 };
        assert_eq!(value(&of_job(name)), Some(wanted), "{name}");
    }
    let lost = of_job("tpu_job_badput_seconds");
    assert!(value(&format!("count({lost})")).is_some_and(|reasons| reasons >= 10.0), "{lost}");
    assert!(value(&format!("sum({lost})")).is_some_and(|seconds| seconds >= 0.0), "{lost}");
}

/// Not at any time, although all that the rules are about was measured.
fn no_alert_fired_for_the_sound_host(prometheus: &Prometheus) {
    for metric in [
        "tpu_chip_up",
        "tpu_chip_throttle_score",
        "tpu_hbm_used_bytes",
        "tpu_ici_link_health_score",
        "tpu_tensorcore_duty_cycle_ratio",
        "tpu_chips_expected",
        "tpuscope_export_last_success_timestamp_seconds",
    ] {
        assert!(!prometheus.query(&format!("{metric}{{instance=\"sound\"}}")).is_empty(), "{metric}");
    }
    prometheus.evaluated_again();
    let ever = prometheus.query("count_over_time(ALERTS{alertstate=\"firing\", instance=\"sound\"}[1h])");
    assert_eq!(ever, []);
    // No series of ours collides with a label of the scrape.
    for label in ["exported_job", "exported_instance"] {
        assert_eq!(
            prometheus.query(&format!("{{__name__=~\"(tpu|host).+\", {label}!=\"\"}}")),
            [],
            "{label}"
        );
    }
}

fn one_key_joins_chips_links_and_throttling(prometheus: &Prometheus) {
    let joined = |metric: &str| {
        format!(
            "{metric}{{instance=\"sound\"}} * on (instance, tray_chip) group_left (chip) \
             tpu_tray_chip_info{{chip!=\"unknown\"}}"
        )
    };
    let links = joined("tpu_ici_link_health_score");
    assert_eq!(prometheus.query(&links).len(), 16);
    assert_eq!(prometheus.query(&joined("tpu_chip_throttle_score")).len(), 4);
    // The chip of a link is one that has a PCI address.
    let with_pci = format!("{links} * on (instance, chip) group_left (pci) tpu_chip_info");
    assert_eq!(prometheus.query(&with_pci).len(), 16);
    let not_known = "tpu_chip_info{instance=\"sound\"} unless on (instance, chip) tpu_chip_up";
    assert_eq!(prometheus.query(not_known), []);
}
