//! `tpuscope goodput` of a job whose program sends marks: the agent's exact or strict ledger.

use goodput::{
    answer::LedgerAnswer,
    strict::{Repairs, StrictAnswer},
};
use model::time::Timestamp;
use proto::tpuscope::v1::{MarkedGoodputReply, MarkedGoodputRequest, marks_client::MarksClient};
use serde_json::{Value, json};
use server::protocol;
use tokio::time::timeout;
use xprof::wording::counted;

use super::{Args, AskedJob, live_text, show, tensorboard};
use crate::{
    CommandResult, client,
    failure::Failure,
    output::{self, one_line},
    remedies,
};

/// The answer of the agent about a job by its name in marks.
pub(super) fn ask(args: &Args, asked: AskedJob<'_>) -> Result<MarkedGoodputReply, Failure> {
    let AskedJob { marked: job, time, .. } = asked;
    let ends = args.live.ends(time, args.now.unwrap_or_else(super::present));
    let request = MarkedGoodputRequest {
        peer: Some(protocol::own()),
        job: job.to_owned(),
        uid: args.user,
        ledger: if args.strict { "strict" } else { "exact" }.to_owned(),
        now: args.now.map(|at| at.seconds()),
        start: ends.map(|(start, _)| start.seconds()),
        end: ends.map(|(_, end)| end.seconds()),
        elastic: args.elastic,
        location: args.location.clone(),
        accelerator_type: super::labels(args, job).accelerator_type,
        replica_id: args.replica_id.clone(),
        cluster_name: args.cluster_name.clone().unwrap_or_default(),
    };
    client::block_on(async {
        let mut marks = MarksClient::new(args.agent.connect().await?);
        match timeout(client::CALL_TIMEOUT, marks.goodput(request)).await {
            Ok(answered) => Ok(answered.map_err(|status| remedies::no_marked_answer(&status))?.into_inner()),
            Err(_) => Err(remedies::call_timeout(client::CALL_TIMEOUT)),
        }
    })
}

/// Prints the answer.
pub(super) fn show(args: &Args, reply: &MarkedGoodputReply, attempt: Option<u32>) -> CommandResult {
    let (answer, repairs) = typed(reply, args.strict)?;
    if args.json {
        output::json(&as_json(reply)?)?;
        return tensorboard::of_events(args, &answer);
    }
    let ledger = if args.strict { "strict" } else { "exact" };
    let of_attempt = attempt.map(|number| format!("attempt {number} of ")).unwrap_or_default();
    let of_user = live_text::of_user(reply.uid, super::own_uid());
    let about = format!("{of_attempt}{}{of_user} ({ledger}, from marks)", reply.job);
    if let LedgerAnswer::Failed(failed) = &answer {
        let what = format!("{about}: {}: {}", failed.error.name(), failed.message);
        return Err(remedies::no_answer_of_marks(what, &gaps(reply), args.strict));
    }
    let names = if args.dashboard_names { show::BucketNames::Dashboard } else { show::BucketNames::Library };
    let mut page = show::answer(&about, &answer, names, repairs.as_ref());
    for gap in gaps(reply) {
        page.push_str(&format!("  incomplete: {gap}\n"));
    }
    output::print(&page)?;
    tensorboard::of_events(args, &answer)
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::internal(format_args!("the agent's answer cannot be read: {error}"))
}

fn typed(reply: &MarkedGoodputReply, strict: bool) -> Result<(LedgerAnswer, Option<Repairs>), Failure> {
    if strict {
        let answer: StrictAnswer = serde_json::from_str(&reply.answer).map_err(|error| unreadable(&error))?;
        return Ok((answer.answer, Some(answer.repairs)));
    }
    Ok((serde_json::from_str(&reply.answer).map_err(|error| unreadable(&error))?, None))
}

fn as_json(reply: &MarkedGoodputReply) -> Result<Value, Failure> {
    let mut answer: Value = serde_json::from_str(&reply.answer).map_err(|error| unreadable(&error))?;
    answer["marks"] = json!({
        "job": reply.job,
        "uid": reply.uid,
        "stored": reply.marks,
        "lost": reply.lost,
        "refused": reply.refused,
        "removed": reply.removed,
        "complete": gaps(reply).is_empty(),
        "last": Timestamp(reply.last_unix_ns).to_string(),
    });
    Ok(answer)
}

/// What the ledger lacks, in words.
fn gaps(reply: &MarkedGoodputReply) -> Vec<String> {
    let marks = |count| counted(count, "mark");
    [
        (reply.lost, "never came: the buffer of the program was full, or the agent was away for too long"),
        (reply.refused, "were refused: `stats()` of the program's recorder and the agent's metrics say why"),
        (reply.removed, "were removed: marks.max_size has no room for them"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, why)| one_line(&format!("{} {why}", marks(count))))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn reply(answer: &str) -> MarkedGoodputReply {
        MarkedGoodputReply { job: "j".into(), uid: 7, answer: answer.into(), ..MarkedGoodputReply::default() }
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut reply = reply("{}");
        assert_eq!(gaps(&reply), [""; 0]);
        (reply.lost, reply.removed) = (1, 2000);
        let gaps = gaps(&reply);
        assert!(
            gaps[0].starts_with("1 mark never came") && gaps[1].starts_with("2000 marks were"),
            "{gaps:?}"
        );
        assert_eq!(as_json(&reply).unwrap()["marks"]["complete"], false);
    }

    #[test]
    fn an_answer_that_is_none_is_an_internal_error() {
        for bad in ["", "{}", "[1]"] {
            assert_eq!(typed(&reply(bad), false).unwrap_err().exit, Exit::Internal, "{bad}");
        }
    }
}
