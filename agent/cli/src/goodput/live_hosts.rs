//! Where the time of a job on several hosts went: the seconds of all hosts on one clock.
//!
//! A second is productive if it is on every host. A host without an answer is unknown, so it lowers the coverage.

use std::fmt::Write;

use cluster::clock_offset::{OffsetEstimate, RoundTrip, clock_offset};
use goodput::{
    proxy::{Combined, HostSlots, combine, live::SecondState},
    time::Micros,
};
use model::time::{Clock, SystemClock};
use proto::tpuscope::v1::{
    ClockRequest, GoodputReply, GoodputRequest, JobGoodput, goodput_client::GoodputClient,
    host_client::HostClient,
};
use serde::Serialize;
use tonic::{Code, Status, transport::Channel};

use super::{
    asked::{self, AskedAttempt, AskedTime},
    live_text, show,
};
use crate::{
    CommandResult, client,
    failure::Failure,
    hosts::{HostAnswer, HostsArgs, NoHostAnswer, ask_all, each_agent_once, report},
    output::{self, TextTable},
    remedies,
};

/// Round trips by which the clock of a host is compared.
const ROUND_TRIPS: usize = 5;
const SECOND_NS: i64 = 1_000_000_000;

/// What a host answered, and how far its clock is from ours.
#[derive(Debug)]
struct HostGoodput {
    reply: GoodputReply,
    clock: OffsetEstimate,
}

type Answers = [HostAnswer<HostGoodput>];

pub(super) fn run(args: &HostsArgs, request: GoodputRequest, explain: bool, json: bool) -> CommandResult {
    let has_job = !request.job.is_empty();
    let mut answers = client::block_on(ask_all(args, move |channel| ask(channel, request.clone())))?;
    each_agent_once(&mut answers, |host| host.reply.peer.as_ref());
    if !has_job {
        one_job(&answers)?;
    }
    let combined = together(&answers);
    if json {
        output::json(&JobOnHosts::of(&answers, combined.as_ref()))?;
    } else {
        output::print(&page(&answers, combined.as_ref(), explain))?;
    }
    Ok(report::exit(&answers))
}

async fn ask(channel: Channel, request: GoodputRequest) -> Result<HostGoodput, Status> {
    let mut host = HostClient::new(channel.clone());
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for number in 0..=ROUND_TRIPS {
        let peer = request.peer.clone().filter(|_| number == 0);
        let sent = SystemClock.now().0;
        let reply = host.clock(ClockRequest { peer }).await?.into_inner();
        let returned = SystemClock.now().0;
        let (received, replied) = (reply.received_unix_ns, reply.replied_unix_ns);
        // The first one makes the connection.
        if number > 0 {
            trips.push(RoundTrip { sent, received, replied, returned });
        }
    }
    let clock = clock_offset(&trips).map_err(|error| Status::aborted(error.to_string()))?;
    let mut goodput = GoodputClient::new(channel.clone());
    let reply = match goodput.ask(request.clone()).await {
        // The name of a job may end like that of an attempt, so that one is looked for first.
        Err(status) if status.code() == Code::NotFound => match of_attempt(channel, request).await? {
            Some(request) => goodput.ask(request).await?,
            None => return Err(status),
        },
        reply => reply?,
    };
    Ok(HostGoodput { reply: reply.into_inner(), clock })
}

/// The same question about the time in which the attempt that is named ran on the host; `None` if none is named.
async fn of_attempt(channel: Channel, request: GoodputRequest) -> Result<Option<GoodputRequest>, Status> {
    let Some(AskedAttempt { key, ran, .. }) = asked::attempt(channel, &request.job, request.uid).await?
    else {
        return Ok(None);
    };
    let micros = |unix_ns: i64| Micros(unix_ns.div_euclid(1000));
    let window =
        AskedTime { from: request.from_unix_ns.map(micros), until: request.until_unix_ns.map(micros) };
    let time = window.and(ran);
    if !time.is_some_time() {
        return Err(Status::not_found(format!("{} did not run here in the window", request.job)));
    }
    let nanoseconds = |at: Micros| at.0.saturating_mul(1000);
    let (from_unix_ns, until_unix_ns) = (time.from.map(nanoseconds), time.until.map(nanoseconds));
    Ok(Some(GoodputRequest { job: key, from_unix_ns, until_unix_ns, ..request }))
}

/// Without a name, all hosts must mean one job.
fn one_job(answers: &Answers) -> Result<(), Failure> {
    let jobs = answers.iter().filter_map(|host| host.answer.as_ref().ok()).flat_map(|host| &host.reply.jobs);
    let mut called: Vec<String> = jobs.map(|job| live_text::called(job, super::own_uid())).collect();
    called.sort();
    called.dedup();
    if called.len() > 1 { Err(remedies::several_ledgers(&called)) } else { Ok(()) }
}

fn job(host: &HostAnswer<HostGoodput>) -> Option<&JobGoodput> {
    host.answer.as_ref().ok()?.reply.jobs.first()
}

/// The seconds of all hosts by our clock.
fn together(answers: &Answers) -> Option<Combined> {
    let known: Vec<Option<HostSlots>> =
        answers.iter().map(|host| Some(on_our_clock(job(host)?, host.answer.as_ref().ok()?.clock))).collect();
    let first = known.iter().flatten().map(|slots| slots.first).min()?;
    let all: Vec<HostSlots> =
        known.into_iter().map(|slots| slots.unwrap_or_else(|| HostSlots::new(first, []))).collect();
    combine(&all)
}

fn on_our_clock(job: &JobGoodput, clock: OffsetEstimate) -> HostSlots {
    let elapsed = (job.until_unix_ns - job.from_unix_ns).div_euclid(SECOND_NS);
    let packed = i64::try_from(job.states.len() * 2).unwrap_or(i64::MAX);
    // The last byte has one second or two.
    let count = packed.min(elapsed).max(0);
    let half = |slot: i64| {
        let byte = usize::try_from(slot / 2).ok().and_then(|at| job.states.get(at)).copied().unwrap_or(0);
        SecondState::of_code(if slot % 2 == 0 { byte & 0xf } else { byte >> 4 })
    };
    let until = job.until_unix_ns.saturating_sub(clock.offset_ns).saturating_add(SECOND_NS / 2);
    let first = until.div_euclid(SECOND_NS).saturating_sub(count);
    HostSlots::new(first, (0..count).map(|slot| half(slot).slot()))
}

/// As JSON.
#[derive(Serialize)]
struct JobOnHosts<'a> {
    /// Always `proxy`.
    ledger: &'static str,
    /// Absent if no host knows the job.
    combined: Option<&'a Combined>,
    hosts: Vec<GoodputOfHost<'a>>,
    /// How many hosts have no answer.
    missing: usize,
}

#[derive(Serialize)]
struct GoodputOfHost<'a> {
    host: String,
    job: Option<&'a JobGoodput>,
    clock_offset_ns: Option<i64>,
    clock_bound_ns: Option<u64>,
    missing: Option<&'a NoHostAnswer>,
}

impl<'a> JobOnHosts<'a> {
    fn of(answers: &'a Answers, combined: Option<&'a Combined>) -> Self {
        let of_host = |host: &'a HostAnswer<HostGoodput>| {
            let clock = host.answer.as_ref().ok().map(|answer| answer.clock);
            GoodputOfHost {
                host: host.host.to_string(),
                job: job(host),
                clock_offset_ns: clock.map(|clock| clock.offset_ns),
                clock_bound_ns: clock.map(|clock| clock.bound_ns),
                missing: host.answer.as_ref().err(),
            }
        };
        let hosts = answers.iter().map(of_host).collect();
        Self { ledger: "proxy", combined, hosts, missing: report::missing_count(answers) }
    }
}

fn page(answers: &Answers, combined: Option<&Combined>, explain: bool) -> String {
    let mut text = summary(answers, combined);
    let mut table = TextTable::new(["HOST", "GOODPUT", "COVERAGE", "LARGEST LOSS", "NOTE"]);
    answers.iter().for_each(|host| table.row(row(host)));
    text.push_str(&table.text());
    if explain {
        for host in answers {
            if let Some(job) = job(host) {
                // Writing to a String cannot fail.
                let _ = write!(
                    text,
                    "\n{}",
                    live_text::page(job, &host.host.to_string(), super::own_uid(), true)
                );
            }
        }
    }
    text + &report::remarks(answers)
}

/// How many hosts were asked. One that refuses has answered: it does not know the job, or knows several.
fn asked(answers: &Answers) -> String {
    let missing = || answers.iter().filter_map(|host| host.answer.as_ref().err());
    let refused = missing().filter(|missing| missing.is_refusal()).count();
    let counts = [(refused, "a figure"), (missing().count() - refused, "an answer")];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts = counts.map(|(count, what)| format!(", {count} without {what}"));
    report::count(answers.len(), "host") + &counts.collect::<String>()
}

#[expect(clippy::cast_precision_loss, reason = "seconds of at most 400 days")]
fn summary(answers: &Answers, combined: Option<&Combined>) -> String {
    let hosts = asked(answers);
    let Some(all) = combined else { return format!("{hosts}; the notes say why\n\n") };
    let seconds = |seconds: usize| show::duration(seconds as f64);
    let known = seconds(all.elapsed_s - all.unknown_s);
    let figure = match all.proxy_runtime_goodput {
        Some(ratio) => format!("{:.1} % of the {known} that are known", ratio * 100.0),
        None => format!("unknown: {known} are known"),
    };
    let called = |job| live_text::called(job, super::own_uid());
    let name = answers.iter().find_map(job).map(called).unwrap_or_default();
    let mut text = format!(
        "{name} on {hosts}: proxy goodput {figure} (coverage {:.1} % of {}, confidence {})\n\
         a second is productive if it is on every host\n",
        all.coverage * 100.0,
        seconds(all.elapsed_s),
        all.confidence.name()
    );
    let rows = [
        ("productive", all.productive_s),
        ("a host idle", all.idle_s),
        ("a host without all of its chips", all.down_s),
        ("unknown", all.unknown_s),
    ];
    let rows = rows.into_iter().map(|(name, seconds)| show::BarRow::new(name, seconds as f64)).collect();
    text.push_str(&show::bars(rows, all.elapsed_s as f64));
    text + "\n"
}

fn row(host: &HostAnswer<HostGoodput>) -> [String; 5] {
    let name = host.host.to_string();
    let without = |note: &str| [name.clone(), String::new(), String::new(), String::new(), note.to_owned()];
    let job = match (&host.answer, job(host)) {
        (Err(missing), _) => return without(&missing.reason),
        (Ok(_), None) => return without("no such job"),
        (Ok(_), Some(job)) => job,
    };
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    #[expect(clippy::cast_precision_loss, reason = "seconds of a job")]
    let loss =
        job.losses.first().map(|loss| format!("{} {}", loss.reason, show::duration(loss.seconds as f64)));
    [
        name,
        job.goodput_ratio.map_or_else(|| "unknown".to_owned(), percent),
        percent(job.coverage_ratio),
        loss.unwrap_or_default(),
        String::new(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(states: Vec<u8>, until: i64, seconds: i64, offset_ns: i64) -> HostAnswer<HostGoodput> {
        let job = JobGoodput {
            from_unix_ns: (until - seconds) * SECOND_NS,
            until_unix_ns: until * SECOND_NS,
            states,
            ..JobGoodput::default()
        };
        let reply = GoodputReply { jobs: vec![job], ..GoodputReply::default() };
        let clock = OffsetEstimate { offset_ns, bound_ns: 1 };
        HostAnswer { host: "a".parse().unwrap(), answer: Ok(HostGoodput { reply, clock }) }
    }

    #[test]
    fn seconds_of_hosts_whose_clocks_differ_fall_together() {
        let (active, stall) = (SecondState::Active.code(), SecondState::Stall.code());
        // 121 s, of which the first 61 are active; the clock of the other host is 7.4 s ahead.
        let mut states = vec![active << 4 | active; 30];
        states.push(stall << 4 | active);
        states.extend(vec![stall << 4 | stall; 29]);
        states.push(stall);
        let here = answer(states.clone(), 1121, 121, 0);
        let there = answer(states, 1128, 121, 7_400_000_000);
        let all = together(&[here, there]).unwrap();
        assert_eq!((all.productive_s, all.idle_s, all.unknown_s), (61, 60, 0));
    }

    #[test]
    fn a_host_without_an_answer_is_unknown() {
        let active = SecondState::Active.code();
        let here = answer(vec![active << 4 | active; 60], 1120, 120, 0);
        let missing = NoHostAnswer { kind: "lost", reason: "gone".into(), remedy: String::new() };
        let silent = HostAnswer { host: "b".parse().unwrap(), answer: Err(missing) };
        let answers = [here, silent];
        let all = together(&answers).unwrap();
        assert_eq!((all.productive_s, all.unknown_s, all.coverage), (0, 120, 0.0));
        let text = page(&answers, Some(&all), false);
        assert!(text.contains("goodput unknown") && text.contains("gone"), "{text}");
        assert!(text.contains(" on 2 hosts, 1 without an answer: "), "{text}");
    }

    #[test]
    fn a_host_that_does_not_know_the_job_has_answered() {
        let answer = |host: &str, kind| {
            let missing = NoHostAnswer { kind, reason: "no job".into(), remedy: String::new() };
            HostAnswer { host: host.parse().unwrap(), answer: Err(missing) }
        };
        let answers = [answer("a", NoHostAnswer::REFUSED), answer("b", NoHostAnswer::REFUSED)];
        assert!(page(&answers, None, false).starts_with("2 hosts, 2 without a figure; the notes say why\n"));
        let answers = [answer("a", NoHostAnswer::REFUSED), answer("b", "lost")];
        let text = page(&answers, None, false);
        assert!(text.starts_with("2 hosts, 1 without a figure, 1 without an answer; "), "{text}");
    }
}
