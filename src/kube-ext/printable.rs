//! Text for a terminal or a log. What other people, machines and clusters wrote is printed through this module.
//!
//! Input: any text. Output: the same text, with each control character in the notation of JSON, such as `\u001b`. Control characters
//! would move the cursor, change what is on the screen, or answer in the name of whoever sits there.

use std::borrow::Cow;

/// Text of several lines: newlines and tabs stay.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |character| is_active(character) && !matches!(character, '\n' | '\t'))
}

/// Text within a line: a newline is replaced too, so that no further line can be forged.
#[must_use]
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_active)
}

fn escaped(text: &str, is_refused: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_refused) {
        return Cow::Borrowed(text);
    }
    let escape = |character: char| {
        if is_refused(character) { format!("\\u{:04x}", u32::from(character)) } else { character.to_string() }
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Control characters, both separators of lines, and what changes the direction of the text that follows: a terminal shows another
/// text than there is.
fn is_active(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_others_are_shown_and_not_obeyed() {
        let clears = "ok\x1b[2J\r\u{9b}1;1H\u{202e}\u{7}";
        assert_eq!(printable(clears), "ok\\u001b[2J\\u000d\\u009b1;1H\\u202e\\u0007");
        assert_eq!(printable("a\tb\nc"), "a\tb\nc");
        assert_eq!(on_one_line("a\tb\nc"), "a\\u0009b\\u000ac");
        let plain = "größer, 日本, «x»…";
        assert!(matches!(printable(plain), Cow::Borrowed(same) if same == plain));
        // Within JSON the notation is an escape again.
        let json = printable("\"\u{9b}\"").into_owned();
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "\u{9b}");
    }
}
