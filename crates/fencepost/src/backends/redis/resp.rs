//! The wire format: commands out as arrays of bulk strings, RESP3 values in. Pure, incremental, bounded.

use std::fmt;

/// Larger replies than this are not answers to anything we ask.
const MAX_LENGTH: usize = 64 << 20;
const MAX_DEPTH: usize = 8;

/// One value from the server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    Error(String),
    /// Arrays, sets and maps; a map's keys and values alternate.
    List(Vec<Value>),
    /// What the server sends unasked.
    Push(Vec<Value>),
}

impl Value {
    pub(in crate::backends) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    pub(in crate::backends) fn as_list(&self) -> Option<&[Value]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{:?}", String::from_utf8_lossy(text)),
            Self::Error(text) => write!(f, "error {text:?}"),
            Self::List(items) | Self::Push(items) => f.debug_list().entries(items).finish(),
        }
    }
}

/// The server sent something that is not RESP3.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server does not speak the Redis protocol: {0}")]
pub(in crate::backends) struct Garbled(&'static str);

/// Appends one command of `count` words.
pub(in crate::backends) fn encode<'a>(
    out: &mut Vec<u8>,
    count: usize,
    words: impl Iterator<Item = &'a [u8]>,
) {
    header(out, b'*', count);
    self::words(out, words);
}

/// Appends words of a command.
pub(super) fn words<'a>(out: &mut Vec<u8>, words: impl Iterator<Item = &'a [u8]>) {
    for word in words {
        header(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a length or a count.
pub(super) fn header(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(digits(number as u64, &mut [0; 20]));
    out.extend_from_slice(b"\r\n");
}

/// The digits of a number, without a string of its own.
fn digits(number: u64, space: &mut [u8; 20]) -> &[u8] {
    let (mut start, mut rest) = (space.len(), number);
    loop {
        start -= 1;
        #[allow(clippy::cast_possible_truncation)] // a digit
        let digit = (rest % 10) as u8;
        space[start] = b'0' + digit;
        rest /= 10;
        if rest == 0 {
            return &space[start..];
        }
    }
}

/// Words that are encoded once and sent to several servers.
#[derive(Debug, Default)]
pub(in crate::backends) struct Ready {
    count: usize,
    bytes: Vec<u8>,
}

impl Ready {
    pub(in crate::backends) fn push(&mut self, word: &str) {
        self.append(word.as_bytes());
    }

    pub(in crate::backends) fn push_number(&mut self, number: u64) {
        self.append(digits(number, &mut [0; 20]));
    }

    fn append(&mut self, word: &[u8]) {
        self.count += 1;
        words(&mut self.bytes, std::iter::once(word));
    }
}

/// A part of a command.
#[derive(Clone, Copy, Debug)]
pub(in crate::backends) enum Part<'a> {
    Words(&'a [&'a str]),
    Ready(&'a Ready),
}

impl Part<'_> {
    /// How many words it has.
    pub(in crate::backends) fn count(self) -> usize {
        match self {
            Self::Words(words) => words.len(),
            Self::Ready(ready) => ready.count,
        }
    }

    fn append(self, out: &mut Vec<u8>) {
        match self {
            Self::Words(words) => self::words(out, words.iter().map(|word| word.as_bytes())),
            Self::Ready(ready) => out.extend_from_slice(&ready.bytes),
        }
    }
}

/// Appends one command that comes in parts.
pub(super) fn encode_parts<'a>(out: &mut Vec<u8>, parts: impl Iterator<Item = Part<'a>> + Clone) {
    header(out, b'*', parts.clone().map(Part::count).sum());
    parts.for_each(|part| part.append(out));
}

/// Reads one value from the front of `input`, and how many bytes it took; `None` if it is not complete yet.
pub(in crate::backends) fn decode(input: &[u8]) -> Result<Option<(Value, usize)>, Garbled> {
    let mut reader = Reader { input, at: 0 };
    Ok(reader.value(0)?.map(|value| (value, reader.at)))
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Option<Value>, Garbled> {
        if depth > MAX_DEPTH {
            return Err(Garbled("a reply is nested too deeply"));
        }
        let Some(line) = self.line()? else { return Ok(None) };
        let Some((kind, rest)) = line.split_first() else { return Err(Garbled("an empty line")) };
        Ok(Some(match kind {
            b'+' | b',' | b'(' => Value::Text(rest.to_vec()),
            b'-' => Value::Error(String::from_utf8_lossy(rest).into_owned()),
            b':' => Value::Int(number(rest)?),
            b'_' => Value::Nil,
            b'#' => Value::Int(i64::from(rest == b"t")),
            b'$' | b'=' | b'!' => {
                let Some(length) = length(rest)? else { return Ok(Some(Value::Nil)) };
                let Some(text) = self.bulk(length)? else { return Ok(None) };
                match kind {
                    b'!' => Value::Error(String::from_utf8_lossy(text).into_owned()),
                    // "txt:" or "mkd:" in front
                    b'=' => Value::Text(text.get(4..).unwrap_or_default().to_vec()),
                    _ => Value::Text(text.to_vec()),
                }
            }
            b'*' | b'~' | b'>' | b'%' => {
                let Some(length) = length(rest)? else { return Ok(Some(Value::Nil)) };
                let length = if *kind == b'%' { length * 2 } else { length };
                let mut items = Vec::with_capacity(length.min(1024));
                for _ in 0..length {
                    let Some(item) = self.value(depth + 1)? else { return Ok(None) };
                    items.push(item);
                }
                if *kind == b'>' { Value::Push(items) } else { Value::List(items) }
            }
            _ => return Err(Garbled("an unknown type of reply")),
        }))
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<Option<&'a [u8]>, Garbled> {
        let rest = &self.input[self.at..];
        match rest.iter().position(|byte| *byte == b'\r') {
            Some(end) if rest.len() > end + 1 => {
                if rest[end + 1] != b'\n' {
                    return Err(Garbled("a line without its end"));
                }
                self.at += end + 2;
                Ok(Some(&rest[..end]))
            }
            None if rest.len() > MAX_LENGTH => Err(Garbled("a line without its end")),
            _ => Ok(None),
        }
    }

    fn bulk(&mut self, length: usize) -> Result<Option<&'a [u8]>, Garbled> {
        let rest = &self.input[self.at..];
        if rest.len() < length + 2 {
            return Ok(None);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(Garbled("a text without its end"));
        }
        self.at += length + 2;
        Ok(Some(&rest[..length]))
    }
}

fn number(text: &[u8]) -> Result<i64, Garbled> {
    let text = std::str::from_utf8(text).map_err(|_| Garbled("a number that is none"))?;
    text.parse().map_err(|_| Garbled("a number that is none"))
}

/// A length; `None` for the -1 that means nil.
fn length(text: &[u8]) -> Result<Option<usize>, Garbled> {
    match number(text)? {
        -1 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= MAX_LENGTH => Ok(Some(length)),
            _ => Err(Garbled("a length out of bounds")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(input: &[u8]) -> Value {
        let (value, used) = decode(input).unwrap().unwrap();
        assert_eq!(used, input.len());
        value
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn a_command_in_parts_is_the_same_command() {
        let mut ready = Ready::default();
        ready.push("");
        ready.push("key");
        [0, 9, 10, u64::MAX].into_iter().for_each(|number| ready.push_number(number));
        let (mut parts, mut whole) = (Vec::new(), Vec::new());
        encode_parts(
            &mut parts,
            [Part::Words(&["EVALSHA", "x"]), Part::Ready(&ready), Part::Words(&[])].into_iter(),
        );
        let words = ["EVALSHA", "x", "", "key", "0", "9", "10", "18446744073709551615"];
        encode(&mut whole, words.len(), words.iter().map(|word| word.as_bytes()));
        assert_eq!(parts, whole);
    }

    #[test]
    fn every_type_of_reply_is_read() {
        assert_eq!(all(b"+OK\r\n"), text("OK"));
        assert_eq!(all(b":-42\r\n"), Value::Int(-42));
        assert_eq!(all(b"$3\r\na\rb\r\n"), text("a\rb"));
        assert_eq!(all(b"$-1\r\n"), Value::Nil);
        assert_eq!(all(b"_\r\n"), Value::Nil);
        assert_eq!(all(b"#t\r\n"), Value::Int(1));
        assert_eq!(all(b"=6\r\ntxt:ab\r\n"), text("ab"));
        assert_eq!(all(b"-ERR no\r\n"), Value::Error("ERR no".into()));
        assert_eq!(all(b"*2\r\n:1\r\n$1\r\nx\r\n"), Value::List(vec![Value::Int(1), text("x")]));
        assert_eq!(all(b"%1\r\n+k\r\n:1\r\n"), Value::List(vec![text("k"), Value::Int(1)]));
        assert_eq!(all(b">1\r\n+m\r\n"), Value::Push(vec![text("m")]));
    }

    #[test]
    fn nonsense_is_refused_and_not_waited_for() {
        for input in [&b"HTTP/1.1 400\r\n"[..], b":x\r\n", b"$99999999999\r\n", b"*-7\r\n", b"$1\r\nabc\r\n"]
        {
            assert!(decode(input).is_err(), "{input:?}");
        }
        let deep: Vec<u8> = b"*1\r\n".repeat(MAX_DEPTH + 2);
        assert!(decode(&deep).is_err());
    }

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        encode(&mut out, 2, [&b"GET"[..], b"lock:1234567890"].into_iter());
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$15\r\nlock:1234567890\r\n");
    }

    proptest! {
        #[test]
        fn a_reply_in_pieces_is_waited_for(cut in 0usize..24) {
            let whole = b"*2\r\n$5\r\nhello\r\n:12345\r\n";
            let (part, done) = (&whole[..cut.min(whole.len())], cut >= whole.len());
            prop_assert_eq!(decode(part).unwrap().is_some(), done);
        }

        #[test]
        fn a_reply_that_was_changed_does_not_make_the_parser_panic(at in 0usize..200, by: u8) {
            let mut input = b"*3\r\n:42\r\n$5\r\nhello\r\n>2\r\n+ok\r\n%1\r\n_\r\n-ERR no\r\n".to_vec();
            let place = at % input.len();
            input[place] = by;
            let _ = decode(&input);
        }

        #[test]
        fn no_input_makes_the_parser_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&input);
        }
    }
}
