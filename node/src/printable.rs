//! Text from other programs, made safe to print.

/// The text with a replacement character for each character that would steer a terminal.
pub(crate) fn printable(text: &str) -> String {
    let steers = |character: char| {
        (character.is_control() && character != '\n')
            || matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|character| if steers(character) { char::REPLACEMENT_CHARACTER } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_replaced_where_it_can_be_seen() {
        let hostile = "a\u{1b}[2J\r\u{9b}31m\u{7f}\u{202e}\u{2066}\u{2028}b\n";
        assert_eq!(printable(hostile), "a\u{fffd}[2J\u{fffd}\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}b\n");
        assert_eq!(printable("≥ 14.2 µs 🐈\n"), "≥ 14.2 µs 🐈\n");
    }
}
