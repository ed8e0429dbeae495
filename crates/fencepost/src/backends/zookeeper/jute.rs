//! ZooKeeper's wire format: big-endian numbers, and texts, byte strings and lists with their length in front.

use std::fmt;

/// Writes the parts of one message.
pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn int(&mut self, value: i32) {
        self.0.extend(value.to_be_bytes());
    }

    pub(super) fn long(&mut self, value: i64) {
        self.0.extend(value.to_be_bytes());
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.0.push(value.into());
    }

    pub(super) fn bytes(&mut self, value: &[u8]) {
        self.length(value.len());
        self.0.extend(value);
    }

    pub(super) fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    pub(super) fn texts<T: AsRef<str>>(&mut self, values: &[T]) {
        self.length(values.len());
        for value in values {
            self.text(value.as_ref());
        }
    }

    /// Nothing that we send comes near two gigabytes.
    fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).unwrap_or(i32::MAX));
    }
}

/// Puts `fill`'s message into `out`, with its length in front.
pub(super) fn frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Writer<'_>)) {
    let start = out.len();
    out.extend([0; 4]);
    fill(&mut Writer(out));
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// The longest message that is believed. The longest honest one names the children of a node: those of
/// 200,000 locks of usual names, or waiters, are 12 MB.
const MAX_FRAME: usize = 16 << 20;

/// The first whole message in `bytes`, and how many bytes it takes; `None` if more have to come.
pub(super) fn first_frame(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Garbled> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(i32::from_be_bytes(*head)).map_err(|_| Garbled)?;
    if length > MAX_FRAME {
        return Err(Garbled);
    }
    Ok(rest.get(..length).map(|message| (message, length + 4)))
}

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled;

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer that is not of ZooKeeper's protocol")
    }
}

impl std::error::Error for Garbled {}

/// Reads the parts of one message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Garbled)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn int(&mut self) -> Result<i32, Garbled> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<i64, Garbled> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Garbled> {
        // A length of -1 stands for no value at all.
        let length = self.int()?;
        let length = if length == -1 { 0 } else { usize::try_from(length).map_err(|_| Garbled)? };
        let (head, rest) = self.0.split_at_checked(length).ok_or(Garbled)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Garbled> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Garbled)
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, Garbled> {
        // A count of -1 stands for no list at all. No text takes fewer than four bytes.
        let count = usize::try_from(self.int()?.max(0)).map_err(|_| Garbled)?;
        if count > self.0.len() / 4 {
            return Err(Garbled);
        }
        (0..count).map(|_| self.text().map(str::to_owned)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_reads_back_as_it_was_written() {
        let mut out = Vec::new();
        frame(&mut out, |writer| {
            writer.int(-7);
            writer.long(1 << 40);
            writer.bool(true);
            writer.text("/a/ä");
            writer.bytes(b"\0\x01");
            writer.texts(&["x", ""]);
        });
        for cut in 0..out.len() {
            assert_eq!(first_frame(&out[..cut]), Ok(None));
        }
        let (message, length) = first_frame(&out).unwrap().unwrap();
        assert_eq!(length, out.len());
        let mut reader = Reader(message);
        assert_eq!((reader.int(), reader.long()), (Ok(-7), Ok(1 << 40)));
        assert_eq!(reader.take(), Ok([1]));
        assert_eq!((reader.text(), reader.bytes()), (Ok("/a/ä"), Ok(&b"\0\x01"[..])));
        assert_eq!(reader.texts(), Ok(vec!["x".to_owned(), String::new()]));
        assert_eq!(reader.int(), Err(Garbled));
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        assert_eq!(first_frame(&[0xff; 8]), Err(Garbled));
        assert_eq!(first_frame(&[0x7f, 0xff, 0xff, 0xff, 0]), Err(Garbled));
        assert_eq!(Reader(&[0, 0, 0, 9, b'x']).bytes(), Err(Garbled));
        assert_eq!(Reader(&[0xff; 4]).bytes(), Ok(&b""[..]));
        assert_eq!(Reader(&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0]).texts(), Err(Garbled));
        assert_eq!(Reader(&[0xff; 4]).texts(), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = first_frame(&bytes);
            let mut reader = Reader(&bytes);
            let _ = (reader.texts(), reader.long(), reader.text());
        }
    }
}
