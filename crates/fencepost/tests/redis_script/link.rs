//! A connection that hears pushes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fencepost_testkit::redis::Server;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Number(i64),
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("not a text: {other:?}"),
        }
    }

    pub(crate) fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            other => panic!("not a number: {other:?}"),
        }
    }

    pub(crate) fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }
}

pub(crate) struct Link {
    stream: BufReader<UnixStream>,
    /// What was published, in order: channel and message.
    heard: Vec<(String, String)>,
}

impl Link {
    pub(crate) fn open(server: &Server) -> Self {
        let stream = UnixStream::connect(server.socket()).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket has a timeout");
        let mut link = Self { stream: BufReader::new(stream), heard: Vec::new() };
        link.call(&["HELLO", "3"]);
        link
    }

    pub(crate) fn open_as(server: &Server, user: &str) -> Self {
        let mut link = Self::open(server);
        assert_eq!(link.call(&["AUTH", user, "secret"]), Reply::Text("OK".into()));
        link
    }

    pub(crate) fn listening(server: &Server, command: &str, to: &str) -> Self {
        let mut link = Self::open(server);
        link.send(&[command, to]);
        link.call(&["PING"]);
        link
    }

    pub(crate) fn send(&mut self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.stream.get_mut().write_all(&bytes).expect("the server reads");
    }

    pub(crate) fn call(&mut self, words: &[&str]) -> Reply {
        self.send(words);
        self.receive()
    }

    pub(crate) fn receive(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.value() {
                return reply;
            }
        }
    }

    /// Everything that was published to it before now.
    pub(crate) fn heard(&mut self) -> Vec<(String, String)> {
        self.call(&["PING"]);
        std::mem::take(&mut self.heard)
    }

    /// One value, or nothing if it was a push.
    fn value(&mut self) -> Option<Reply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("the server answers");
        let line = String::from_utf8(line).expect("replies are text");
        let line = line.strip_suffix("\r\n").expect("the server does not hang up");
        let (kind, rest) = line.split_at(1);
        Some(match kind {
            "_" => Reply::Nil,
            ":" => Reply::Number(rest.parse().expect("a number")),
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.into()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.stream.read_exact(&mut bytes).expect("the server answers");
                bytes.truncate(bytes.len() - 2);
                Reply::Text(String::from_utf8(bytes).expect("values are text"))
            }
            "*" | "~" | "%" | ">" => {
                let count = rest.parse::<usize>().expect("a length") * if kind == "%" { 2 } else { 1 };
                let items: Vec<_> = (0..count).map(|_| self.receive()).collect();
                if kind == ">" {
                    if items[0].text().ends_with("message") {
                        let [.., channel, message] = &items[..] else { panic!("a push has a message") };
                        self.heard.push((channel.text().into(), message.text().into()));
                    }
                    return None;
                }
                Reply::List(items)
            }
            _ => panic!("not a reply: {line}"),
        })
    }
}
