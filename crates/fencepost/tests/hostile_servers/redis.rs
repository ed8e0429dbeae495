//! A Redis server.

use std::io;

use crate::fake::Peer;
use crate::mode::{ESCAPES, HTTP, Mode, PASSWORD, TLS_ALERT, check_all, garbage};

/// Reads a command: its words.
pub(crate) fn command(peer: &mut Peer) -> io::Result<Vec<String>> {
    let count = number(peer)?;
    (0..count)
        .map(|_| {
            let length = number(peer)?;
            let mut word = peer.exactly(length + 2)?;
            word.truncate(length);
            Ok(String::from_utf8(word).unwrap())
        })
        .collect()
}

/// Reads a line with a count or a length.
fn number(peer: &mut Peer) -> io::Result<usize> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(peer.exactly(1)?);
    }
    Ok(String::from_utf8(line).unwrap().trim_start_matches(['*', '$']).trim().parse().unwrap())
}

const INFO: &str =
    "redis_version:7.2.0\r\nrun_id:0123456789abcdef0123456789abcdef01234567\r\nrole:master\r\n";

/// What a server would answer, or a cluster of this one node.
pub(crate) fn honest(peer: &Peer, words: &[String]) -> io::Result<String> {
    Ok(match words[0].as_str() {
        "CLUSTER" => {
            let port = peer.port()?;
            format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$0\r\n\r\n:{port}\r\n$2\r\nid\r\n")
        }
        "CONFIG" => "*0\r\n".to_owned(),
        "HELLO" => "%1\r\n+proto\r\n:3\r\n".to_owned(),
        "INFO" => format!("${}\r\n{INFO}\r\n", INFO.len()),
        "SCRIPT" => format!("$40\r\n{}\r\n", "0123456789".repeat(4)),
        "SUBSCRIBE" | "SSUBSCRIBE" | "SUNSUBSCRIBE" => {
            format!(">3\r\n+{}\r\n+{}\r\n:1\r\n", words[0].to_lowercase(), words[1])
        }
        "PING" => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    })
}

/// Answers like a server, but for one command.
fn but_for(word: &'static str, answer: &'static str) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        loop {
            let words = command(peer)?;
            let answer = if words[0] == word { answer.to_owned() } else { honest(peer, &words)? };
            peer.send(answer.as_bytes())?;
        }
    }
}

/// Lets a client in, and does something else when it asks for a lock.
fn once_greeted(then: impl Fn(&mut Peer) -> io::Result<()>) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        loop {
            let words = command(peer)?;
            if words[0].starts_with("EVAL") || words[0] == "FCALL" {
                return then(peer);
            }
            let answer = honest(peer, &words)?;
            peer.send(answer.as_bytes())?;
        }
    }
}

/// Says something to whatever comes first.
fn at_once(says: impl Into<Vec<u8>>) -> impl Fn(&mut Peer) -> io::Result<()> {
    let says = says.into();
    move |peer| {
        peer.some()?;
        peer.send(&says)?;
        peer.silence()
    }
}

/// Begins with something, and goes on with something else without end.
pub(crate) fn endless(begin: &'static [u8], then: &'static [u8]) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        peer.some()?;
        peer.send(begin)?;
        peer.flood(then)
    }
}

const UNKNOWN_SCRIPT: &str = "-ERR unknown command 'SCRIPT', with args beginning with: 'LOAD'\r\n";
const UNKNOWN_EVALSHA: &str = "-ERR unknown command 'EVALSHA', with args beginning with: '0123'\r\n";
const UNKNOWN_IN_SCRIPT: &str =
    "-ERR Unknown Redis command called from script script: 0123, on @user_script:95.\r\n";

const REPLY: usize = 8 << 20;

pub(crate) fn modes() -> Vec<Mode> {
    let mut modes = vec![
        Mode::new("silence", Peer::silence).slow(),
        Mode::new("a close at once", |_| Ok(())),
        Mode::new("a close after the greeting came", |peer| peer.some().map(drop)),
        Mode::new("half a reply, then silence", at_once("%7\r\n+server\r\n$5\r\nre")).slow(),
        Mode::new("half a reply, then a close", |peer: &mut Peer| {
            peer.some()?;
            peer.send(b"%7\r\n+server\r\n$5\r\nre")
        }),
        Mode::new("garbage", at_once(garbage())).says("Redis protocol"),
        Mode::new("HTTP", at_once(HTTP)).says("Redis protocol"),
        Mode::new("a TLS alert", at_once(TLS_ALERT)).says("Redis protocol"),
        Mode::new("an endless array", endless(b"*67108864\r\n", b":1\r\n")).says("too many items"),
        Mode::new("endless arrays", endless(b"", b"*65536\r\n")).says("too many items"),
        Mode::new("arrays of texts", endless(b"*1000\r\n", b"$9\r\nxxxxxxxxx\r\n")),
        Mode::new("an array of long texts", |peer: &mut Peer| {
            peer.some()?;
            peer.send(b"*65536\r\n")?;
            peer.flood(format!("$32768\r\n{}\r\n", "x".repeat(32_768)).as_bytes())
        })
        .takes(REPLY)
        .says("too long"),
        Mode::new("an endless text", endless(b"$2147483647\r\n", b"x")).says("too long"),
        Mode::new("a text that ends elsewhere", endless(b"$8000000\r\n", b"x")).takes(REPLY).says("its end"),
        Mode::new("an endless line", endless(b"+", b"x")).says("a line without its end"),
        Mode::new("an endless error", endless(b"-ERR ", b"x")).says("a line without its end"),
        Mode::new("an endless number", endless(b":", b"1")).says("a line without its end"),
        Mode::new("deep nesting", endless(b"", b"*1\r\n")).says("nested too deeply"),
        Mode::new("a negative length", at_once("$-2\r\n")).says("out of bounds"),
        Mode::new("a length beyond all bounds", at_once("*9223372036854775808\r\n")).says("number"),
        Mode::new("a map beyond all bounds", at_once("%9223372036854775807\r\n")).says("too many items"),
        Mode::new("a text in chunks", at_once("$?\r\n;4\r\nabcd\r\n;0\r\n")).says("number"),
        Mode::new("an attribute", at_once("|1\r\n+a\r\n+b\r\n%0\r\n")).says("unknown type"),
        Mode::new("a byte at a time", |peer: &mut Peer| {
            peer.some()?;
            peer.drip("%1\r\n+proto\r\n:3\r\n".repeat(1000).as_bytes())
        })
        .slow(),
        Mode::new("an unknown push, then silence", at_once(">2\r\n+surprise\r\n*1\r\n_\r\n")).slow(),
        Mode::new("an empty push, then silence", at_once(">0\r\n")).slow(),
        Mode::new("pushes without end", endless(b"", b">2\r\n+message\r\n+x\r\n"))
            .takes(16 << 20)
            .says("answers nothing"),
        Mode::new("pushes of odd types", endless(b"", b">3\r\n:1\r\n*0\r\n_\r\n"))
            .takes(16 << 20)
            .says("answers nothing"),
        Mode::new("pushes of messages", endless(b"", b">3\r\n+message\r\n+c\r\n$3\r\n\xff\x00x\r\n"))
            .takes(16 << 20)
            .says("answers nothing"),
        Mode::new("replies that nobody asked for", endless(b"", b"+OK\r\n")),
        Mode::new("an error that drives terminals", at_once(format!("-ERR {ESCAPES}\r\n"))).says("boo"),
        Mode::new("an error in a text", at_once(format!("!{}\r\n{ESCAPES}\r\n", ESCAPES.len()))).says("boo"),
        Mode::new("an error that repeats what it was sent", |peer: &mut Peer| {
            let words = command(peer)?;
            peer.send(format!("-ERR Protocol error near: {}\r\n", words.join(" ")).as_bytes())?;
            peer.silence()
        })
        .says("Protocol error"),
        Mode::new("a refusal that repeats what it was sent", |peer: &mut Peer| {
            let words = command(peer)?;
            peer.send(format!("-WRONGPASS {}\r\n", words.join(" ")).as_bytes())?;
            peer.silence()
        })
        .says("refused the user or password"),
        Mode::new("a close when a lock is asked for", once_greeted(|_| Ok(()))),
        Mode::new("silence when a lock is asked for", once_greeted(Peer::silence)).slow(),
        Mode::new(
            "a flood when a lock is asked for",
            once_greeted(|peer| {
                peer.send(b"*60000\r\n")?;
                peer.flood(b"*0\r\n")
            }),
        ),
        Mode::new(
            "a version beyond all bounds",
            but_for("INFO", "$31\r\nredis_version:99999999999.9.9\r\n\r\n"),
        ),
        Mode::new("no version", but_for("INFO", "$0\r\n\r\n")),
        Mode::new("an old version", but_for("INFO", "$19\r\nredis_version:5.0.7\r\n"))
            .says("is Redis 5.0.7; Fencepost needs 6.2"),
        Mode::new("a replica", but_for("INFO", "$10\r\nrole:slave\r\n")).says("replica").slow(),
        Mode::new("one that evicts", but_for("INFO", "$28\r\nmaxmemory_policy:allkeys-lru\r\n"))
            .says("evicts keys"),
        Mode::new("one that knows no scripts", but_for("SCRIPT", UNKNOWN_SCRIPT))
            .says("too old or not a Redis"),
    ];
    let wrong =
        ["_\r\n", ":-1\r\n", "*0\r\n", "*2\r\n:1\r\n*1\r\n_\r\n", "$2\r\n\u{80}\r\n", ">0\r\n", "-\r\n"];
    for word in ["HELLO", "INFO", "SCRIPT", "PING", "EVALSHA", "TIME", "SELECT", "SUBSCRIBE"] {
        for answer in wrong {
            let mode = Mode::new(format!("{answer:?} to {word}"), but_for(word, answer));
            // A push is no answer, and an answer to what has none is one too many.
            modes.push(mode.slow());
        }
    }
    modes
}

/// Those that let a client in, and then cannot do what a lock needs.
pub(crate) fn pretenders() -> impl Iterator<Item = Mode> {
    let unlike = "too old or not a Redis";
    let pretend = |name, answer| Mode::new(name, but_for("EVALSHA", answer));
    [
        pretend("one that runs no scripts", UNKNOWN_EVALSHA).says(unlike),
        pretend("one without a clock", UNKNOWN_IN_SCRIPT).says(unlike),
        pretend("one that forgets its scripts", "-NOSCRIPT No matching script.\r\n").says("NOSCRIPT"),
    ]
    .into_iter()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_redis_sends_ends_in_time_with_an_error() {
    check_all(modes().into_iter().chain(pretenders()).collect(), 1, |fakes, timeout| {
        format!("redis://ann:{PASSWORD}@{}/1?timeout={timeout}ms", fakes[0].addr)
    })
    .await;
}
