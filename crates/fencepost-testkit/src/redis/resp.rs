//! As much of the Redis protocol as a test needs: one command, one answer, over the server's unix socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status or a string.
    Text(String),
    /// A number.
    Number(i64),
    /// Nothing.
    Nil,
    /// Several answers.
    List(Vec<Reply>),
    /// An error.
    Error(String),
}

impl Reply {
    /// One value a line; nil is an empty line.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Text(text) | Self::Error(text) => vec![text.clone()],
            Self::Number(number) => vec![number.to_string()],
            Self::Nil => vec![String::new()],
            Self::List(items) => items.iter().flat_map(Self::lines).collect(),
        }
    }
}

pub(super) struct Connection(BufReader<UnixStream>);

impl Connection {
    pub(super) fn open(socket: &Path, patience: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(super) fn call(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        self.0.get_mut().write_all(&request)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let garbled = || io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"));
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(garbled)?;
        let number = || rest.parse::<i64>().map_err(|_| garbled());
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.0.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            },
            "*" => match number()? {
                ..0 => Reply::Nil,
                count => Reply::List((0..count).map(|_| self.read()).collect::<io::Result<_>>()?),
            },
            _ => return Err(garbled()),
        })
    }
}
