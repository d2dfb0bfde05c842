//! One host's side of a snapshot over several hosts: its clock is measured, it says what it has of the past, and once all have
//! said so it makes its part.
//!
//! The times that are wanted are those of the coordinator's clock: each host is asked for them in its own.

use std::time::Duration;

use model::time::Timestamp;
use proto::tpuscope::v1::{
    CaptureFinished, SnapshotEvent, SnapshotPlan, SnapshotRequest, recorder_client::RecorderClient,
    snapshot_event,
};
use tonic::{Streaming, transport::Channel};

use super::{
    collect::Collection,
    conversation::{Conversation, ConversationEnd, Happened, HostCommand, ReservationEnd, kept, of_failure},
    fault::HostFault,
    machine::ReservedHost,
};

/// What a host is asked.
const PLAN: &str = "asked what it has of the past";
const MAKE: &str = "asked for a snapshot";

impl Conversation {
    /// Until the host has made its part.
    pub(super) async fn make_snapshot(
        &mut self,
        channel: &Channel,
        wanted: SnapshotRequest,
    ) -> Result<ReservationEnd, ConversationEnd> {
        let clock = self.measured_clock(channel.clone()).await?;
        let of_host = |at: i64| Timestamp(at).stepped(clock.offset_ns).0;
        let request = SnapshotRequest {
            from_unix_ns: of_host(wanted.from_unix_ns),
            to_unix_ns: of_host(wanted.to_unix_ns),
            session_id: self.common.identity.id.to_string(),
            parts_only: matches!(self.common.collection, Collection::Uploaded { .. }),
            ..wanted
        };
        let mut recorder = RecorderClient::new(channel.clone());
        let plan = self.within(PLAN, recorder.plan_snapshot(request.clone())).await?.into_inner();
        let SnapshotPlan { host, processes, destination_url, failure, .. } = plan;
        if let Some(failure) = failure {
            return Err(of_failure(failure).into());
        }
        let name = host.parse().map_err(|_| HostFault::BadAnswer("a host name that is none"))?;
        let ready = ReservedHost { name, clock, lead: Duration::ZERO, destination: destination_url };
        self.tell(Happened::Ready { host: ready, targets: processes as usize }).await;
        loop {
            match self.commands.recv().await.ok_or(ConversationEnd::Over)? {
                HostCommand::Start(_) => break,
                HostCommand::Release => return Ok(ReservationEnd::Released),
                HostCommand::Remove => {
                    self.tell(Happened::Removed).await;
                    return Err(ConversationEnd::Over);
                }
                _ => {}
            }
        }
        let events = self.within(MAKE, recorder.snapshot(request)).await?.into_inner();
        let finished = self.receive(channel, events).await?;
        let finished = kept(finished, &self.common.identity)?;
        self.tell(Happened::Recorded(Box::new(finished))).await;
        Ok(ReservationEnd::Recorded)
    }

    /// Shows the progress until the part is made. Dropping the events ends the work of the agent.
    async fn receive(
        &mut self,
        channel: &Channel,
        mut events: Streaming<SnapshotEvent>,
    ) -> Result<CaptureFinished, ConversationEnd> {
        loop {
            let event = tokio::select! {
                command = self.commands.recv() => match command.ok_or(ConversationEnd::Over)? {
                    HostCommand::Remove => {
                        drop(events);
                        self.remove(channel.clone()).await;
                        self.tell(Happened::Removed).await;
                        return Err(ConversationEnd::Over);
                    }
                    _ => continue,
                },
                event = events.message() => event.map_err(|status| HostFault::Refused(Box::new(status)))?,
            };
            match event.ok_or(HostFault::BadAnswer("no end of its snapshot"))?.event {
                Some(snapshot_event::Event::Progress(at)) => {
                    self.tell(Happened::Received { target: 0, bytes: at.done_bytes }).await;
                }
                Some(snapshot_event::Event::Finished(finished)) => return Ok(finished),
                // Of a later agent.
                None => {}
            }
        }
    }
}
