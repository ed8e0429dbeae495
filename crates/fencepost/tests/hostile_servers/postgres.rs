//! A PostgreSQL server.

use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;

use fencepost::Locks;

use crate::fake::Peer;
use crate::mode::{ESCAPES, HTTP, Mode, PASSWORD, TLS_ALERT, check_all, check_error, garbage, turn};

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[kind][..], &length, body].concat()
}

/// Reads what a client begins with; refuses TLS if it is asked for.
fn start(peer: &mut Peer) -> io::Result<()> {
    loop {
        let length = u32::from_be_bytes(peer.exactly(4)?.try_into().unwrap());
        let body = peer.exactly(length as usize - 4)?;
        if body != 80_877_103_u32.to_be_bytes() {
            return Ok(());
        }
        peer.send(b"N")?;
    }
}

/// Asks for a login of some kind.
fn login(kind: u32, more: &[u8]) -> Vec<u8> {
    message(b'R', &[&kind.to_be_bytes()[..], more].concat())
}

/// An error or a notice.
fn report(kind: u8, code: &str, text: &str) -> Vec<u8> {
    message(kind, format!("SFATAL\0VFATAL\0C{code}\0M{text}\0\0").as_bytes())
}

fn ready() -> Vec<u8> {
    [login(0, &[]), message(b'K', &[0; 8]), message(b'Z', b"I")].concat()
}

/// Says something to whoever begins.
fn at_once(says: impl Into<Vec<u8>>) -> impl Fn(&mut Peer) -> io::Result<()> {
    let says = says.into();
    move |peer| {
        start(peer)?;
        peer.send(&says)?;
        peer.silence()
    }
}

/// Lets a client in, and answers each thing that it asks so.
fn to_each(answer: Vec<u8>) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        start(peer)?;
        peer.send(&ready())?;
        loop {
            peer.some()?;
            peer.send(&answer)?;
        }
    }
}

/// Begins with something, and goes on with something else without end.
fn endless(begin: Vec<u8>, then: Vec<u8>) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        start(peer)?;
        peer.send(&begin)?;
        peer.flood(&then)
    }
}

fn modes() -> Vec<Mode> {
    let logins = [2, 5, 6, 7, 8, 9, 10, 11, 12, 99, u32::MAX];
    let logins = logins.map(|kind| Mode::new(format!("a login of kind {kind}"), at_once(login(kind, &[]))));
    let scram = |first: &'static str| {
        Mode::new(format!("a login by SCRAM: {first:.20}"), move |peer: &mut Peer| {
            start(peer)?;
            peer.send(&login(10, b"SCRAM-SHA-256\0\0"))?;
            peer.some()?;
            peer.send(&login(11, first.as_bytes()))?;
            peer.silence()
        })
    };
    let row = message(b'D', &[&[0, 1, 0, 0, 0, 9][..], b"123456789"].concat());
    let modes = vec![
        Mode::new("silence", Peer::silence),
        Mode::new("a close at once", |_| Ok(())),
        Mode::new("a close after the greeting came", start),
        Mode::new("garbage", at_once(garbage())),
        Mode::new("HTTP", at_once(HTTP)),
        Mode::new("a TLS alert", at_once(TLS_ALERT)),
        Mode::new("a length of 2^32-1", at_once(*b"R\xff\xff\xff\xff")),
        Mode::new("a length of 2^31-1", at_once(*b"R\x7f\xff\xff\xff")),
        Mode::new("a length of nothing", at_once(*b"R\0\0\0\0")),
        Mode::new("half a message, then silence", at_once(*b"R\0\0")),
        Mode::new("half a message, then a close", |peer: &mut Peer| {
            start(peer)?;
            peer.send(b"R\0\0")
        }),
        Mode::new("a byte at a time", |peer: &mut Peer| {
            start(peer)?;
            peer.drip(&[b'R'; 5000])
        }),
        Mode::new("an unknown message", at_once(message(b'?', b"what"))),
        Mode::new("an error that drives terminals", at_once(report(b'E', "08006", ESCAPES))),
        Mode::new("a refusal that drives terminals", at_once(report(b'E', "28P01", ESCAPES))),
        Mode::new("an error of a code beyond all bounds", at_once(report(b'E', "", "no"))),
        Mode::new("an error without any field", at_once(message(b'E', b"\0"))),
        Mode::new("notices without end", endless(login(0, &[]), report(b'N', "00000", "x"))).takes_all(),
        Mode::new("notices without end to one who is in", endless(ready(), report(b'N', "00000", "x")))
            .takes_all(),
        Mode::new("a message for nobody", endless(ready(), row.clone())).takes_all(),
        Mode::new("a close when it is asked", |peer: &mut Peer| {
            start(peer)?;
            peer.send(&ready())?;
            peer.some().map(drop)
        }),
        Mode::new("silence when it is asked", at_once(ready())),
        Mode::new("ready, whatever it is asked", to_each(message(b'Z', b"I"))),
        Mode::new(
            "an error, whatever it is asked",
            to_each([report(b'E', "XX000", ESCAPES), message(b'Z', b"I")].concat()),
        ),
        Mode::new("a row, whatever it is asked", to_each([row, message(b'Z', b"I")].concat())),
        Mode::new("a first message of 2 GB", endless(b"R\x7f\xff\xff\xf0".to_vec(), vec![0; 65_536]))
            .says("more than fencepost takes"),
        Mode::new(
            "a row of 2 GB",
            endless([ready(), b"D\x7f\xff\xff\xf0".to_vec()].concat(), vec![0; 65_536]),
        ),
        Mode::new(
            "an error of 100 MB",
            endless([ready(), b"E\x06\0\0\0".to_vec()].concat(), vec![b'x'; 65_536]),
        ),
        Mode::new("settings without end", endless(login(0, &[]), message(b'S', b"a\0b\0"))),
        Mode::new("rows without end", |peer: &mut Peer| {
            start(peer)?;
            peer.send(&ready())?;
            peer.some()?;
            peer.send(&message(b'T', &[&[0, 1][..], b"a\0", &[0; 18]].concat()))?;
            peer.flood(&message(b'D', &[0, 1, 0, 0, 0, 0]))
        }),
        Mode::new("a refusal of 60 KB", at_once(report(b'E', "28P01", &"x".repeat(60_000)))),
        Mode::new(
            "an error of a megabyte, whatever it is asked",
            to_each([report(b'E', "XX000", &"x".repeat(1 << 20)), message(b'Z', b"I")].concat()),
        ),
        scram("r=x,s=!!,i=1"),
        scram("r=someone else's,s=c2FsdHNhbHRzYWx0,i=4096"),
        scram("m=x"),
        scram(""),
    ];
    modes.into_iter().chain(logins).map(Mode::slow).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_postgres_sends_ends_in_time_with_an_error() {
    check_all(modes(), 1, |fakes, timeout| {
        format!("postgres://ann:{PASSWORD}@{}/db?timeout={timeout}ms", fakes[0].addr)
    })
    .await;
}

/// A server that was sent the password may repeat it in any part of what it says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hint_of_a_server_has_the_password_in_it() {
    let text = format!("SERROR\0VERROR\0CFP020\0M{PASSWORD}\0D{PASSWORD}\0H{PASSWORD}\0\0");
    let says = Mode::new(
        "a hint with the password",
        to_each([message(b'E', text.as_bytes()), message(b'Z', b"I")].concat()),
    );
    check_all(vec![says.says("(hidden) ((hidden)); (hidden)")], 1, |fakes, timeout| {
        format!("postgres://ann:{PASSWORD}@{}/db?timeout={timeout}ms&allow=cleartext", fakes[0].addr)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_may_send_as_little() {
    let _turn = turn().await;
    let folder = fencepost_testkit::Folder::new("socket");
    let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
    thread::spawn(move || -> io::Result<()> {
        loop {
            let (mut stream, _) = listener.accept()?;
            let zeros = [&b"R\x7f\xff\xff\xf0"[..], &[0; 65_536]].concat();
            thread::spawn(move || while stream.write_all(&zeros).is_ok() {});
        }
    });
    let url = format!("postgres:///db?host={}&timeout=30s", folder.path().display());
    let error = Locks::connect(&url).await.unwrap_err();
    check_error("a unix socket", &error);
    assert!(error.to_string().contains("more than fencepost takes"), "{error}");
}
