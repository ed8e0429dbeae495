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

/// Text as it can be shown in one line on any terminal and in any log: characters that would drive a
/// terminal, end a line, reorder the text around them or cannot be seen become escapes.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_unfit(character) {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// Control characters, and of the format characters those that forge what a reader sees: line and paragraph
/// separators, directions of writing, what has no width, annotations, tags.
pub fn is_unfit(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
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

/// Writes a duration for people: one or two units, `2.5s`, `4m 10s`, `3h 5m`, rounded to what is shown.
pub fn format_duration(duration: Duration) -> String {
    let in_units_of = |milliseconds: u128| {
        let unit = milliseconds * 1_000_000;
        (duration.as_nanos() + unit / 2) / unit
    };
    let (milliseconds, tenths, seconds) = (in_units_of(1), in_units_of(100), in_units_of(1_000));
    let (minutes, hours) = (in_units_of(60_000), in_units_of(3_600_000));
    if milliseconds < 1_000 {
        format!("{milliseconds}ms")
    } else if tenths < 100 && !tenths.is_multiple_of(10) {
        format!("{}.{}s", tenths / 10, tenths % 10)
    } else if seconds < 60 {
        format!("{seconds}s")
    } else if seconds < 3_600 {
        two(seconds / 60, "m", seconds % 60, "s")
    } else if minutes < 24 * 60 {
        two(minutes / 60, "h", minutes % 60, "m")
    } else {
        two(hours / 24, "d", hours % 24, "h")
    }
}

fn two(large: u128, large_unit: &str, small: u128, small_unit: &str) -> String {
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
        assert!(matches!(printable("ä/ö `x` हिन्दी 日本語\u{3000}e\u{301} 🦀"), Cow::Borrowed(_)));
        assert_eq!(
            printable("a\u{202e}b\u{2066}c\u{2028}d\u{200b}"),
            "a\\u{202e}b\\u{2066}c\\u{2028}d\\u{200b}"
        );
        for hidden in
            ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2029}', '\u{2069}', '\u{feff}', '\u{85}', '\u{e0041}']
        {
            assert!(printable(&hidden.to_string()).is_ascii(), "{hidden:?}");
        }
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
        for (microseconds, text) in [
            (0, "0ms"),
            (333_262, "333ms"),
            (999_499, "999ms"),
            (999_500, "1s"),
            (1_049_999, "1s"),
            (9_949_999, "9.9s"),
            (9_950_000, "10s"),
            (29_997_000, "30s"),
            (59_499_999, "59s"),
            (59_500_000, "1m"),
            (3_599_500_000, "1h"),
            (11_129_000_000, "3h 5m"),
            (86_399_000_000, "1d"),
        ] {
            assert_eq!(format_duration(Duration::from_micros(microseconds)), text, "{microseconds}");
        }
        assert!(format_duration(Duration::MAX).ends_with('h'));
        for wrong in
            ["", "5", "s", "-1s", "1.5s", "5 s", "5S", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
