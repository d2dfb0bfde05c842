//! gRPC reflection, which describes the agent's services to clients that know none of them, such as grpcurl.
//!
//! The descriptions take more memory than all else that a resting agent has, and hardly any agent is ever asked: they are
//! decoded at the first request. Must never describe a service that the agent does not have.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use http::{Request, Response};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::{Status, body::Body, codegen::Service, server::NamedService, service::Routes};
use tonic_reflection::server::{Builder, Error};

/// Adds both versions of the service.
pub(crate) fn add_to(routes: Routes) -> Routes {
    routes
        .add_service(AtFirstRequest::new(|| builder().build_v1()))
        .add_service(AtFirstRequest::new(|| builder().build_v1alpha()))
}

fn builder() -> Builder<'static> {
    Builder::configure()
        .register_file_descriptor_set(own_descriptors())
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// The agent's own services. The other packages are those that the agent calls.
fn own_descriptors() -> FileDescriptorSet {
    let all = FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap_or_default();
    let own = all.file.into_iter().filter(|file| file.name() == "tpuscope/v1/agent.proto").collect();
    FileDescriptorSet { file: own }
}

/// A service that is made when it is first called.
struct AtFirstRequest<S, F> {
    made: Arc<OnceLock<Result<S, Error>>>,
    make: F,
}

impl<S, F: Fn() -> Result<S, Error>> AtFirstRequest<S, F> {
    fn new(make: F) -> Self {
        Self { made: Arc::default(), make }
    }
}

impl<S, F: Clone> Clone for AtFirstRequest<S, F> {
    fn clone(&self) -> Self {
        Self { made: self.made.clone(), make: self.make.clone() }
    }
}

impl<S: NamedService, F> NamedService for AtFirstRequest<S, F> {
    const NAME: &'static str = S::NAME;
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S, F> Service<Request<Body>> for AtFirstRequest<S, F>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
    S::Future: Send + 'static,
    F: Fn() -> Result<S, Error>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The services of reflection are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        match self.made.get_or_init(|| (self.make)()) {
            Ok(service) => Box::pin(service.clone().call(request)),
            Err(error) => {
                let refused = Status::internal(error.to_string()).into_http();
                Box::pin(std::future::ready(Ok(refused)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_services_alone_are_described() {
        assert!(builder().build_v1().is_ok() && builder().build_v1alpha().is_ok());
        let own = own_descriptors();
        let services: Vec<_> = own.file.iter().flat_map(|file| &file.service).map(|one| one.name()).collect();
        assert_eq!(
            services,
            ["Host", "Captures", "Sessions", "Uploads", "Recorder", "Jobs", "Marks", "Goodput"]
        );
    }

    #[test]
    fn nothing_is_made_before_a_request() {
        let service = AtFirstRequest::new(|| builder().build_v1());
        assert!(service.made.get().is_none());
        // The futures are not polled: the call makes the service.
        drop(service.clone().call(Request::new(Body::empty())));
        assert!(matches!(service.made.get(), Some(Ok(_))));
    }
}
