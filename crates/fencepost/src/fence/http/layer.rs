//! The tower layer: parses the token, has it checked and recorded, and lets the request to its handler when
//! nobody older is there.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use serde_json::json;
use tokio::task::JoinError;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use super::gate::{Closed, Gates, Running};
use super::{FENCING_TOKEN, parse};
use crate::FencingToken;
use crate::fence::{Error, Fence, StaleToken, named};

const PATIENCE: Duration = Duration::from_secs(30);
/// Tokens are remembered under names that begin with this, apart from values in the same place.
const PREFIX: &str = "fencepost:http:";
const MISSING: &str =
    "this resource takes requests with the header `Fencing-Token` only: the token of your lock";
const MALFORMED: &str =
    "the header `Fencing-Token` must be there once and hold one number between 1 and 2^53 - 1, in digits";
const BAD_RESOURCE: &str =
    "this request is for a resource whose name is empty, longer than 497 bytes, or has a NUL character";
const OCCUPIED: &str = "requests of an earlier holder are still at work; try again";
const UNCHECKED: &str = "tokens cannot be checked at the moment; try again";
const UNKNOWN: &str = "nothing was done, but whether your token counts as used is not known; do not repeat \
                       the request: take the lock again, and come with its new token";

/// Refuses stale requests. See the [module](super) for what it answers and when.
///
/// Bodies are of any type; that of responses must be made from a `String`, for refusals. Clones, and all
/// services made from one layer, wait for each other's requests; two layers do not, even with the same
/// [`Fence`].
#[derive(Clone)]
#[must_use = "a layer guards nothing until a service is put behind it"]
pub struct FenceLayer {
    fence: Fence,
    resource: Arc<dyn Fn(&Parts) -> String + Send + Sync>,
    reads_without_token: bool,
    once: bool,
    patience: Duration,
    gates: Arc<Gates>,
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl FenceLayer {
    /// Guards the resource that `resource` says a request is about. Tokens are remembered in `fence`, under
    /// that name after `fencepost:http:`; a name has 497 bytes at most.
    ///
    /// Let it name what the handler will touch, not how the request spells it: `/accounts/7`, `/accounts/7/`
    /// and `/accounts/%37` may be one account, and are three names.
    pub fn new(fence: Fence, resource: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        let (resource, gates) = (Arc::new(resource), Arc::default());
        Self { fence, resource, reads_without_token: false, once: false, patience: PATIENCE, gates }
    }

    /// Lets `GET`, `HEAD`, `OPTIONS` and `TRACE` through without a token, at any time. What a holder reads
    /// before it writes it has to read *with* its token: the first request with it keeps older holders out.
    /// By default they need one like all others.
    pub fn reads_without_token(mut self) -> Self {
        self.reads_without_token = true;
        self
    }

    /// Lets each token through once: for effects that must not be repeated. A request whose handler failed,
    /// or never began, cannot be repeated either; its client needs a new token. So a 412 with the client's
    /// own token does not say that the effect has happened. If it is not known whether the token was
    /// recorded, the answer is 500. By default a holder comes as often as it likes.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// How long a request waits for those of older holders. 30 s by default; then it is answered with 503.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
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
    S::Error: Send + 'static,
    In: Send + 'static,
    Out: From<String> + Send + 'static,
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
            // A task of its own: servers drop this future when a client hangs up. What a handler has begun (a
            // query that was sent, a thread) would go on then, and a newer holder would not wait for it.
            let handler = async move {
                let response = inner.call(Request::from_parts(parts, body)).await;
                drop(running);
                response
            };
            match tokio::spawn(handler.in_current_span()).await.map_err(JoinError::try_into_panic) {
                Ok(response) => response,
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // The runtime is shutting down: nobody is left to answer.
                Err(Err(_)) => std::future::pending().await,
            }
        })
    }
}

/// What a request is answered with instead of by its handler.
struct Refusal {
    status: StatusCode,
    header: Option<(HeaderName, HeaderValue)>,
    body: serde_json::Value,
}

impl FenceLayer {
    /// Checks the token of a request and waits for its turn. `None`: it needs none.
    async fn admit(&self, parts: &Parts) -> Result<Option<(FencingToken, Running)>, Refusal> {
        let mut given = parts.headers.get_all(FENCING_TOKEN).iter();
        let token = match (given.next(), given.next()) {
            (None, _) if self.reads_without_token && parts.method.is_safe() => return Ok(None),
            (None, _) => return Err(Refusal::because(StatusCode::PRECONDITION_REQUIRED, MISSING)),
            (Some(_), Some(_)) => return Err(Refusal::bad(MALFORMED)),
            (Some(value), None) => parse(value.as_bytes()).ok_or_else(|| Refusal::bad(MALFORMED))?,
        };
        let resource = (self.resource)(parts);
        let kept_as = format!("{PREFIX}{resource}");
        let name = named(&kept_as).ok().filter(|_| !resource.is_empty());
        let name = name.ok_or_else(|| Refusal::bad(BAD_RESOURCE))?;
        // First the turn, then the check: whoever was checked is known to be at work, and a newer one waits.
        let running = match self.gates.visit(name).enter(token, self.patience).await {
            Ok(running) => running,
            Err(Closed::Stale(highest)) => {
                return Err(Refusal::stale(&StaleToken::new(resource, token, highest)));
            }
            Err(Closed::Occupied) => return Err(Refusal::later(OCCUPIED)),
        };
        let error = match self.record(&kept_as, token).await {
            Ok(()) => return Ok(Some((token, running))),
            Err(Error::Stale(stale)) => {
                return Err(Refusal::stale(&StaleToken::new(resource, token, stale.highest)));
            }
            Err(error) => error,
        };
        tracing::warn!(%error, resource, "a fencing token could not be checked");
        Err(match error {
            // The token may have been recorded: neither this request nor another with it has an effect.
            Error::Uncertain { .. } if self.once => {
                Refusal::because(StatusCode::INTERNAL_SERVER_ERROR, UNKNOWN)
            }
            _ => Refusal::later(UNCHECKED),
        })
    }

    async fn record(&self, resource: &str, token: FencingToken) -> Result<(), Error> {
        let resource = self.fence.resource(resource);
        if self.once {
            resource.write_once(token, "").await
        } else {
            resource.activate(token).await.map(drop)
        }
    }
}

impl Refusal {
    fn stale(stale: &StaleToken) -> Self {
        let body = json!({
            "error": stale.to_string(),
            "resource": stale.resource,
            "presented": stale.presented,
            "highest": stale.highest,
        });
        let header = Some((FENCING_TOKEN, HeaderValue::from(stale.highest.get())));
        Self { status: StatusCode::PRECONDITION_FAILED, header, body }
    }

    fn because(status: StatusCode, why: &str) -> Self {
        Self { status, header: None, body: json!({ "error": why }) }
    }

    /// It makes no sense, and why.
    fn bad(why: &str) -> Self {
        Self::because(StatusCode::BAD_REQUEST, why)
    }

    /// Try again, and why.
    fn later(why: &str) -> Self {
        let header = Some((RETRY_AFTER, HeaderValue::from(1)));
        Self { header, ..Self::because(StatusCode::SERVICE_UNAVAILABLE, why) }
    }

    fn response<B: From<String>>(self) -> Response<B> {
        let mut response = Response::new(B::from(self.body.to_string()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().extend(self.header);
        response
    }
}
