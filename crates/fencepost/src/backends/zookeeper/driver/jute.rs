//! ZooKeeper's wire format: big-endian numbers, and texts, byte strings and lists that follow their length.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

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

    /// No message of ours comes near two gigabytes.
    fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).unwrap_or(i32::MAX));
    }
}

/// Appends a message to `out`, after its length.
pub(super) fn frame(out: &mut Vec<u8>, fill: impl FnOnce(&mut Writer<'_>)) {
    let start = out.len();
    out.extend([0; 4]);
    fill(&mut Writer(out));
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Reads one message. A longer one than `most` is no message of this protocol.
pub(super) async fn read_frame(stream: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<Vec<u8>> {
    let read = async {
        // A negative length is a long one here.
        let length = stream.read_u32().await? as usize;
        if length > most {
            return Err(garbled());
        }
        let mut message = vec![0; length];
        stream.read_exact(&mut message).await?;
        Ok(message)
    };
    read.await.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the server closed the connection"),
        _ => error,
    })
}

/// For bytes that are no message of this protocol.
pub(super) fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer that is not of ZooKeeper's protocol")
}

/// Reads the parts of one message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn int(&mut self) -> io::Result<i32> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> io::Result<i64> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn bytes(&mut self) -> io::Result<&'a [u8]> {
        // -1 means no value.
        let length = self.int()?;
        let length = if length == -1 { 0 } else { usize::try_from(length).map_err(|_| garbled())? };
        let (head, rest) = self.0.split_at_checked(length).ok_or_else(garbled)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn text(&mut self) -> io::Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| garbled())
    }

    pub(super) fn texts(&mut self) -> io::Result<Vec<String>> {
        // -1 means no list. Each text takes at least four bytes.
        let count = usize::try_from(self.int()?.max(0)).map_err(|_| garbled())?;
        if count > self.0.len() / 4 {
            return Err(garbled());
        }
        (0..count).map(|_| self.text().map(str::to_owned)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[tokio::test]
    async fn a_message_reads_back_as_it_was_written() {
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
            let error = read_frame(&mut &out[..cut], 100).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        let message = read_frame(&mut &out[..], 100).await.unwrap();
        let mut reader = Reader(&message);
        assert_eq!((reader.int().unwrap(), reader.long().unwrap()), (-7, 1 << 40));
        assert_eq!(reader.take().unwrap(), [1]);
        assert_eq!((reader.text().unwrap(), reader.bytes().unwrap()), ("/a/ä", &b"\0\x01"[..]));
        assert_eq!(reader.texts().unwrap(), ["x", ""]);
        assert!(reader.int().is_err());
    }

    #[tokio::test]
    async fn a_length_that_cannot_be_is_refused() {
        for head in [[0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0, 0, 0, 101]] {
            let error = read_frame(&mut &head[..], 100).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{head:?}");
        }
        assert!(Reader(&[0, 0, 0, 9, b'x']).bytes().is_err());
        assert_eq!(Reader(&[0xff; 4]).bytes().unwrap(), b"");
        assert!(Reader(&[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0]).texts().is_err());
        assert!(Reader(&[0xff; 4]).texts().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut reader = Reader(&bytes);
            let _ = (reader.texts(), reader.long(), reader.text());
        }
    }
}
