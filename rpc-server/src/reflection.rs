//! The reflection services: any gRPC client can ask what there is to call. Made once, because anybody may ask.

use crate::http2::Incoming;
use crate::limits::SMALL_MESSAGE;
use http::{Request, Response};
use std::pin::Pin;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_reflection::server::Builder;

type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Answers = Box<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

/// Both versions of the service.
pub(crate) struct Reflection {
    v1: Answers,
    v1alpha: Answers,
}

impl Reflection {
    pub(crate) fn new() -> Result<Reflection, tonic_reflection::server::Error> {
        Ok(Reflection {
            v1: answers(builder().build_v1()?.max_decoding_message_size(SMALL_MESSAGE)),
            v1alpha: answers(builder().build_v1alpha()?.max_decoding_message_size(SMALL_MESSAGE)),
        })
    }

    /// Answers a call of the service of this name.
    pub(crate) async fn call(&self, service: &str, request: Request<Incoming>) -> Option<Response<Body>> {
        match service {
            "grpc.reflection.v1.ServerReflection" => Some((self.v1)(request).await),
            "grpc.reflection.v1alpha.ServerReflection" => Some((self.v1alpha)(request).await),
            _ => None,
        }
    }
}

fn builder() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(outboard_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// A service that every call gets a clone of.
fn answers<S>(service: S) -> Answers
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = std::convert::Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            match service.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    })
}
