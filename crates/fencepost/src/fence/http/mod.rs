//! An HTTP service as a resource: requests carry the token in the header `Fencing-Token`, and a tower layer in front of the handlers
//! refuses stale ones.
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
//! # #[derive(Clone)] struct Accounts;
//! # impl tower_service::Service<Request<String>> for Accounts {
//! #     type Response = Response<String>;
//! #     type Error = std::convert::Infallible;
//! #     type Future = std::future::Ready<Result<Response<String>, std::convert::Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> { Ok(()).into() }
//! #     fn call(&mut self, _: Request<String>) -> Self::Future { std::future::ready(Ok(Response::new("done".into()))) }
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
//! | 500 | with [`once`](FenceLayer::once) only: nothing was done, but the token may count as used. Take a new one |
//! | 503, `Retry-After: 1` | the place that remembers tokens is out of reach, or requests of an older holder did not end in time |
//!
//! # While a handler runs
//! A request that was checked may still be at work when a newer holder arrives. So a newer one waits until all requests
//! of older ones for the same resource have ended, and from its arrival on older ones are refused. A handler that has begun runs to
//! its end in a task of its own, also if its client hangs up. What it leaves behind (a spawned task, a queue, a thread, a query that it does not
//! wait for) must be given a clone of [`Running`] from the request's extensions, which says when that has ended. So must a response
//! that writes while it is streamed. Handlers that need a limit of time set it themselves, inside of this layer.
//!
//! # Several servers
//! Behind a balancer each server waits for its own requests only. They may share the place that remembers tokens, and then refuse
//! what is stale when it *arrives* at any of them; but a handler of an older holder that is still running at one server is not
//! waited for at another. Send all requests for a resource to one server, or take the token on to where the data is (it is in the
//! extensions as a [`FencingToken`]) and check it there, as [`postgres::activate`](super::postgres::activate) does. That
//! is always the better place.

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

/// A token in plain digits. No sign, no blank, no zero in front: two spellings of one number are one too many.
fn parse(text: &[u8]) -> Option<FencingToken> {
    let text = std::str::from_utf8(text).ok()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    FencingToken::new(text.parse().ok().filter(|_| plain)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_has_one_spelling() {
        assert_eq!(parse(b"42"), FencingToken::new(42));
        assert_eq!(parse(b"9007199254740991"), FencingToken::new((1 << 53) - 1));
        for text in [
            "",
            "0",
            "042",
            "+42",
            "-42",
            " 42",
            "42 ",
            "4_2",
            "42.0",
            "9007199254740992",
            "99999999999999999999",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(&[0xff]), None);
    }

    proptest! {
        #[test]
        fn a_header_is_a_token_in_its_one_spelling_or_nothing(text in proptest::collection::vec(any::<u8>(), 0..24), number: u64) {
            if let Some(token) = parse(&text) {
                prop_assert_eq!(token.to_string().into_bytes(), text);
            }
            prop_assert_eq!(parse(number.to_string().as_bytes()), FencingToken::new(number));
        }

        #[test]
        fn what_a_client_presents_and_is_told_reads_back(presented in 1u64..1 << 53, highest in 1u64..1 << 53) {
            let [presented, highest] = [presented, highest].map(|number| FencingToken::new(number).unwrap());
            let mut response = http::Response::builder().status(412).body(()).unwrap();
            super::present(response.headers_mut(), highest);
            let told = super::refusal(&response, "r", presented).unwrap();
            prop_assert_eq!((told.presented, told.highest), (presented, highest));
        }
    }
}
