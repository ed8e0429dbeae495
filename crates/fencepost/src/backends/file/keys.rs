//! The file of a name: readable where it can be, and never that of another name.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::{Name, text};

/// What lock files end in. Nothing else in the directory does.
pub(super) const SUFFIX: &str = ".lock";

/// The longest file name that Linux takes.
const MAX_FILE_NAME: usize = 255;
/// How much of a name that is too long stays readable in front of its hash.
const READABLE: usize = 120;
/// Stands between the two. Never part of an encoded name, so the two kinds cannot meet.
const HASHED: char = '~';

/// The lock file of a name.
pub(super) fn file_name(name: &Name) -> String {
    file_name_with(name, SUFFIX)
}

/// The same with another ending.
pub(crate) fn file_name_with(name: &Name, suffix: &str) -> String {
    let mut out = encoded(name.as_str());
    if out.len() + suffix.len() > MAX_FILE_NAME {
        out.truncate(READABLE);
        out.push(HASHED);
        for byte in Sha256::digest(name.as_str()) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
    }
    out.push_str(suffix);
    out
}

/// Whether a lock file may be of a name that starts with `prefix`. Only the record can tell for a hashed one.
pub(super) fn may_start_with(file_name: &str, prefix: &str) -> bool {
    file_name.contains(HASHED) || file_name.starts_with(&encoded(prefix))
}

/// The name that a file's own name tells, for messages about a file that cannot be read.
pub(super) fn named_by(file_name: &str) -> crate::Result<Name> {
    let stem = file_name.strip_suffix(SUFFIX).unwrap_or(file_name);
    Name::new(&text::decode(stem).unwrap_or_else(|| stem.to_owned()))
}

fn encoded(name: &str) -> String {
    let encoded = text::encode(name, b":@+,=");
    // No hidden files, and nothing that could be taken for `.` or `..`.
    match encoded.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => encoded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(name: &str) -> String {
        file_name(&Name::new(name).unwrap())
    }

    #[test]
    fn files_are_named_after_their_locks() {
        assert_eq!(file("order:42"), "order:42.lock");
        assert_eq!(file("a/b"), "a%2Fb.lock");
        assert_eq!(file("."), "%2E.lock");
        assert_eq!(file("../../etc"), "%2E.%2F..%2Fetc.lock");
        assert_eq!(file("~"), "%7E.lock");
        let (a, b) = (file(&"ü".repeat(200)), file(&("ü".repeat(199) + "u")));
        assert!(a.len() <= MAX_FILE_NAME && a.contains(HASHED) && a != b);
    }

    proptest! {
        #[test]
        fn every_name_has_a_safe_file_of_its_own(a in "[^\0]{1,128}", b in "[^\0]{1,128}") {
            let (file_a, file_b) = (file(&a), file(&b));
            prop_assert_eq!(file_a == file_b, a == b);
            prop_assert!(file_a.len() <= MAX_FILE_NAME && file_a.ends_with(SUFFIX));
            prop_assert!(!file_a.starts_with('.') && !file_a.contains('/'));
        }

        #[test]
        fn no_name_hides_from_its_prefix(name in "[^\0]{1,128}", cut in 0usize..128) {
            let prefix: String = name.chars().take(cut).collect();
            prop_assert!(may_start_with(&file(&name), &prefix));
        }
    }
}
