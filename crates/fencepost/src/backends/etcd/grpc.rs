//! gRPC over an HTTP/2 connection: one message there and one back, or a stream of them. Compression is never asked for.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use prost::Message;

/// Larger messages than this are not ours.
const MOST: usize = 64 << 20;

/// What came instead of an answer.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// The connection broke; the server may or may not have acted.
    Broken(String),
    /// The server said no.
    Refused { code: u32, message: String },
}

impl From<h2::Error> for Trouble {
    fn from(error: h2::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Where requests go, and what goes along with each.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) sender: SendRequest<Bytes>,
    /// `https://host:port`.
    pub(super) base: String,
    /// The token of a user who has logged in.
    pub(super) token: Option<HeaderValue>,
}

impl Caller {
    async fn open(
        &self,
        path: &str,
        end: Option<Bytes>,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Trouble> {
        let mut request = http::Request::post(format!("{}/etcdserverpb.{path}", self.base))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            // A member that has lost its leader says so instead of keeping us waiting.
            .header("hasleader", "true");
        if let Some(token) = &self.token {
            request = request.header("token", token);
        }
        let request = request.body(()).map_err(|error| Trouble::Broken(error.to_string()))?;
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut body) = sender.send_request(request, false)?;
        if let Some(message) = end {
            body.send_data(message, true)?;
        }
        Ok((response, body))
    }

    /// One request and its answer. Also for streams of which we want one exchange.
    pub(super) async fn call<A: Message, B: Message + Default>(
        &self,
        path: &str,
        message: &A,
    ) -> Result<B, Trouble> {
        let (response, _body) = self.open(path, Some(frame(message))).await?;
        let mut answers = Answers::new(response).await?;
        let first = answers.next().await?;
        // The verdict follows the message: only then it counts.
        while answers.next::<B>().await?.is_some() {}
        first.ok_or_else(|| Trouble::Broken("the answer was empty".to_owned()))
    }

    /// Opens a stream; its answers begin when the server has something to say.
    pub(super) async fn stream(&self, path: &str) -> Result<(Questions, ResponseFuture), Trouble> {
        let (response, body) = self.open(path, None).await?;
        Ok((Questions(body), response))
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.base)
    }
}

/// The sending half of a stream.
pub(super) struct Questions(SendStream<Bytes>);

impl Questions {
    pub(super) fn send(&mut self, message: &impl Message) -> Result<(), Trouble> {
        Ok(self.0.send_data(frame(message), false)?)
    }
}

/// The receiving half.
pub(super) struct Answers {
    body: RecvStream,
    bytes: BytesMut,
    ready: VecDeque<Bytes>,
}

impl Answers {
    pub(super) async fn new(response: ResponseFuture) -> Result<Self, Trouble> {
        let response = response.await?;
        if !response.status().is_success() {
            return Err(Trouble::Broken(format!(
                "this is not etcd's client port: HTTP {}",
                response.status()
            )));
        }
        // A refusal without a message comes in the headers.
        verdict(response.headers())?;
        Ok(Self { body: response.into_body(), bytes: BytesMut::new(), ready: VecDeque::new() })
    }

    /// The next message; `None` when the server has ended the stream well.
    pub(super) async fn next<T: Message + Default>(&mut self) -> Result<Option<T>, Trouble> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                let message = T::decode(message).map_err(|error| Trouble::Broken(error.to_string()))?;
                return Ok(Some(message));
            }
            match self.body.data().await {
                Some(data) => self.take(data?)?,
                None => {
                    if let Some(trailers) = self.body.trailers().await? {
                        verdict(&trailers)?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    fn take(&mut self, data: Bytes) -> Result<(), Trouble> {
        let _ = self.body.flow_control().release_capacity(data.len());
        self.bytes.extend_from_slice(&data);
        while let Some(message) = unframe(&mut self.bytes)? {
            self.ready.push_back(message);
        }
        Ok(())
    }
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(length + 5);
    bytes.put_u8(0);
    // Names, notes and batches are limited: no message of ours comes near that.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.freeze()
}

/// Takes a whole message out of what has come so far.
fn unframe(bytes: &mut BytesMut) -> Result<Option<Bytes>, Trouble> {
    if bytes.len() < 5 {
        return Ok(None);
    }
    let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
    if bytes[0] != 0 || length > MOST {
        return Err(Trouble::Broken("the answer is compressed or too large".to_owned()));
    }
    if bytes.len() < 5 + length {
        return Ok(None);
    }
    bytes.advance(5);
    Ok(Some(bytes.split_to(length).freeze()))
}

/// What the server thought of the request.
fn verdict(headers: &HeaderMap) -> Result<(), Trouble> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").map_or(Ok(0), str::parse) {
        Ok(0) => Ok(()),
        Ok(code) => {
            let message = text("grpc-message").unwrap_or_default();
            let message = crate::text::decode(message).unwrap_or_else(|| message.to_owned());
            Err(Trouble::Refused { code, message })
        }
        Err(_) => Err(Trouble::Broken("the answer has no readable status".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::etcd::proto::{Header, TxnResponse, WatchResponse};
    use proptest::prelude::*;

    fn header(revision: i64) -> Header {
        Header { revision, ..Header::default() }
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let (one, two) = (header(7), header(1 << 40));
        let all = [frame(&one), frame(&Header::default()), frame(&two)].concat();
        for cut in 0..all.len() {
            let (mut bytes, mut found) = (BytesMut::new(), Vec::new());
            for part in [&all[..cut], &all[cut..]] {
                bytes.extend_from_slice(part);
                while let Some(message) = unframe(&mut bytes).unwrap() {
                    found.push(Header::decode(message).unwrap());
                }
            }
            assert_eq!(found, [one.clone(), Header::default(), two.clone()]);
        }
    }

    #[test]
    fn what_cannot_be_a_message_is_refused() {
        assert!(unframe(&mut BytesMut::from(&[1, 0, 0, 0, 0][..])).is_err());
        assert!(unframe(&mut BytesMut::from(&[0, 255, 0, 0, 0][..])).is_err());
        assert!(unframe(&mut BytesMut::from(&[0, 0, 0, 0][..])).unwrap().is_none());
    }

    #[test]
    fn a_refusal_is_read_from_the_trailers() {
        let mut trailers = HeaderMap::new();
        assert!(verdict(&trailers).is_ok());
        trailers.insert("grpc-status", HeaderValue::from_static("5"));
        trailers.insert("grpc-message", HeaderValue::from_static("no%20lease"));
        let refused = verdict(&trailers).unwrap_err();
        assert!(matches!(refused, Trouble::Refused { code: 5, message } if message == "no lease"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut framed = BytesMut::from(&bytes[..]);
            while let Ok(Some(message)) = unframe(&mut framed) {
                let _ = Header::decode(message);
            }
            let _ = (TxnResponse::decode(&bytes[..]), WatchResponse::decode(&bytes[..]));
        }

        #[test]
        fn no_status_makes_it_panic(status in proptest::collection::vec(any::<u8>(), 0..8), message in "[ -~]{0,20}") {
            let mut headers = HeaderMap::new();
            if let Ok(status) = HeaderValue::from_bytes(&status) {
                headers.insert("grpc-status", status);
            }
            headers.insert("grpc-message", HeaderValue::from_str(&message).unwrap());
            let _ = verdict(&headers);
        }
    }
}
