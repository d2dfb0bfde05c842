//! Numbers with their nouns, as people read them.

use std::fmt::Display;

/// `many` things with the noun `what` in the number that it needs: `1 line`, `2 lines`, `3 processes`, `4 more entries`.
pub fn counted<N: Display + PartialEq + From<u8>>(many: N, what: &str) -> String {
    if many == N::from(1) {
        return format!("{many} {what}");
    }
    let stem = what.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match stem {
        Some(stem) => format!("{many} {stem}ies"),
        None if what.ends_with('s') => format!("{many} {what}es"),
        None => format!("{many} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_have_the_number_of_what_they_count() {
        let found = [
            counted(1_u64, "line"),
            counted(0_u64, "line"),
            counted(1_usize, "process"),
            counted(4_u32, "process"),
            counted(2_u64, "more entry"),
            counted(2_u64, "day"),
        ];
        assert_eq!(found, ["1 line", "0 lines", "1 process", "4 processes", "2 more entries", "2 days"]);
    }
}
