//! A member of etcd: HTTP/2 by hand.

use std::io;

use crate::fake::Peer;
use crate::mode::{HTTP, Mode, PASSWORD, TLS_ALERT, check_all, check_memory, garbage};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const ANSWER: usize = 16 << 20;

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// A header that is in no table.
fn header(name: &str, value: &str) -> Vec<u8> {
    assert!(name.len() < 127 && value.len() < 127);
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// `:status: 200`, and the type of gRPC.
fn fine() -> Vec<u8> {
    [vec![0x88], header("content-type", "application/grpc")].concat()
}

fn headers(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &fine())
}

/// A message of gRPC that says that it is so long.
fn message(length: u32, body: &[u8]) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes(), body].concat()
}

fn trailers(stream: u32, status: &str, text: &str) -> Vec<u8> {
    let body = [header("grpc-status", status), header("grpc-message", text)].concat();
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &body)
}

/// Begins as a server does.
fn greet(peer: &mut Peer) -> io::Result<()> {
    peer.exactly(24)?;
    peer.send(&frame(SETTINGS, 0, 0, &[]))
}

/// Reads until a request has come whole; its stream and body.
fn request(peer: &mut Peer) -> io::Result<(u32, Vec<u8>)> {
    loop {
        let head = peer.exactly(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        let body = peer.exactly(length as usize)?;
        match kind {
            SETTINGS | PING if flags & 1 == 0 => {
                peer.send(&frame(kind, 1, 0, if kind == PING { &body } else { &[] }))?
            }
            DATA if flags & END_STREAM != 0 => return Ok((stream, body)),
            _ => {}
        }
    }
}

/// Does something with each request.
fn to_each(
    answer: impl Fn(&mut Peer, u32) -> io::Result<()> + Send + Sync,
) -> impl Fn(&mut Peer) -> io::Result<()> + Send + Sync {
    move |peer| {
        greet(peer)?;
        loop {
            let (stream, _) = request(peer)?;
            answer(peer, stream)?;
        }
    }
}

/// Answers each request so.
fn each(answer: impl Fn(u32) -> Vec<u8> + Send + Sync) -> impl Fn(&mut Peer) -> io::Result<()> + Send + Sync {
    to_each(move |peer, stream| peer.send(&answer(stream)))
}

/// Sends the same without end, instead of answers.
fn endless(bytes: Vec<u8>) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        greet(peer)?;
        peer.flood(&bytes)
    }
}

fn at_once(says: impl Into<Vec<u8>>) -> impl Fn(&mut Peer) -> io::Result<()> {
    let says = says.into();
    move |peer| {
        peer.exactly(24)?;
        peer.send(&says)?;
        peer.silence()
    }
}

fn modes() -> Vec<Mode> {
    let status = |text: &'static str, message: &'static str| {
        Mode::new(
            format!("status {text:?} {message:?}"),
            each(move |stream| [headers(stream), trailers(stream, text, message)].concat()),
        )
    };
    let modes = vec![
        Mode::new("silence", Peer::silence),
        Mode::new("a close at once", |_| Ok(())),
        Mode::new("a close after the greeting came", |peer| peer.exactly(24).map(drop)),
        Mode::new("a close after the request came", to_each(|_, _| Err(io::ErrorKind::BrokenPipe.into()))),
        Mode::new("garbage", at_once(garbage())),
        Mode::new("HTTP/1.1", at_once(HTTP)),
        Mode::new("a TLS alert", at_once(TLS_ALERT)),
        Mode::new("a frame of 16 MB", at_once(*b"\xff\xff\xff\0\0\0\0\0\x01")),
        Mode::new("half a frame, then silence", at_once(*b"\0\0\x06\x04\0\0")),
        Mode::new("a byte at a time", |peer: &mut Peer| {
            greet(peer)?;
            peer.drip(&frame(PING, 0, 0, b"12345678").repeat(100))
        }),
        Mode::new("a setting of no length", at_once(frame(SETTINGS, 0, 0, b"abc"))),
        Mode::new("settings without end", endless(frame(SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff"))).takes_all(),
        Mode::new("huge settings", endless(frame(SETTINGS, 0, 0, &b"\0\x04\0\0\xff\xff".repeat(2700))))
            .takes_all(),
        Mode::new("no streams allowed", at_once(frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\0"))),
        Mode::new("no window", at_once(frame(SETTINGS, 0, 0, b"\0\x04\0\0\0\0"))),
        Mode::new("pings without end", endless(frame(PING, 0, 0, b"12345678"))).takes_all(),
        Mode::new("windows without end", endless(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"))).takes_all(),
        Mode::new("a window beyond all bounds", endless(frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"))),
        Mode::new("unknown frames without end", endless(frame(200, 0, 0, &[0; 1000]))).takes_all(),
        Mode::new("an end", at_once(frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0\x1b[31mbye"))),
        Mode::new("ends without end", endless(frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0\x1b[31mbye")))
            .takes_all(),
        Mode::new(
            "an end for lack of calm",
            at_once(frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\x0btoo_many_pings")),
        ),
        Mode::new(
            "a stream that nobody opened",
            endless([headers(99), frame(DATA, 0, 99, &[0; 5])].concat()),
        ),
        Mode::new(
            "headers without end",
            to_each(|peer, stream| {
                peer.send(&frame(HEADERS, 0, stream, &fine()))?;
                peer.flood(&frame(CONTINUATION, 0, stream, &header("x-a", &"y".repeat(100)).repeat(100)))
            }),
        ),
        Mode::new(
            "empty headers without end",
            to_each(|peer, stream| {
                peer.send(&frame(HEADERS, 0, stream, &fine()))?;
                peer.flood(&frame(CONTINUATION, 0, stream, &[]))
            }),
        ),
        Mode::new(
            "long headers",
            to_each(|peer, stream| {
                peer.send(&frame(HEADERS, 0, stream, &fine()))?;
                for _ in 0..100 {
                    peer.send(&frame(CONTINUATION, 0, stream, &header("x-a", &"y".repeat(100)).repeat(100)))?;
                }
                peer.send(&frame(CONTINUATION, END_HEADERS, stream, &[]))
            }),
        ),
        Mode::new("headers of no code", each(|stream| frame(HEADERS, END_HEADERS, stream, &[0xff; 40]))),
        Mode::new(
            "a promise of more",
            each(|stream| frame(PUSH_PROMISE, END_HEADERS, stream, &[&[0, 0, 0, 2][..], &fine()].concat())),
        ),
        Mode::new("a reset", each(|stream| frame(RESET, 0, stream, &8_u32.to_be_bytes()))),
        Mode::new(
            "HTTP 503",
            each(|stream| {
                frame(HEADERS, END_HEADERS | END_STREAM, stream, &[&[0x08, 3][..], b"503"].concat())
            }),
        )
        .says("HTTP 503"),
        Mode::new(
            "an answer that lies about its length",
            each(|stream| [headers(stream), frame(DATA, 0, stream, &message(u32::MAX, b"x"))].concat()),
        )
        .says("too long"),
        Mode::new(
            "an answer that is longer than it says",
            each(|stream| {
                let data = frame(DATA, 0, stream, &message(1, &[0x08; 100]));
                [headers(stream), data, trailers(stream, "0", "")].concat()
            }),
        ),
        Mode::new(
            "an answer that is shorter than it says",
            each(|stream| {
                let data = frame(DATA, 0, stream, &message(100, &[0; 10]));
                [headers(stream), data, trailers(stream, "0", "")].concat()
            }),
        )
        .says("cut short"),
        Mode::new(
            "a long answer",
            to_each(|peer, stream| {
                peer.send(&headers(stream))?;
                peer.send(&frame(DATA, 0, stream, &message(u32::try_from(ANSWER).unwrap(), &[])))?;
                peer.flood(&frame(DATA, 0, stream, &[0; 16_000]))
            }),
        )
        .takes(ANSWER),
        Mode::new(
            "answers without end",
            to_each(|peer, stream| {
                peer.send(&headers(stream))?;
                peer.flood(&frame(DATA, 0, stream, &message(0, &[]).repeat(3000)))
            }),
        )
        .says("two answers"),
        Mode::new(
            "empty data without end",
            to_each(|peer, stream| {
                peer.send(&headers(stream))?;
                peer.flood(&frame(DATA, 0, stream, &[]))
            }),
        )
        .takes_all(),
        Mode::new(
            "an answer without a verdict",
            each(|stream| [headers(stream), frame(DATA, END_STREAM, stream, &message(0, &[]))].concat()),
        )
        .says("cut short"),
        Mode::new(
            "trailers without a verdict",
            each(|stream| {
                let end = frame(HEADERS, END_HEADERS | END_STREAM, stream, &header("x", "y"));
                [headers(stream), frame(DATA, 0, stream, &message(0, &[])), end].concat()
            }),
        )
        .says("cut short"),
        Mode::new(
            "headers without a verdict",
            each(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &fine())),
        )
        .says("cut short"),
        Mode::new("an empty answer", each(|stream| [headers(stream), trailers(stream, "0", "")].concat()))
            .says("empty"),
        Mode::new(
            "an empty message",
            each(|stream| {
                [headers(stream), frame(DATA, 0, stream, &message(0, &[])), trailers(stream, "0", "")]
                    .concat()
            }),
        ),
        Mode::new(
            "a compressed answer",
            each(|stream| [headers(stream), frame(DATA, 0, stream, &[1, 0, 0, 0, 0])].concat()),
        )
        .says("compressed"),
        Mode::new(
            "a message of garbage",
            each(|stream| {
                let data = frame(DATA, 0, stream, &message(200, &garbage()[..200]));
                [headers(stream), data, trailers(stream, "0", "")].concat()
            }),
        ),
        Mode::new(
            "messages in messages",
            each(|stream| {
                let data = frame(DATA, 0, stream, &message(8000, &[0x0a, 0x7f].repeat(4000)));
                [headers(stream), data, trailers(stream, "0", "")].concat()
            }),
        ),
        Mode::new(
            "a refusal that drives terminals",
            each(|stream| {
                let (status, text) = ("grpc-status", "%1b]0;OWNED%07%1b[2J%e2%80%aeboo%0afencepost: forged");
                let refusal = [fine(), header(status, "3"), header("grpc-message", text)].concat();
                frame(HEADERS, END_HEADERS | END_STREAM, stream, &refusal)
            }),
        )
        .says("boo"),
        Mode::new("a refusal that repeats what it was sent", |peer: &mut Peer| {
            greet(peer)?;
            loop {
                let (stream, body) = request(peer)?;
                let text: String =
                    String::from_utf8_lossy(&body[5..]).chars().filter(|c| !c.is_control()).collect();
                peer.send(&[headers(stream), trailers(stream, "3", &text)].concat())?;
            }
        })
        .says("(hidden)"),
        status("99999999999", "").says("no readable status"),
        status("-1", "").says("no readable status"),
        status("zero", "").says("no readable status"),
        status("16", "etcdserver: invalid auth token"),
        status("7", "%"),
        status("13", "%ff%fe"),
    ];
    // Members are asked again and again until the time is up: there may be better ones.
    modes.into_iter().map(Mode::slow).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_etcd_sends_ends_in_time_with_an_error() {
    check_all(modes(), 1, |fakes, timeout| {
        format!("etcd://ann:{PASSWORD}@{}?timeout={timeout}ms", fakes[0].addr)
    })
    .await;
}

/// Without a login the first request is that for a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_etcd_answers_to_a_lock_ends_in_time_with_an_error() {
    let modes = modes().into_iter().filter(|mode| !mode.name.contains("repeats")).collect();
    check_all(modes, 1, |fakes, timeout| format!("etcd://{}?timeout={timeout}ms", fakes[0].addr)).await;
}

/// Grants every lease, and answers every transaction so.
fn to_transactions(answer: Vec<u8>) -> impl Fn(&mut Peer) -> io::Result<()> + Send + Sync {
    move |peer| {
        greet(peer)?;
        loop {
            let (stream, body) = request(peer)?;
            // A request about a lease begins with a number, a transaction with a message. A lease lives a
            // minute.
            let answer = if body.get(5) == Some(&0x08) { &[0x10, 7, 0x18, 60][..] } else { &answer };
            peer.send(&headers(stream))?;
            for part in message(u32::try_from(answer.len()).unwrap(), answer).chunks(16_000) {
                peer.send(&frame(DATA, 0, stream, part))?;
            }
            peer.send(&trailers(stream, "0", ""))?;
        }
    }
}

/// A field of a message that is a message itself.
fn field(number: u8, body: &[u8]) -> Vec<u8> {
    let (mut length, mut out) = (body.len(), vec![number << 3 | 2]);
    while length > 0x7f {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    [out, body.to_vec()].concat()
}

/// What takes two bytes on the wire takes many more in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_many_small_items_does_not_grow_in_memory() {
    // Of a quarter of the longest answer, so that slow machines read it in time.
    let many = ANSWER / 8;
    let keys = field(3, &field(1, &[0x12, 0].repeat(many)));
    let operations = [0x1a, 0].repeat(many);
    let modes = [("keys without anything", keys), ("operations without anything", operations)];
    let modes = modes.map(|(name, answer)| {
        // What it ends with depends on how far the last attempt came; the bound on memory is for all of them.
        let mut mode = Mode::new(name, to_transactions(answer)).takes(100 * ANSWER);
        mode.timeout = std::time::Duration::from_secs(5);
        mode
    });
    let url = |fakes: &[crate::fake::Fake], timeout| format!("etcd://{}?timeout={timeout}ms", fakes[0].addr);
    check_memory(modes.into(), 5 * ANSWER, url).await;
}
