//! Host lists as Slurm writes them: `tpu-[001-003,010],n[0-1]`, and beside that IPv6 addresses in brackets, `[::1]:4393`.
//! The only parser of this syntax.
//!
//! Must never build more names, or longer ones, than the limits allow.

use std::net::Ipv6Addr;

use crate::untrusted::{MESSAGE, clean};

/// The most hosts of a list.
pub const MOST_HOSTS: usize = 65_536;
/// The longest name, bytes: that of a DNS name, a user, a port and some room.
pub const LONGEST_NAME: usize = 320;

/// Why a text is no host list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostListError {
    /// Nothing between two commas, or nothing at all.
    #[error("the host list has an empty name")]
    EmptyName,
    /// A bracket in a bracket, or one without its pair.
    #[error("the brackets of the host list do not match")]
    Brackets,
    /// White space or a control character.
    #[error("the host list has white space or a control character")]
    WhiteSpace,
    /// Not numbers, or the last one below the first.
    #[error("`{0}` is no range of numbers, such as 001-016")]
    Range(String),
    /// Too many.
    #[error("the host list has more than {MOST_HOSTS} hosts")]
    TooMany,
    /// Too long.
    #[error("the host list has a name of more than {LONGEST_NAME} bytes")]
    LongName,
}

/// Every host in order, zero padding kept.
///
/// # Errors
/// If the text is no host list, or exceeds a limit.
pub fn expand(text: &str) -> Result<Vec<String>, HostListError> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(text)? {
        let (address, mut rest) = split_address(item);
        let mut names = vec![address.to_owned()];
        while let Some((before, after)) = rest.split_once('[') {
            let (ranges, after) = after.split_once(']').ok_or(HostListError::Brackets)?;
            names = multiply(&names, before, &numbers(ranges)?)?;
            rest = after;
        }
        if hosts.len() + names.len() > MOST_HOSTS {
            return Err(HostListError::TooMany);
        }
        for name in names {
            match name.len() + rest.len() {
                0 => return Err(HostListError::EmptyName),
                1..=LONGEST_NAME => hosts.push(name + rest),
                _ => return Err(HostListError::LongName),
            }
        }
    }
    Ok(hosts)
}

/// The IPv6 address in brackets that an item begins with, brackets included, and what follows it. No range of numbers has
/// colons.
fn split_address(item: &str) -> (&str, &str) {
    let end = item.strip_prefix('[').and_then(|inner| inner.find(']'));
    let end = end.filter(|end| item[1..=*end].parse::<Ipv6Addr>().is_ok());
    item.split_at(end.map_or(0, |end| end + 2))
}

/// The items between commas, where no bracket is open.
fn split_outside_brackets(text: &str) -> Result<Vec<&str>, HostListError> {
    let (mut items, mut start, mut open) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if open => return Err(HostListError::Brackets),
            '[' => open = true,
            ']' if !open => return Err(HostListError::Brackets),
            ']' => open = false,
            ',' if !open => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            c if c.is_control() || c.is_whitespace() => return Err(HostListError::WhiteSpace),
            _ => {}
        }
    }
    items.push(&text[start..]);
    if open { Err(HostListError::Brackets) } else { Ok(items) }
}

/// Every number of `001-003,010`, as text.
fn numbers(ranges: &str) -> Result<Vec<String>, HostListError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (from, to, width) = bounds(range).ok_or_else(|| HostListError::Range(clean(range, MESSAGE)))?;
        if to - from >= MOST_HOSTS - numbers.len() {
            return Err(HostListError::TooMany);
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

/// The first and the last number of a range, and the width of its numbers.
fn bounds(range: &str) -> Option<(usize, usize, usize)> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    if !(first.bytes().chain(last.bytes())).all(|byte| byte.is_ascii_digit()) || first.len() > 20 {
        return None;
    }
    let (from, to) = (first.parse().ok()?, last.parse().ok()?);
    (from <= to).then_some((from, to, first.len()))
}

fn multiply(names: &[String], before: &str, numbers: &[String]) -> Result<Vec<String>, HostListError> {
    if names.len().saturating_mul(numbers.len()) > MOST_HOSTS {
        return Err(HostListError::TooMany);
    }
    // All names of an item have about the same length.
    if names.iter().any(|name| name.len() + before.len() > LONGEST_NAME) {
        return Err(HostListError::LongName);
    }
    let of_name = |name| numbers.iter().map(move |number| format!("{name}{before}{number}"));
    Ok(names.iter().flat_map(of_name).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_scontrol_shows_them() {
        let hosts = expand("tpu-[001-003,010],n[0-1]").unwrap();
        assert_eq!(hosts, ["tpu-001", "tpu-002", "tpu-003", "tpu-010", "n0", "n1"]);
        assert_eq!(expand("r[1-2]n[08-09]x").unwrap(), ["r1n08x", "r1n09x", "r2n08x", "r2n09x"]);
        assert_eq!(expand("n[9-11]").unwrap(), ["n9", "n10", "n11"]);
        assert_eq!(expand("localhost").unwrap(), ["localhost"]);
        let addresses = expand("[::1]:4393,a[1-2],[fd00::7],fd00::8").unwrap();
        assert_eq!(addresses, ["[::1]:4393", "a1", "a2", "[fd00::7]", "fd00::8"]);
        assert_eq!(expand("me@tpu-[1-2].example:4393").unwrap()[1], "me@tpu-2.example:4393");
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_reason() {
        let reason = |text: &str| expand(text).unwrap_err();
        for bad in ["", "a,,b", ",", "a,"] {
            assert_eq!(reason(bad), HostListError::EmptyName, "{bad}");
        }
        for bad in ["a[", "a]", "a[1", "a[[1]]", "a[1]]"] {
            assert_eq!(reason(bad), HostListError::Brackets, "{bad}");
        }
        for (bad, range) in [
            ("a[2-1]", "2-1"),
            ("a[x]", "x"),
            ("a[]", ""),
            ("a[1,-2]", "-2"),
            ("a[1-2-3]", "1-2-3"),
            ("a[::1]", "::1"),
            ("[::x]:1", "::x"),
        ] {
            assert_eq!(reason(bad), HostListError::Range(range.into()), "{bad}");
        }
        for bad in ["a b", "a\nb", "a\0"] {
            assert_eq!(reason(bad), HostListError::WhiteSpace, "{bad}");
        }
    }

    #[test]
    fn a_list_has_limits() {
        let many = vec!["a"; MOST_HOSTS + 1].join(",");
        for bad in ["a[0-9999999]", "a[0-999][0-999]", "a[0-65535],b", "a[0-65535,7]", &many] {
            assert_eq!(expand(bad), Err(HostListError::TooMany), "{}", &bad[..bad.len().min(40)]);
        }
        assert_eq!(expand("a[0-65535]").unwrap().len(), MOST_HOSTS);
        let long = "x".repeat(LONGEST_NAME);
        assert_eq!(expand(&long).unwrap(), [&*long]);
        for bad in [format!("{long}y"), format!("{long}y[1-9]"), format!("a[0-9][0-9]{long}")] {
            assert_eq!(expand(&bad), Err(HostListError::LongName));
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_never_grows_without_bound(text in "[a-z0-9,\\[\\]-]{0,40}") {
            let hosts = expand(&text).unwrap_or_default();
            prop_assert!(hosts.len() <= MOST_HOSTS && hosts.iter().all(|host| !host.is_empty()));
        }

        #[test]
        fn a_range_names_each_number_once(first in 0_usize..500, count in 1_usize..200, width in 1_usize..6) {
            let last = first + count - 1;
            let hosts = expand(&format!("n[{first:0width$}-{last}]x")).unwrap();
            let wanted: Vec<String> = (first..=last).map(|number| format!("n{number:0width$}x")).collect();
            prop_assert_eq!(hosts, wanted);
        }
    }
}
