//! A ZooKeeper server.

use std::io;

use crate::fake::Peer;
use crate::mode::{HTTP, Mode, PASSWORD, TLS_ALERT, check_all, garbage};

const MESSAGE: usize = 16 << 20;

/// A message, with its length in front.
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&length(body.len())[..], &body].concat()
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap().to_be_bytes()
}

/// Reads a message.
fn message(peer: &mut Peer) -> io::Result<Vec<u8>> {
    let length = peer.exactly(4)?.try_into().unwrap();
    peer.exactly(u32::from_be_bytes(length) as usize)
}

/// Grants a session of so many milliseconds.
fn welcome(peer: &mut Peer, timeout: i32) -> io::Result<()> {
    message(peer)?;
    let session = [&1_i64.to_be_bytes()[..], &length(16), &[7; 16], &[0]].concat();
    peer.send(&frame(&[&[0; 4], &timeout.to_be_bytes(), &session]))
}

/// Reads a request: its number and its operation.
fn request(peer: &mut Peer) -> io::Result<(i32, i32)> {
    let message = message(peer)?;
    let at = |place: usize| i32::from_be_bytes(message[place..place + 4].try_into().unwrap());
    Ok((at(0), at(4)))
}

fn header(xid: i32, zxid: i64, error: i32) -> Vec<u8> {
    [&xid.to_be_bytes()[..], &zxid.to_be_bytes(), &error.to_be_bytes()].concat()
}

/// What a request that succeeds is answered with.
fn honest(operation: i32) -> Vec<u8> {
    let path = b"/fencepost/a/_c_x-lock-0000000000";
    let text = |text: &[u8]| [&length(text.len())[..], text].concat();
    match operation {
        4 => [text(b"{}"), vec![0; 80]].concat(),
        15 | 19 => [text(path), vec![0; 80]].concat(),
        _ => length(0).to_vec(),
    }
}

/// Answers the login well, and each request with what is made of its number and operation.
fn answering(
    answer: impl Fn(i32, i32) -> Vec<u8> + Send + Sync,
) -> impl Fn(&mut Peer) -> io::Result<()> + Send + Sync {
    move |peer| {
        welcome(peer, 30_000)?;
        loop {
            let (xid, operation) = request(peer)?;
            let well = frame(&[&header(xid, 2, 0)]);
            peer.send(&if xid < 0 { well } else { answer(xid, operation) })?;
        }
    }
}

/// Says something to whatever comes first.
fn at_once(says: impl Into<Vec<u8>>) -> impl Fn(&mut Peer) -> io::Result<()> {
    let says = says.into();
    move |peer| {
        message(peer)?;
        peer.send(&says)?;
        peer.silence()
    }
}

/// Lets a client in, and goes on with something else.
fn once_welcome(
    then: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync,
) -> impl Fn(&mut Peer) -> io::Result<()> + Send + Sync {
    move |peer| {
        welcome(peer, 30_000)?;
        then(peer)
    }
}

fn modes() -> Vec<Mode> {
    let event = |path: &[u8]| {
        let kind = [3_i32.to_be_bytes(), 3_i32.to_be_bytes()].concat();
        frame(&[&header(-1, -1, 0), &kind, &length(path.len()), path])
    };
    let flood = event(b"/x");
    let mut modes = vec![
        Mode::new("silence", Peer::silence),
        Mode::new("a close at once", |_| Ok(())),
        Mode::new("a close after the greeting came", |peer| message(peer).map(drop)),
        Mode::new("garbage", at_once(garbage())).says("not of ZooKeeper"),
        Mode::new("HTTP", at_once(HTTP)).says("not of ZooKeeper"),
        Mode::new("a TLS alert", at_once(TLS_ALERT)).says("not of ZooKeeper"),
        Mode::new("a length of 2^31-1", at_once(*b"\x7f\xff\xff\xff")).says("not of ZooKeeper"),
        Mode::new("a negative length", at_once([0xff; 4])).says("not of ZooKeeper"),
        Mode::new("an empty welcome", at_once([0; 4])),
        Mode::new("half a welcome, then silence", at_once(*b"\0\0\0\x25\0\0")),
        Mode::new("a byte at a time", |peer: &mut Peer| {
            message(peer)?;
            peer.drip(&frame(&[&[1; 1000]]))
        }),
        Mode::new(
            "a secret of another length",
            at_once(frame(&[&[0; 4], &[0, 0, 9, 9], &[0; 8], &[0, 0, 0, 1, 7]])),
        ),
        Mode::new("a session that has expired", |peer: &mut Peer| {
            welcome(peer, 0)?;
            peer.silence()
        }),
        Mode::new("a session of a negative time", |peer: &mut Peer| {
            welcome(peer, i32::MIN)?;
            peer.silence()
        }),
        Mode::new("a session of 24 days, then silence", |peer: &mut Peer| {
            welcome(peer, i32::MAX)?;
            peer.silence()
        }),
        Mode::new("a session of a millisecond, then silence", |peer: &mut Peer| {
            welcome(peer, 1)?;
            peer.silence()
        }),
        Mode::new("a welcome, then silence", once_welcome(Peer::silence)),
        Mode::new("a welcome, then a close", once_welcome(|_| Ok(()))),
        Mode::new(
            "a welcome, then 2^31-1",
            once_welcome(|peer| {
                peer.send(b"\x7f\xff\xff\xff")?;
                peer.flood(&[0])
            }),
        ),
        Mode::new(
            "a welcome, then too long a message",
            once_welcome(|peer| {
                peer.send(&length(MESSAGE + 1))?;
                peer.flood(&[0])
            }),
        )
        .says("not of ZooKeeper"),
        Mode::new(
            "a welcome, then a long message",
            once_welcome(|peer| {
                peer.send(&length(MESSAGE))?;
                peer.flood(&[0])
            }),
        )
        .takes(MESSAGE),
        Mode::new(
            "a welcome, then garbage",
            once_welcome(|peer| {
                peer.send(&garbage())?;
                peer.silence()
            }),
        ),
        Mode::new("events without end", once_welcome(move |peer| peer.flood(&flood))).takes_all(),
        Mode::new("empty messages without end", once_welcome(|peer| peer.flood(&[0; 4]))),
        Mode::new(
            "replies that nobody asked for",
            once_welcome(|peer| peer.flood(&frame(&[&header(1, 1, 0)]))),
        ),
        Mode::new(
            "a refused login",
            once_welcome(|peer| {
                peer.send(&frame(&[&header(-4, 0, -115)]))?;
                peer.silence()
            }),
        ),
        Mode::new(
            "another number",
            answering(|xid, _| frame(&[&header(xid.wrapping_add(1), 2, 0), &[0; 100]])),
        ),
        Mode::new("a negative number", answering(|_, _| frame(&[&header(-2, 2, 0), &[0; 100]]))),
        Mode::new(
            "a transaction of the far future",
            answering(|xid, operation| frame(&[&header(xid, i64::MAX, 0), &honest(operation)])),
        ),
        Mode::new(
            "a transaction of the far past",
            answering(|xid, operation| frame(&[&header(xid, i64::MIN, 0), &honest(operation)])),
        ),
        Mode::new("an empty answer", answering(|xid, _| frame(&[&header(xid, 2, 0)]))),
        Mode::new("an unknown error", answering(|xid, _| frame(&[&header(xid, 2, i32::MIN)]))),
        Mode::new(
            "children that lie about their number",
            answering(|xid, operation| match operation {
                8 => frame(&[&header(xid, 2, 0), b"\x7f\xff\xff\xff"]),
                _ => frame(&[&header(xid, 2, 0), &honest(operation)]),
            }),
        ),
        Mode::new(
            "a million children without a name",
            answering(|xid, operation| match operation {
                8 => frame(&[&header(xid, 2, 0), &length(1 << 20), &vec![0; 4 << 20]]),
                _ => frame(&[&header(xid, 2, 0), &honest(operation)]),
            }),
        )
        .takes(1 << 30),
        Mode::new(
            "no children at all",
            answering(|xid, operation| frame(&[&header(xid, 2, 0), &honest(operation)])),
        ),
        Mode::new(
            "a path of another kind",
            answering(|xid, operation| match operation {
                15 | 19 => frame(&[&header(xid, 2, 0), &length(3), b"\xff\x1b/", &[0; 80]]),
                _ => frame(&[&header(xid, 2, 0), &honest(operation)]),
            }),
        ),
    ];
    for mode in &mut modes {
        // Servers are asked again and again until the time is up: there may be better ones.
        *mode = mode.clone().slow();
    }
    modes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_zookeeper_sends_ends_in_time_with_an_error() {
    check_all(modes(), 1, |fakes, timeout| {
        format!("zookeeper://ann:{PASSWORD}@{}?timeout={timeout}ms", fakes[0].addr)
    })
    .await;
}
