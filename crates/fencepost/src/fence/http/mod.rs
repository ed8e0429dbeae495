//! An HTTP service as a resource: requests carry the token in the header `Fencing-Token`, and a tower layer
//! in front of the handlers refuses stale ones.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use fencepost::FencingToken;
//! use fencepost::fence::Fence;
//! use fencepost::fence::http::{FenceLayer, present, refusal};
//! use http::{Request, Response};
//! use tower_layer::Layer as _;
//! use tower_service::Service as _;
//!
//! // What answers requests: a router, or any other service.
//! # use std::task::{Context, Poll};
//! # #[derive(Clone)] struct Accounts;
//! # impl tower_service::Service<Request<String>> for Accounts {
//! #     type Response = Response<String>;
//! #     type Error = std::convert::Infallible;
//! #     type Future = std::future::Ready<Result<Response<String>, std::convert::Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
//! #         Ok(()).into()
//! #     }
//! #     fn call(&mut self, _: Request<String>) -> Self::Future {
//! #         std::future::ready(Ok(Response::new("done".into())))
//! #     }
//! # }
//! // The server. A file or a database instead of `memory:` remembers tokens over a restart.
//! let fence = Fence::connect("memory:").await?;
//! let layer = FenceLayer::new(fence, |request| request.uri.path().to_owned()).reads_without_token();
//! let mut service = layer.layer(Accounts);
//!
//! // The client, with the token of its lock.
//! let mut put = |token| {
//!     let mut request = Request::put("/accounts/7").body("100".to_owned()).unwrap();
//!     present(request.headers_mut(), token);
//!     service.call(request)
//! };
//! let (older, newer) = (FencingToken::new(7).unwrap(), FencingToken::new(8).unwrap());
//! assert_eq!(put(newer).await?.status(), 200);
//! let response = put(older).await?;
//! assert_eq!(response.status(), 412);
//! assert_eq!(refusal(&response, "/accounts/7", older).unwrap().highest, newer);
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! | answer | when |
//! |---|---|
//! | 412, `Fencing-Token: highest` | a larger token was seen |
//! | 428 | the request has no token |
//! | 400 | what it has is no token |
//! | 500 | with [`once`](FenceLayer::once) only: nothing was done, but the token may count as used |
//! | 503, `Retry-After: 1` | tokens cannot be checked, or an older holder's requests did not end in time |
//!
//! # While a handler runs
//! A request that was checked may still be at work when a newer holder arrives. So a newer one waits until
//! all requests of older ones for the same resource have ended; from its arrival on, older ones are refused.
//! A handler that has begun runs to its end in a task of its own, also if its client hangs up. Does it leave
//! something behind (a spawned task, a queue, a thread, a query that it does not wait for)? Then give that a
//! clone of [`Running`] from the request's extensions, which says when it has ended. So with a response that
//! writes while it is streamed. Handlers that need a limit of time set it themselves, inside of this layer.
//!
//! # Several servers
//! Behind a balancer each server waits for its own requests only. Servers may share the place that remembers
//! tokens, and then refuse what is stale when it *arrives* at any of them. But a handler of an older holder
//! that still runs at one server is not waited for at another. Send all requests for a resource to one
//! server, or take the token on to where the data is (it is in the extensions as a [`FencingToken`]) and
//! check it there, as `postgres::activate` does. That is always the better place.

mod client;
mod gate;
mod layer;

use http::HeaderName;

pub use self::client::{present, refusal};
pub use self::gate::Running;
pub use self::layer::{FenceLayer, FenceService};

use crate::FencingToken;

/// The header that carries a token: in a request the holder's, in a 412 the largest that was seen.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// The token in a header, in its one spelling.
fn parse(text: &[u8]) -> Option<FencingToken> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_that_is_no_text_is_no_token() {
        assert_eq!(parse(b"42"), FencingToken::new(42));
        assert_eq!((parse(b"+42"), parse(&[0xff])), (None, None));
    }

    proptest! {
        #[test]
        fn what_a_client_presents_and_is_told_reads_back(
            presented in 1u64..1 << 53,
            highest in 1u64..1 << 53,
        ) {
            let [presented, highest] = [presented, highest].map(|number| FencingToken::new(number).unwrap());
            let mut response = http::Response::builder().status(412).body(()).unwrap();
            super::present(response.headers_mut(), highest);
            let told = super::refusal(&response, "r", presented).unwrap();
            prop_assert_eq!((told.presented, told.highest), (presented, highest));
        }
    }
}
