//! Percent-encoding, the one escape used for names in files, keys, handles and URLs; and durations as text.

use std::borrow::Cow;
use std::time::Duration;

use crate::{Error, Result};

/// Encodes everything but ASCII letters, digits, `-`, `_`, `.` and the bytes in `keep`.
pub(crate) fn encode(text: &str, keep: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) || keep.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Undoes [`encode`]; `None` if an escape is broken or the result is not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}

/// Text as it can be shown in one line on any terminal: control characters become escapes.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// Reads a duration as people write it: `500ms`, `30s`, `5m`, `2h`, `1d`.
///
/// # Errors
/// [`Error::Invalid`] for anything else, with the accepted forms in the message.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    number
        .parse::<u64>()
        .ok()
        .zip(milliseconds)
        .and_then(|(number, unit)| number.checked_mul(unit))
        .map(Duration::from_millis)
        .ok_or_else(|| {
            Error::invalid(format!(
                "`{text}` is not a duration; write a whole number and a unit, as in 500ms, 30s, 5m, 2h or 1d"
            ))
        })
}

/// Writes a duration for people: one or two units, `2.5s`, `4m 10s`, `3h 5m`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..10 if duration.subsec_millis() >= 100 => {
            format!("{}.{}s", seconds, duration.subsec_millis() / 100)
        }
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit} {small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in ".{0,60}") {
            prop_assert_eq!(decode(&encode(&text, b"")).unwrap(), text.clone());
            prop_assert_eq!(decode(&encode(&text, b":/")).unwrap(), text);
        }

        #[test]
        fn no_text_makes_a_duration_panic(text in ".{0,12}", number: u64, unit in "(ms|s|m|h|d)") {
            let _ = parse_duration(&text);
            let read = parse_duration(&format!("{number}{unit}"));
            prop_assert!(read.is_err() || read.unwrap().as_millis() >= u128::from(number));
            let _ = format_duration(Duration::from_millis(number));
        }

        #[test]
        fn different_texts_have_different_encodings(a in ".{0,20}", b in ".{0,20}") {
            prop_assert_eq!(encode(&a, b"") == encode(&b, b""), a == b);
        }
    }

    #[test]
    fn what_is_shown_cannot_drive_a_terminal() {
        assert_eq!(printable("order's \u{1b}[2J\n"), "order's \\u{1b}[2J\\n");
        assert!(matches!(printable("ä/ö `x`"), Cow::Borrowed(_)));
    }

    #[test]
    fn durations_read_and_write_as_people_do() {
        for (text, milliseconds) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000)] {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(text).unwrap(), duration);
            assert_eq!(format_duration(duration), text);
        }
        assert_eq!(format_duration(Duration::from_millis(2_540)), "2.5s");
        assert_eq!(format_duration(Duration::from_secs(250)), "4m 10s");
        for wrong in
            ["", "5", "s", "-1s", "1.5s", "5 s", "5S", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
