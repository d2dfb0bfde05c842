//! Text from outside, made fit to be shown: no control characters, no direction marks, no great length.
//!
//! Must never lose the fact that something was cut or replaced.

use crate::label::SmolStr;

/// Longest error text that is kept.
pub const MESSAGE: usize = 200;
/// Longest label value that is kept.
pub const LABEL: usize = 64;

/// `text` with what could disturb a terminal or a page replaced, and at most `longest` characters of it.
pub fn clean(text: &str, longest: usize) -> String {
    let mut shown: String =
        text.chars().take(longest).map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect();
    if text.chars().nth(longest).is_some() {
        shown.push('…');
    }
    shown
}

/// [`clean`] for the value of a label, without a detour through the heap where the text is short and harmless.
pub fn clean_label(text: &str) -> SmolStr {
    if text.len() <= LABEL && text.chars().all(harmless) {
        SmolStr::new(text)
    } else {
        clean(text, LABEL).into()
    }
}

/// Whether `c` is shown as what it is: no control character, and nothing invisible or that turns the direction.
pub fn harmless(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = matches!(c, '\u{2028}'..='\u{2029}');
    let invisible = matches!(
        c,
        '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !turns && !breaks && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_disturbs_is_replaced_and_length_is_bounded() {
        assert_eq!(clean("2MB+-ALL_REDUCE", LABEL), "2MB+-ALL_REDUCE");
        assert_eq!(clean("a\u{1b}[31mred\n\u{202e}x", LABEL), "a\u{fffd}[31mred\u{fffd}\u{fffd}x");
        assert_eq!(clean("nix\u{61c}\u{ad}\u{e0041}b", LABEL), "nix\u{fffd}\u{fffd}\u{fffd}b");
        assert_eq!(clean("äöüäöü", 3), "äöü…");
        assert_eq!(clean("äöü", 3), "äöü");
        assert_eq!(clean_label("8MB+"), "8MB+");
        assert_eq!(clean_label("a\n"), "a\u{fffd}");
        assert_eq!(clean_label(&"x".repeat(99)), clean(&"x".repeat(99), LABEL));
    }
}
