//! The counter that numbers the children of a node, set by changing it in a snapshot: no client can.

use std::fs;
use std::path::{Path, PathBuf};

/// Reads what a snapshot has, in order.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn skip(&mut self, count: usize) {
        self.at += count;
    }

    fn int(&mut self) -> usize {
        let four = self.bytes[self.at..self.at + 4].try_into().expect("four bytes");
        self.skip(4);
        // A missing text has a length of -1.
        usize::try_from(i32::from_be_bytes(four)).unwrap_or(0)
    }

    fn text(&mut self) -> String {
        let length = self.int();
        self.skip(length);
        String::from_utf8_lossy(&self.bytes[self.at - length..self.at]).into_owned()
    }
}

/// Where the counter of a node is, and where the nodes end.
fn find(bytes: &[u8], node: &str) -> (Option<usize>, usize) {
    let mut cursor = Cursor { bytes, at: 16 };
    for _ in 0..cursor.int() {
        // A session and its timeout.
        cursor.skip(12);
    }
    for _ in 0..cursor.int() {
        cursor.skip(8);
        for _ in 0..cursor.int() {
            cursor.skip(4);
            let _scheme_and_id = (cursor.text(), cursor.text());
        }
    }
    let mut counter = None;
    loop {
        let path = cursor.text();
        if path == "/" {
            return (counter, cursor.at);
        }
        let data = cursor.int();
        // The data, the number of its ACL, four long numbers and its version come before; three fields
        // behind.
        cursor.skip(data + 8 + 32 + 4);
        if path == node {
            counter = Some(cursor.at);
        }
        cursor.skip(4 + 4 + 8 + 8);
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (mut low, mut high) = (1, 0);
    for byte in bytes {
        low = (low + u32::from(*byte)) % MODULUS;
        high = (high + low) % MODULUS;
    }
    high << 16 | low
}

fn newest_snapshot(data: &Path) -> PathBuf {
    let files = fs::read_dir(data.join("version-2")).expect("a folder with data");
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("snapshot.")?;
        u64::from_str_radix(name, 16).ok()
    };
    let snapshots = files.filter_map(|file| Some(file.ok()?.path())).filter(|path| number(path).is_some());
    snapshots.max_by_key(number).expect("a snapshot")
}

/// Changes the counter of a node in the newest snapshot of a server that does not run.
pub(super) fn set(data: &Path, node: &str, counter: i32) {
    let file = newest_snapshot(data);
    let mut bytes = fs::read(&file).expect("a snapshot");
    let (at, end) = find(&bytes, node);
    let at = at.unwrap_or_else(|| panic!("no `{node}` in the snapshot"));
    bytes[at..at + 4].copy_from_slice(&counter.to_be_bytes());
    // What comes behind the nodes is their checksum and a mark; what follows these can be left out.
    bytes.truncate(end);
    let checksum = u64::from(adler32(&bytes));
    bytes.extend(checksum.to_be_bytes());
    bytes.extend([0, 0, 0, 1, b'/']);
    fs::write(&file, bytes).expect("the folder is writable");
}
