//! The tower layer: parses the token, has it checked and recorded, and lets the request to its handler when nobody older is there.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::gate::{Closed, Gates, Running};
use super::{FENCING_TOKEN, parse};
use crate::FencingToken;
use crate::fence::{Error, Fence, StaleToken, named};

const PATIENCE: Duration = Duration::from_secs(30);

/// Refuses stale requests. See the [module](super) for what it answers and when.
///
/// Bodies are of any type; that of responses must be made from a `String`, for refusals. Clones, and all services made from
/// one layer, wait for each other's requests; two layers do not, even with the same [`Fence`].
#[derive(Clone, Debug)]
pub struct FenceLayer {
    options: Options,
    gates: Arc<Gates>,
}

#[derive(Clone)]
struct Options {
    fence: Fence,
    resource: Arc<dyn Fn(&Parts) -> String + Send + Sync>,
    reads: bool,
    once: bool,
    patience: Duration,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("reads", &self.reads)
            .field("once", &self.once)
            .finish_non_exhaustive()
    }
}

impl FenceLayer {
    /// Guards the resource that `resource` says a request is about. Tokens are remembered in `fence`.
    ///
    /// Let it name what the handler will touch, not how the request spells it: `/accounts/7`, `/accounts/7/` and
    /// `/accounts/%37` may be one account, and are three names.
    pub fn new(fence: Fence, resource: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        let resource = Arc::new(resource);
        let options = Options { fence, resource, reads: false, once: false, patience: PATIENCE };
        Self { options, gates: Arc::default() }
    }

    /// Lets `GET`, `HEAD`, `OPTIONS` and `TRACE` through without a token, at any time. What a holder reads before it writes it has to
    /// read *with* its token: the first request with it keeps older holders out. By default they need one like all others.
    pub fn reads_without_token(mut self) -> Self {
        self.options.reads = true;
        self
    }

    /// Lets each token through once: for effects that must not be repeated. A request whose handler failed cannot be repeated
    /// either; its client needs a new token. By default a holder comes as often as it likes.
    pub fn once(mut self) -> Self {
        self.options.once = true;
        self
    }

    /// How long a request waits for those of older holders. 30 s by default; then it is answered with 503.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { layer: self.clone(), inner }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct FenceService<S> {
    layer: FenceLayer,
    inner: S,
}

impl<S, In, Out> Service<Request<In>> for FenceService<S>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    In: Send + 'static,
    Out: From<String>,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Out>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let layer = self.layer.clone();
        // The one that was found ready is the one to call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let running = match layer.admit(&parts).await {
                Ok(None) => return inner.call(Request::from_parts(parts, body)).await,
                Ok(Some((token, running))) => {
                    parts.extensions.insert(token);
                    parts.extensions.insert(running.clone());
                    running
                }
                Err(refusal) => return Ok(refusal.response()),
            };
            let response = inner.call(Request::from_parts(parts, body)).await;
            drop(running);
            response
        })
    }
}

/// What a request is answered with instead of by its handler.
enum Refusal {
    Stale(StaleToken),
    Missing,
    Malformed,
    /// Try again, and why.
    Later(&'static str),
}

impl FenceLayer {
    /// Checks the token of a request and waits for its turn. `None`: it needs none.
    async fn admit(&self, parts: &Parts) -> Result<Option<(FencingToken, Running)>, Refusal> {
        let mut given = parts.headers.get_all(FENCING_TOKEN).iter();
        let token = match (given.next(), given.next()) {
            (None, _) if self.options.reads && parts.method.is_safe() => return Ok(None),
            (None, _) => return Err(Refusal::Missing),
            (Some(_), Some(_)) => return Err(Refusal::Malformed),
            (Some(value), None) => parse(value.as_bytes()).ok_or(Refusal::Malformed)?,
        };
        let resource = (self.options.resource)(parts);
        let name = named(&resource).map_err(|_| Refusal::Malformed)?;
        let stale = |highest| Refusal::Stale(StaleToken::new(&resource, token, highest));
        // From before the check to the end: see `Visit`.
        let visit = self.gates.visit(name);
        if let Some(highest) = visit.is_stale(token) {
            return Err(stale(highest));
        }
        self.record(&resource, token).await.map_err(|error| match error {
            Error::Stale(refusal) => Refusal::Stale(refusal),
            error => {
                tracing::warn!(%error, resource, "a fencing token could not be checked");
                Refusal::Later("tokens cannot be checked at the moment; try again")
            }
        })?;
        match visit.enter(token, self.options.patience).await {
            Ok(running) => Ok(Some((token, running))),
            Err(Closed::Stale(highest)) => Err(stale(highest)),
            Err(Closed::Occupied) => {
                Err(Refusal::Later("requests of an earlier holder are still at work; try again"))
            }
        }
    }

    async fn record(&self, resource: &str, token: FencingToken) -> Result<(), Error> {
        let resource = self.options.fence.resource(resource);
        if self.options.once {
            resource.write_once(token, "").await
        } else {
            resource.activate(token).await.map(drop)
        }
    }
}

impl Refusal {
    fn response<B: From<String>>(self) -> Response<B> {
        let malformed =
            "the header `Fencing-Token` must be there once and hold one number between 1 and 2^53 - 1";
        let missing =
            "this resource takes requests with the header `Fencing-Token` only: the token of your lock";
        let (status, header, body) = match self {
            Self::Stale(stale) => (
                StatusCode::PRECONDITION_FAILED,
                Some((FENCING_TOKEN, HeaderValue::from(stale.highest.get()))),
                serde_json::json!({
                    "error": stale.to_string(),
                    "resource": stale.resource,
                    "presented": stale.presented,
                    "highest": stale.highest,
                }),
            ),
            Self::Missing => {
                (StatusCode::PRECONDITION_REQUIRED, None, serde_json::json!({ "error": missing }))
            }
            Self::Malformed => (StatusCode::BAD_REQUEST, None, serde_json::json!({ "error": malformed })),
            Self::Later(why) => (
                StatusCode::SERVICE_UNAVAILABLE,
                Some((RETRY_AFTER, HeaderValue::from(1))),
                serde_json::json!({ "error": why }),
            ),
        };
        let mut response = Response::new(B::from(body.to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().extend(header);
        response
    }
}
