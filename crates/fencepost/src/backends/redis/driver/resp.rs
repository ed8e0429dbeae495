//! The wire format: commands out as arrays of bulk strings, RESP3 values in. Pure, incremental, bounded.

use std::fmt;

use crate::text::printable;

/// Bytes of the longest reply that is accepted. The longest honest one is a page of SCAN: a thousand buckets
/// with five keys each, if the server could not grow its table, and some 600 bytes a key, are 3 MB.
const MAX_REPLY: usize = 8 << 20;
/// Items of one reply, those of lists in lists included. The same page has 5,000.
const MAX_ITEMS: usize = 1 << 16;
/// Bytes of a line: a status, an error, a number.
const MAX_LINE: usize = 64 << 10;
/// Lists in lists. Scripts of ours nest twice.
const MAX_DEPTH: usize = 8;
/// Bytes of an error that are kept.
const MAX_ERROR: usize = 1024;
/// Bytes of a value that a message shows.
const MAX_SHOWN: usize = 200;

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

/// For messages, so it is short: a server may send much.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => {
                write!(f, "{:?}", String::from_utf8_lossy(&text[..text.len().min(MAX_SHOWN)]))
            }
            Self::Error(text) => write!(f, "error {text:?}"),
            Self::List(items) | Self::Push(items) => write!(f, "a list of {}", items.len()),
        }
    }
}

/// The server sent something that is not RESP3.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server does not speak the Redis protocol: {0}")]
pub(in crate::backends) struct Garbled(&'static str);

/// Appends one command that comes in parts.
pub(super) fn encode<'a>(out: &mut Vec<u8>, parts: impl Iterator<Item = Part<'a>> + Clone) {
    encode_length(out, b'*', parts.clone().map(Part::count).sum());
    for part in parts {
        match part {
            Part::Words(words) => words.iter().for_each(|word| encode_word(out, word.as_bytes())),
            Part::Ready(ready) => out.extend_from_slice(&ready.bytes),
        }
    }
}

fn encode_word(out: &mut Vec<u8>, word: &[u8]) {
    encode_length(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// By hand: through `to_string` it cost a twelfth of a client's instructions.
fn encode_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    let (mut digits, mut start, mut rest) = ([0; 20], 20, length);
    while rest > 0 || start == digits.len() {
        start -= 1;
        #[allow(clippy::cast_possible_truncation)] // a digit
        let digit = (rest % 10) as u8;
        digits[start] = b'0' + digit;
        rest /= 10;
    }
    out.push(kind);
    out.extend_from_slice(&digits[start..]);
    out.extend_from_slice(b"\r\n");
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
}

/// Words that are encoded already.
#[derive(Debug, Default)]
pub(in crate::backends) struct Ready {
    count: usize,
    bytes: Vec<u8>,
}

impl Ready {
    pub(in crate::backends) fn push(&mut self, word: &str) {
        self.extend(&[word]);
    }

    #[cfg_attr(not(feature = "redlock"), allow(dead_code))]
    pub(in crate::backends) fn push_number(&mut self, number: u64) {
        self.push(&number.to_string());
    }

    pub(super) fn extend(&mut self, words: &[impl AsRef<[u8]>]) {
        self.count += words.len();
        words.iter().for_each(|word| encode_word(&mut self.bytes, word.as_ref()));
    }
}

/// Reads replies from what has come so far. It takes what it has read: no unfinished reply is read again from
/// its beginning.
#[derive(Debug, Default)]
pub(in crate::backends) struct Decoder {
    /// Outermost first.
    open: Vec<UnfinishedList>,
    /// Bytes of the unfinished reply that were taken, and items that it has announced.
    taken: usize,
    items: usize,
    /// How many of the bytes after those hold no end of a line.
    searched: usize,
}

#[derive(Debug)]
struct UnfinishedList {
    push: bool,
    missing: usize,
    items: Vec<Value>,
}

impl Decoder {
    /// Reads on. Returns the reply if it is complete now, and how many bytes of `input` to take away.
    pub(in crate::backends) fn decode(&mut self, input: &[u8]) -> Result<(Option<Value>, usize), Garbled> {
        let mut at = 0;
        loop {
            let start = at;
            let Some(line) = self.line(&input[at..])? else { return Ok((None, self.take(at))) };
            let Some((kind, rest)) = line.split_first() else { return Err(Garbled("an empty line")) };
            at += line.len() + 2;
            let Some(most) = MAX_REPLY.checked_sub(self.taken + at) else { return Err(TOO_LONG) };
            let value = match kind {
                b'+' | b',' | b'(' => Value::Text(rest.to_vec()),
                b'-' => error(rest),
                b':' => Value::Int(number(rest)?),
                b'_' => Value::Nil,
                b'#' => Value::Int(i64::from(rest == b"t")),
                b'$' | b'=' | b'!' => match length(rest)? {
                    None => Value::Nil,
                    Some(length) => {
                        if length > most {
                            return Err(TOO_LONG);
                        }
                        let Some(text) = bulk(&input[at..], length)? else {
                            return Ok((None, self.take(start)));
                        };
                        at += length + 2;
                        match kind {
                            b'!' => error(text),
                            // "txt:" or "mkd:" in front
                            b'=' => Value::Text(text.get(4..).unwrap_or_default().to_vec()),
                            _ => Value::Text(text.to_vec()),
                        }
                    }
                },
                b'*' | b'~' | b'>' | b'%' => match length(rest)? {
                    None => Value::Nil,
                    Some(0) => list(*kind == b'>', Vec::new()),
                    Some(length) => {
                        let length = if *kind == b'%' { length.saturating_mul(2) } else { length };
                        self.begin(*kind == b'>', length, input.len() - at)?;
                        continue;
                    }
                },
                _ => return Err(UNKNOWN),
            };
            if let Some(value) = self.add(value) {
                (self.taken, self.items) = (0, 0);
                return Ok((Some(value), at));
            }
        }
    }

    /// Puts an element into the innermost open list. Returns the reply if that made it complete.
    fn add(&mut self, mut value: Value) -> Option<Value> {
        while let Some(open) = self.open.last_mut() {
            open.items.push(value);
            open.missing -= 1;
            if open.missing > 0 {
                return None;
            }
            value = list(open.push, std::mem::take(&mut open.items));
            self.open.pop();
        }
        Some(value)
    }

    /// Begins a list whose elements follow, in `left` bytes so far.
    fn begin(&mut self, push: bool, length: usize, left: usize) -> Result<(), Garbled> {
        self.items = self.items.saturating_add(length);
        if self.items > MAX_ITEMS {
            return Err(Garbled("a reply has too many items"));
        }
        if self.open.len() == MAX_DEPTH {
            return Err(Garbled("a reply is nested too deeply"));
        }
        // No element takes fewer than three bytes: no room is made for what has not come.
        let items = Vec::with_capacity(length.min(left / 3));
        self.open.push(UnfinishedList { push, missing: length, items });
        Ok(())
    }

    /// Notes that the reply is unfinished after so many bytes, which are taken.
    fn take(&mut self, at: usize) -> usize {
        self.taken += at;
        at
    }

    /// The first line without its end, if it has come whole.
    fn line<'a>(&mut self, input: &'a [u8]) -> Result<Option<&'a [u8]>, Garbled> {
        let searched = std::mem::take(&mut self.searched);
        let unsearched = input.get(searched..).unwrap_or_default();
        match unsearched.iter().position(|byte| *byte == b'\r').map(|end| searched + end) {
            Some(end) if input.len() > end + 1 => {
                if input[end + 1] != b'\n' {
                    return Err(Garbled("a line without its end"));
                }
                Ok(Some(&input[..end]))
            }
            // A text, or another protocol, may have no line at all: its first byte tells.
            _ if input.first().is_some_and(|kind| !b"+-:_#,($=!*~>%".contains(kind)) => Err(UNKNOWN),
            None if input.len() > MAX_LINE => Err(Garbled("a line without its end")),
            end => {
                self.searched = end.unwrap_or(input.len());
                Ok(None)
            }
        }
    }
}

const TOO_LONG: Garbled = Garbled("a reply is too long");
const UNKNOWN: Garbled = Garbled("an unknown type of reply");

fn list(push: bool, items: Vec<Value>) -> Value {
    if push { Value::Push(items) } else { Value::List(items) }
}

/// An error as it can be shown: a server must not write to a terminal or a log what it likes.
fn error(text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_ERROR)]);
    Value::Error(printable(&text).into_owned())
}

/// The text at the front of `input`, if it has come whole.
fn bulk(input: &[u8], length: usize) -> Result<Option<&[u8]>, Garbled> {
    match input.split_at_checked(length) {
        Some((text, [b'\r', b'\n', ..])) => Ok(Some(text)),
        Some((_, [] | [b'\r'])) | None => Ok(None),
        Some(_) => Err(Garbled("a text without its end")),
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
        length => usize::try_from(length).map(Some).map_err(|_| Garbled("a length out of bounds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What one decoder makes of `pieces`, one after the other: the first reply, if it becomes complete.
    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Value>, Garbled> {
        let (mut decoder, mut buffer) = (Decoder::default(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            let (value, used) = decoder.decode(&buffer)?;
            buffer.drain(..used);
            if value.is_some() {
                assert_eq!(buffer, b"", "all of it was taken");
                return Ok(value);
            }
        }
        Ok(None)
    }

    fn all(input: &[u8]) -> Value {
        decode([input]).unwrap().unwrap()
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
        let mixed = [Part::Words(&["EVALSHA", "x"]), Part::Ready(&ready), Part::Words(&[])];
        encode(&mut parts, mixed.into_iter());
        let words = ["EVALSHA", "x", "", "key", "0", "9", "10", "18446744073709551615"];
        encode(&mut whole, std::iter::once(Part::Words(&words)));
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
        for input in [
            &b"HTTP/1.1 400"[..],
            b"\x15\x03\x01",
            b":x\r\n",
            b"$99999999999\r\n",
            b"$-2147483648\r\n",
            b"*-7\r\n",
            b"*99999999999999999999\r\n",
            b"%9223372036854775807\r\n",
            b"$1\r\nabc\r\n",
            b"\r\n",
            b"+a\rb",
        ] {
            assert!(decode([input]).is_err(), "{input:?}");
        }
    }

    #[test]
    fn a_reply_has_an_end() {
        // Each is an honest beginning of something that no server of ours sends.
        let line = [b"+", vec![b'x'; MAX_LINE].as_slice()].concat();
        let many = [b"*2\r\n".to_vec(), format!("*{MAX_ITEMS}\r\n").into_bytes()].concat();
        let text = [b"$4194304\r\n", vec![b'x'; 4 << 20].as_slice(), b"\r\n"].concat();
        let texts = [b"*3\r\n", text.as_slice(), &text].concat();
        let full = format!("*2\r\n${}\r\n{}\r\n", MAX_REPLY - 30, "x".repeat(MAX_REPLY - 30));
        let headers = format!("{full}*{:040}\r\n$5\r\nhello\r\n", 1).into_bytes();
        for (input, why) in [
            (headers, "too long"),
            (line, "a line without its end"),
            (b"*1\r\n".repeat(MAX_DEPTH + 1), "nested too deeply"),
            (format!("*{}\r\n", MAX_ITEMS + 1).into_bytes(), "too many items"),
            (many, "too many items"),
            (format!("${}\r\n", MAX_REPLY + 1).into_bytes(), "too long"),
            (texts, "too long"),
        ] {
            assert!(decode([&input[..]]).unwrap_err().to_string().contains(why), "{why}");
            assert!(decode(input.chunks(1000)).unwrap_err().to_string().contains(why), "{why}");
        }
    }

    #[test]
    fn the_limits_are_of_one_reply_and_not_of_all() {
        let (mut decoder, page) = (Decoder::default(), b":1\r\n".repeat(MAX_ITEMS));
        let reply = [format!("*{MAX_ITEMS}\r\n").into_bytes(), page].concat();
        for _ in 0..40 {
            let (value, used) = decoder.decode(&reply).unwrap();
            assert_eq!(value.unwrap().as_list().map(<[_]>::len), Some(MAX_ITEMS));
            assert_eq!(used, reply.len());
        }
    }

    #[test]
    fn nothing_is_read_twice() {
        // A million items, in pieces that end within one: what is left of each piece is less than an item.
        let (mut decoder, mut buffer) = (Decoder::default(), b"*65536\r\n".to_vec());
        for piece in b":1234567\r\n".repeat(60_000).chunks(8192) {
            buffer.extend_from_slice(piece);
            let (value, used) = decoder.decode(&buffer).unwrap();
            assert_eq!(value, None);
            buffer.drain(..used);
            assert!(buffer.len() < 10, "{} bytes were left", buffer.len());
        }
        // A line that comes byte by byte is searched once.
        let (mut decoder, mut line) = (Decoder::default(), b"+".to_vec());
        for _ in 0..100 {
            line.push(b'x');
            assert_eq!(decoder.decode(&line), Ok((None, 0)));
            assert_eq!(decoder.searched, line.len());
        }
    }

    #[test]
    fn no_room_is_made_for_what_has_not_come() {
        let mut decoder = Decoder::default();
        decoder.decode(b"*65000\r\n:1\r\n").unwrap();
        assert!(decoder.open[0].items.capacity() < 100, "{}", decoder.open[0].items.capacity());
    }

    #[test]
    fn a_message_shows_the_beginning_of_a_value() {
        let shown = |value: Value| format!("{value:?}");
        assert_eq!([Value::Nil, Value::Int(-1), text("a\n")].map(shown), ["nil", "-1", "\"a\\n\""]);
        assert_eq!(shown(Value::List(vec![Value::Nil; 1 << 16])), "a list of 65536");
        assert_eq!(shown(text(&"ä".repeat(1 << 20))).len(), MAX_SHOWN + 2);
    }

    #[test]
    fn an_error_is_short_and_can_be_shown() {
        let Value::Error(text) = all(b"-ERR \x1b]0;x\x07\x1b[2J \xe2\x80\xae\xff\r\n") else { panic!() };
        assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
        let Value::Error(text) = all(&[b"!60000\r\n", vec![b'x'; 60_000].as_slice(), b"\r\n"].concat())
        else {
            panic!()
        };
        assert_eq!(text.len(), MAX_ERROR);
    }

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        encode(&mut out, std::iter::once(Part::Words(&["GET", "key:1234567890"])));
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$14\r\nkey:1234567890\r\n");
    }

    proptest! {
        #[test]
        fn a_reply_is_the_same_in_whatever_pieces_it_comes(size in 1usize..24) {
            let whole = b"*4\r\n$5\r\nhel\ro\r\n>1\r\n:12345\r\n%1\r\n+k\r\n*0\r\n!3\r\nERR\r\n";
            prop_assert_eq!(decode(whole.chunks(size)), Ok(Some(all(whole))));
            prop_assert_eq!(decode(whole[..whole.len() - 1].chunks(size)), Ok(None));
        }

        #[test]
        fn a_reply_that_was_changed_does_not_make_the_parser_panic(
            at in 0usize..200, by: u8, size in 1usize..60,
        ) {
            let mut input = b"*3\r\n:42\r\n$5\r\nhello\r\n>2\r\n+ok\r\n%1\r\n_\r\n-ERR no\r\n".to_vec();
            let place = at % input.len();
            input[place] = by;
            let (mut decoder, mut buffer) = (Decoder::default(), Vec::new());
            for piece in input.chunks(size) {
                buffer.extend_from_slice(piece);
                let Ok((_, used)) = decoder.decode(&buffer) else { break };
                buffer.drain(..used);
            }
        }

        #[test]
        fn no_input_makes_the_parser_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Decoder::default().decode(&input);
        }
    }
}
