//! `tpuscope goodput --tensorboard`: the answer as an event file. Each call writes a file of its own.

use std::path::Path;

use export::tensorboard::{
    EventFolder, RunWriter,
    scalars::{self, ProxyFigures, ScalarGroup},
};
use goodput::{answer::LedgerAnswer, proxy::live::SecondState};
use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{GoodputReply, JobGoodput};

use super::{Args, warn};
use crate::{CommandResult, exit::Exit, output, remedies};

/// Writes the answer of the exact or the strict ledger where the arguments want it.
pub(super) fn of_events(args: &Args, answer: &LedgerAnswer) -> CommandResult {
    let Some(folder) = &args.tensorboard else { return Ok(Exit::Ok) };
    let groups = match answer {
        LedgerAnswer::Job(answer) => scalars::of_job(answer, &mut None),
        LedgerAnswer::Window(_) | LedgerAnswer::Failed(_) => Vec::new(),
    };
    let at = args.now.map_or_else(|| SystemClock.now(), |now| Timestamp(now.0.saturating_mul(1000)));
    // The library's own writer names it so.
    let run = if args.strict { "strict" } else { "goodput" };
    write(folder, run, &groups, at)
}

/// Writes the answer of the proxy ledger, if an event file is wanted.
pub(super) fn of_proxy(folder: Option<&Path>, reply: &GoodputReply) -> CommandResult {
    let Some(folder) = folder else { return Ok(Exit::Ok) };
    let groups = reply.jobs.first().map(|job| scalars::of_proxy(&figures(job))).unwrap_or_default();
    let host = EventFolder::new(folder, &reply.host, 0);
    write(folder, &format!("proxy-{}", host.host()), &groups, Timestamp(reply.at_unix_ns))
}

fn figures(job: &JobGoodput) -> ProxyFigures<'static> {
    let lost = SecondState::ALL.into_iter().filter(|state| state.is_known() && !state.is_productive());
    ProxyFigures {
        elapsed_seconds: job.elapsed_seconds,
        known_seconds: job.known_seconds,
        goodput_ratio: job.goodput_ratio,
        coverage_ratio: job.coverage_ratio,
        scheduling_goodput_ratio: job.scheduling_goodput_ratio,
        lost: lost
            .map(|state| (state.name(), job.seconds.get(state.name()).copied().unwrap_or_default()))
            .collect(),
    }
}

fn write(folder: &Path, run: &str, groups: &[ScalarGroup], at: Timestamp) -> CommandResult {
    if groups.is_empty() {
        warn("nothing is known of the job yet: no event file was written");
        return Ok(Exit::Ok);
    }
    let failed = |error: &std::io::Error| remedies::event_file(folder, error);
    std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let writer = EventFolder::new(folder, &host.unwrap_or_else(|| "localhost".into()), std::process::id());
    let mut run = RunWriter::new(run);
    run.write(&writer, groups, at).map_err(|error| failed(&error))?;
    if let Some(file) = run.file() {
        output::print_error(&format!("wrote {}", output::one_line(&folder.join(file).to_string_lossy())));
    }
    Ok(Exit::Ok)
}
