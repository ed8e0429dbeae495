//! For clients: shows the token, and understands the refusal.

use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::{FENCING_TOKEN, parse};
use crate::FencingToken;
use crate::fence::StaleToken;

/// Puts a token on a request.
pub fn present(headers: &mut HeaderMap, token: FencingToken) {
    headers.insert(FENCING_TOKEN, HeaderValue::from(token.get()));
}

/// The refusal that a response stands for, if it is one: the status is 412 and it says which token was seen.
/// A 412 without that is about something else.
pub fn refusal<B>(response: &Response<B>, resource: &str, presented: FencingToken) -> Option<StaleToken> {
    if response.status() != StatusCode::PRECONDITION_FAILED {
        return None;
    }
    let highest = parse(response.headers().get(FENCING_TOKEN)?.as_bytes())?;
    Some(StaleToken::new(resource, presented, highest))
}
