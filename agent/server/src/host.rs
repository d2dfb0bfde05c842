//! The service `tpuscope.v1.Host`: looks, and changes nothing.

use std::{sync::Arc, time::Duration};

use proto::tpuscope::v1::{
    HistoryReply, HistoryRequest, SamplesReply, SamplesRequest, StatusReply, StatusRequest, host_server,
};
use tonic::{Request, Response, Status};

use super::{
    desk::{Desk, HistoryQuery},
    hello,
};

/// Answers from the desk.
pub struct Host {
    desk: Arc<Desk>,
}

impl Host {
    /// The service at this desk.
    pub fn new(desk: Arc<Desk>) -> Self {
        Self { desk }
    }
}

#[tonic::async_trait]
impl host_server::Host for Host {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        hello::check(request.get_ref().peer.as_ref())?;
        Ok(Response::new(self.desk.status()))
    }

    async fn samples(&self, request: Request<SamplesRequest>) -> Result<Response<SamplesReply>, Status> {
        hello::check(request.get_ref().peer.as_ref())?;
        Ok(Response::new(self.desk.samples(&request.get_ref().metrics)))
    }

    async fn history(&self, request: Request<HistoryRequest>) -> Result<Response<HistoryReply>, Status> {
        let request = request.into_inner();
        hello::check(request.peer.as_ref())?;
        if request.metric.is_empty() {
            return Err(Status::invalid_argument("which metric? set `metric`"));
        }
        Ok(Response::new(self.desk.history(&HistoryQuery {
            metric: request.metric,
            chip: request.chip,
            last: (request.last_ns > 0).then(|| Duration::from_nanos(request.last_ns)),
            limit: Some(request.limit),
        })))
    }
}
