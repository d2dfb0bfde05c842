//! The gRPC service: reads a request, finds its call, and answers while the call runs.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{Ready, ready},
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use prost::Message;
use proto::tensorflow::{
    ContinuousProfilingResponse, MonitorRequest, ProfileRequest, StopContinuousProfilingResponse,
    TerminateRequest, TerminateResponse,
};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};
use xprof::framing;

use super::{XprofApi, XprofCaller, XprofInputs, answer::Answer, monitor, profile, recorded};
use crate::{access::Scope, connections::ConnectInfo, grpc_server::REQUEST_BYTES, grpc_sessions};

/// The service.
#[derive(Clone)]
pub struct XprofService(Arc<XprofApi>);

impl XprofService {
    /// The service on top of these.
    pub fn new(inputs: XprofInputs) -> Self {
        Self(Arc::new(XprofApi { inputs, running: Mutex::default(), taken: Mutex::new(BTreeMap::new()) }))
    }
}

impl NamedService for XprofService {
    const NAME: &'static str = "tensorflow.ProfilerService";
}

impl Service<http::Request<Body>> for XprofService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (answer, response) = Answer::begin();
        let api = Arc::clone(&self.0);
        // A task of its own: it ends by itself when the client hangs up.
        tokio::spawn(async move {
            let result = api.answer(request, &answer).await;
            answer.end(result).await;
        });
        ready(Ok(response))
    }
}

impl XprofApi {
    async fn answer(self: Arc<Self>, request: http::Request<Body>, answer: &Answer) -> Result<(), Status> {
        let (parts, body) = request.into_parts();
        let caller = caller(&parts.extensions)?;
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default();
        let message = read(body).await?;
        match method {
            "Profile" => profile::profile(&self, caller, decoded(message)?, answer).await,
            "Terminate" => {
                let request: TerminateRequest = decoded(message)?;
                self.terminate(&caller, &request.session_id);
                whole(answer, &TerminateResponse {}).await
            }
            "Monitor" => {
                let request: MonitorRequest = decoded(message)?;
                whole(answer, &monitor::monitor(&self.inputs.host_api, &request)).await
            }
            "StartContinuousProfiling" => {
                let request: ProfileRequest = decoded(message)?;
                recorded::start(&self, &caller, &request).await?;
                whole(answer, &ContinuousProfilingResponse {}).await
            }
            "StopContinuousProfiling" => {
                recorded::stop(&self, &caller).await?;
                whole(answer, &StopContinuousProfilingResponse {}).await
            }
            "GetSnapshot" | "GetSnapShot" => recorded::snapshot(&self, caller, answer).await,
            _ => Err(Status::unimplemented("the profiler service has no such method")),
        }
    }
}

/// Who calls, as the authorization layer has it.
fn caller(extensions: &http::Extensions) -> Result<XprofCaller, Status> {
    let scope = extensions.get::<Scope>().cloned();
    let scope =
        scope.ok_or_else(|| Status::permission_denied("the call did not pass the authorization layer"))?;
    Ok(XprofCaller { scope, caller: grpc_sessions::caller_of(extensions.get::<ConnectInfo>()) })
}

/// The message of a request, bounded.
async fn read(body: Body) -> Result<Bytes, Status> {
    let body = Limited::new(body, REQUEST_BYTES).collect().await;
    let body = body.map_err(|error| {
        Status::invalid_argument(format!(
            "the request cannot be read, it may have {REQUEST_BYTES} bytes: {error}"
        ))
    })?;
    framing::unframed(body.to_bytes())
        .map_err(|error| Status::invalid_argument(format!("the request is no gRPC message: {error}")))
}

fn decoded<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message)
        .map_err(|error| Status::invalid_argument(format!("the request cannot be decoded: {error}")))
}

async fn whole(answer: &Answer, message: &impl Message) -> Result<(), Status> {
    Ok(answer.send(framing::framed(message)).await?)
}
