//! gRPC over an HTTP/2 connection: one message there and one back, or a stream of them. Compression is never
//! asked for.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::proto::{Repeated, ServerMessage};
use crate::backends::common::tls;
use crate::text::printable;

/// Bytes of the longest answer that is believed. The longest honest one is a whole queue: that of 50,000
/// waiters without notes is 15 MB.
const MAX_ANSWER: usize = 16 << 20;
/// The same for what a watch has seen: a few changes of one key, 2 KB each.
const MAX_WATCHED: usize = 1 << 20;
/// Items of the longest answer that is believed: four times as many as that queue has.
const MAX_ITEMS: usize = 200_000;
/// Bytes of a refusal that are kept.
const MAX_REFUSAL: usize = 1024;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum GrpcError {
    /// The connection broke; the server may or may not have acted.
    Broken(String),
    /// The server said no.
    Refused { code: u32, message: String },
    /// Its certificate is not to be trusted.
    Distrusted(String),
}

impl GrpcError {
    fn broken(why: impl std::fmt::Display) -> Self {
        Self::Broken(why.to_string())
    }
}

impl From<std::io::Error> for GrpcError {
    fn from(error: std::io::Error) -> Self {
        tls::distrust(&error).map_or_else(|| Self::broken(&error), Self::Distrusted)
    }
}

impl From<h2::Error> for GrpcError {
    fn from(error: h2::Error) -> Self {
        Self::broken(error)
    }
}

/// Where requests go, and what goes along with each.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) sender: SendRequest<Bytes>,
    /// `https://host:port`.
    pub(crate) base: String,
    /// The token of a user who has logged in.
    pub(crate) token: Option<HeaderValue>,
}

impl Channel {
    async fn open(&self, path: &str) -> Result<(ResponseFuture, SendStream<Bytes>), GrpcError> {
        let mut request = http::Request::post(format!("{}/etcdserverpb.{path}", self.base))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            // A member that has lost its leader says so instead of keeping us waiting.
            .header("hasleader", "true");
        if let Some(token) = &self.token {
            request = request.header("token", token);
        }
        let request = request.body(()).map_err(GrpcError::broken)?;
        let mut sender = self.sender.clone().ready().await?;
        Ok(sender.send_request(request, false)?)
    }

    /// One request and its answer. Also for streams of which we want one exchange.
    pub(crate) async fn call<A, B>(&self, path: &str, message: &A) -> Result<B, GrpcError>
    where
        A: Message,
        B: ServerMessage,
    {
        let (response, mut body) = self.open(path).await?;
        body.send_data(frame(message), true)?;
        let mut answers = AnswerStream::new(response, MAX_ANSWER).await?;
        let first = answers.next::<B>().await?;
        // The status follows the message: only then the message counts.
        match (first, answers.next::<B>().await?) {
            (Some(answer), None) => Ok(answer),
            (None, _) => Err(GrpcError::broken("the answer was empty")),
            (Some(_), Some(_)) => Err(GrpcError::broken("there were two answers to one request")),
        }
    }

    /// Opens a stream with its first message. The server answers when it has something to say.
    pub(crate) async fn stream(
        &self,
        path: &str,
        first: &impl Message,
    ) -> Result<(RequestStream, AnswerStream), GrpcError> {
        let (response, body) = self.open(path).await?;
        let mut requests = RequestStream(body);
        requests.send(first)?;
        Ok((requests, AnswerStream::new(response, MAX_WATCHED).await?))
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.base)
    }
}

/// The sending half of a stream.
pub(crate) struct RequestStream(SendStream<Bytes>);

impl RequestStream {
    pub(crate) fn send(&mut self, message: &impl Message) -> Result<(), GrpcError> {
        Ok(self.0.send_data(frame(message), false)?)
    }
}

/// The receiving half.
pub(crate) struct AnswerStream {
    body: RecvStream,
    /// Bytes of the longest message that is believed.
    most: usize,
    /// A status of zero has come: in the headers, or in the trailers.
    accepted: bool,
    bytes: BytesMut,
    ready: VecDeque<Bytes>,
}

impl AnswerStream {
    async fn new(response: ResponseFuture, most: usize) -> Result<Self, GrpcError> {
        let response = response.await?;
        if !response.status().is_success() {
            let why = format!("this is not etcd's client port: HTTP {}", response.status());
            return Err(GrpcError::Broken(why));
        }
        // A refusal without a message comes in the headers.
        let accepted = check_status(response.headers())?;
        let body = response.into_body();
        Ok(Self { body, most, accepted, bytes: BytesMut::new(), ready: VecDeque::new() })
    }

    /// The next message; `None` when the server has ended the stream well.
    pub(crate) async fn next<T: ServerMessage>(&mut self) -> Result<Option<T>, GrpcError> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return decode(&message).map(Some);
            }
            let Some(data) = self.body.data().await.transpose()? else {
                if let Some(trailers) = self.body.trailers().await? {
                    self.accepted |= check_status(&trailers)?;
                }
                // Whoever cuts an answer short in between leaves the status out.
                return match self.accepted && self.bytes.is_empty() {
                    true => Ok(None),
                    false => Err(GrpcError::broken("the answer was cut short")),
                };
            };
            let _ = self.body.flow_control().release_capacity(data.len());
            self.bytes.extend_from_slice(&data);
            while let Some(message) = unframe(&mut self.bytes, self.most)? {
                self.ready.push_back(message);
            }
        }
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
fn unframe(bytes: &mut BytesMut, most: usize) -> Result<Option<Bytes>, GrpcError> {
    let Some((&[compressed, ref length @ ..], rest)) = bytes.split_first_chunk::<5>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if compressed != 0 || length > most {
        let what = if compressed == 0 { "too long" } else { "compressed" };
        return Err(GrpcError::Broken(format!("the answer is {what}")));
    }
    if rest.len() < length {
        return Ok(None);
    }
    bytes.advance(5);
    Ok(Some(bytes.split_to(length).freeze()))
}

/// Decodes a message whose repeated fields are not too long.
fn decode<T: ServerMessage>(message: &[u8]) -> Result<T, GrpcError> {
    if items(message, T::REPEATED)? > MAX_ITEMS {
        return Err(GrpcError::broken("the answer has too many items"));
    }
    T::decode(message).map_err(GrpcError::broken)
}

/// How many items the repeated fields of a message have.
fn items(mut bytes: &[u8], repeated: &[Repeated]) -> Result<usize, GrpcError> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (field, kind) = decode_key(&mut bytes).map_err(GrpcError::broken)?;
        match repeated.iter().find(|repeated| repeated.0 == field) {
            Some(Repeated(_, inside)) if kind == WireType::LengthDelimited => {
                let length = decode_varint(&mut bytes).map_err(GrpcError::broken)?;
                let split = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
                let (item, rest) = split.ok_or_else(|| GrpcError::broken("an item is cut short"))?;
                // An item without repeated fields need not be a message: it may be a key.
                count += 1 + if inside.is_empty() { 0 } else { items(item, inside)? };
                bytes = rest;
            }
            _ => skip_field(kind, field, &mut bytes, DecodeContext::default()).map_err(GrpcError::broken)?,
        }
    }
    Ok(count)
}

/// What the server thought of the request; `false` if it does not say.
fn check_status(headers: &HeaderMap) -> Result<bool, GrpcError> {
    let Some(status) = headers.get("grpc-status") else { return Ok(false) };
    match status.to_str().ok().and_then(|status| status.parse().ok()) {
        Some(0) => Ok(true),
        Some(code) => {
            let text = headers.get("grpc-message").map_or(&b""[..], HeaderValue::as_bytes);
            let text = String::from_utf8_lossy(&text[..text.len().min(MAX_REFUSAL)]);
            let text = crate::text::decode(&text).unwrap_or_else(|| text.into_owned());
            Err(GrpcError::Refused { code, message: printable(&text).into_owned() })
        }
        None => Err(GrpcError::broken("the answer has no readable status")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::etcd::driver::proto::{
        Event, Header, KeyValue, RangeResponse, ResponseOp, TxnResponse, WatchResponse,
    };
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
                while let Some(message) = unframe(&mut bytes, MAX_ANSWER).unwrap() {
                    found.push(Header::decode(message).unwrap());
                }
            }
            assert_eq!(found, [one.clone(), Header::default(), two.clone()]);
        }
    }

    #[test]
    fn what_cannot_be_a_message_is_refused() {
        let of = |bytes: &[u8], most| unframe(&mut BytesMut::from(bytes), most);
        assert!(of(&[1, 0, 0, 0, 0], MAX_ANSWER).is_err());
        assert!(of(&[0, 255, 0, 0, 0], MAX_ANSWER).is_err());
        assert!(of(&[0, 255, 255, 255, 255], MAX_ANSWER).is_err());
        assert!(of(&[0, 0, 0, 0, 9], 8).is_err());
        assert!(of(&[0, 0, 0, 0], MAX_ANSWER).unwrap().is_none());
    }

    #[test]
    fn a_refusal_is_read_from_the_trailers() {
        let mut trailers = HeaderMap::new();
        assert!(!check_status(&trailers).unwrap(), "none");
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(check_status(&trailers).unwrap());
        trailers.insert("grpc-status", HeaderValue::from_static("5"));
        trailers.insert("grpc-message", HeaderValue::from_static("no%20lease"));
        let refused = check_status(&trailers).unwrap_err();
        assert!(matches!(refused, GrpcError::Refused { code: 5, message } if message == "no lease"));
        trailers.insert("grpc-message", HeaderValue::from_static("%1b[2J%0aforged"));
        let GrpcError::Refused { message, .. } = check_status(&trailers).unwrap_err() else { panic!() };
        assert!(!message.contains(char::is_control), "{message:?}");
    }

    fn transaction(ranges: &[usize]) -> TxnResponse {
        let ops = ranges.iter().map(|keys| {
            let kvs = vec![KeyValue { value: vec![0x12, 0], ..KeyValue::default() }; *keys];
            ResponseOp { range: Some(RangeResponse { kvs }) }
        });
        TxnResponse { header: Some(header(7)), succeeded: true, responses: ops.collect() }
    }

    #[test]
    fn items_are_counted_before_they_take_memory() {
        let count = |message: TxnResponse| items(&message.encode_to_vec(), TxnResponse::REPEATED).unwrap();
        assert_eq!(count(transaction(&[])), 0);
        assert_eq!(count(transaction(&[0, 3, 4])), 13);
        let watch = WatchResponse { events: vec![Event::default(); 5], ..WatchResponse::default() };
        assert_eq!(items(&watch.encode_to_vec(), WatchResponse::REPEATED).unwrap(), 5);
        // An operation and its range are items as well.
        let of = |keys| decode::<TxnResponse>(&transaction(&[keys]).encode_to_vec());
        assert_eq!(of(MAX_ITEMS - 2).unwrap().into_kvs().len(), MAX_ITEMS - 2);
        assert!(matches!(of(MAX_ITEMS - 1), Err(GrpcError::Broken(why)) if why.contains("too many")));
    }

    proptest! {
        #[test]
        fn no_message_has_more_items_than_were_counted(bytes in proptest::collection::vec(0_u8..30, 0..80)) {
            if let Ok(message) = TxnResponse::decode(&bytes[..]) {
                let ops = message.responses.len();
                prop_assert!(items(&bytes, TxnResponse::REPEATED).unwrap() >= ops + message.into_kvs().len());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut framed = BytesMut::from(&bytes[..]);
            while let Ok(Some(message)) = unframe(&mut framed, MAX_ANSWER) {
                let _ = Header::decode(message);
            }
            let _ = (decode::<TxnResponse>(&bytes), decode::<WatchResponse>(&bytes));
        }

        #[test]
        fn no_status_makes_it_panic(
            status in proptest::collection::vec(any::<u8>(), 0..8),
            message in "[ -~]{0,20}",
        ) {
            let mut headers = HeaderMap::new();
            if let Ok(status) = HeaderValue::from_bytes(&status) {
                headers.insert("grpc-status", status);
            }
            headers.insert("grpc-message", HeaderValue::from_str(&message).unwrap());
            let _ = check_status(&headers);
        }
    }
}
