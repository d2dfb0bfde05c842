//! The gRPC service `tpuscope.v1.Host`: read-only.

use std::{sync::Arc, time::Duration};

use proto::tpuscope::v1::{
    ClockReply, ClockRequest, HistoryReply, HistoryRequest, SamplesReply, SamplesRequest, StatusReply,
    StatusRequest, host_server,
};
use tonic::{Request, Response, Status};

use super::{
    host_api::{HistoryQuery, HostApi},
    protocol,
};

/// The service, on top of a [`HostApi`].
pub struct GrpcHost {
    host_api: Arc<HostApi>,
}

impl GrpcHost {
    /// The service on top of this [`HostApi`].
    pub fn new(host_api: Arc<HostApi>) -> Self {
        Self { host_api }
    }
}

#[tonic::async_trait]
impl host_server::Host for GrpcHost {
    async fn clock(&self, request: Request<ClockRequest>) -> Result<Response<ClockReply>, Status> {
        let received = self.host_api.now();
        // Only the first request of a connection has it.
        if let Some(peer) = &request.get_ref().peer {
            protocol::check(Some(peer))?;
        }
        let replied = self.host_api.now();
        Ok(Response::new(ClockReply { received_unix_ns: received.0, replied_unix_ns: replied.0 }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        protocol::check(request.get_ref().peer.as_ref())?;
        Ok(Response::new(self.host_api.status()))
    }

    async fn samples(&self, request: Request<SamplesRequest>) -> Result<Response<SamplesReply>, Status> {
        protocol::check(request.get_ref().peer.as_ref())?;
        Ok(Response::new(self.host_api.samples(&request.get_ref().metrics)))
    }

    async fn history(&self, request: Request<HistoryRequest>) -> Result<Response<HistoryReply>, Status> {
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        if request.metric.is_empty() {
            return Err(Status::invalid_argument("the request names no metric; set `metric`"));
        }
        Ok(Response::new(self.host_api.history(&HistoryQuery {
            metric: request.metric,
            chip: request.chip,
            last: (request.last_ns > 0).then(|| Duration::from_nanos(request.last_ns)),
            limit: Some(request.limit),
        })))
    }
}
