//! Host lists as Slurm writes them: `tpu-[001-003,010],n[0-1]`.

/// Longer lists are no host lists.
const MOST_HOSTS: usize = 65_536;

/// Every host in order, zero padding kept; `None` when the text is no host list or has too many hosts.
pub fn expand(text: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(text)? {
        let mut names = vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (ranges, after) = after.split_once(']')?;
            names = multiply(&names, before, &numbers(ranges)?)?;
            rest = after;
        }
        for name in names {
            hosts.push(name + rest);
        }
        if hosts.len() > MOST_HOSTS || hosts.iter().any(String::is_empty) {
            return None;
        }
    }
    Some(hosts)
}

/// The items between commas, where no bracket is open.
fn split_outside_brackets(text: &str) -> Option<Vec<&str>> {
    let (mut items, mut start, mut open) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '[' if open => return None,
            '[' => open = true,
            ']' if !open => return None,
            ']' => open = false,
            ',' if !open => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            c if c.is_control() || c.is_whitespace() => return None,
            _ => {}
        }
    }
    items.push(&text[start..]);
    (!open).then_some(items)
}

/// Every number of `001-003,010`, as text.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if !(first.bytes().chain(last.bytes())).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if from > to || to - from >= MOST_HOSTS || first.len() > 20 {
            return None;
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
        if numbers.len() > MOST_HOSTS {
            return None;
        }
    }
    Some(numbers)
}

fn multiply(names: &[String], before: &str, numbers: &[String]) -> Option<Vec<String>> {
    (names.len().saturating_mul(numbers.len()) <= MOST_HOSTS).then(|| {
        names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}")))
            .collect()
    })
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
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", "a,,b", "a[", "a]", "a[1", "a[2-1]", "a[x]", "a[]", "a[[1]]", "a b", "a[0-9999999]"] {
            assert_eq!(expand(bad), None, "{bad}");
        }
        assert_eq!(expand("a[0-999][0-999]"), None);
    }

    proptest! {
        #[test]
        fn never_panics_and_never_grows_without_bound(text in "[a-z0-9,\\[\\]-]{0,40}") {
            prop_assert!(expand(&text).is_none_or(|hosts| hosts.len() <= MOST_HOSTS));
        }
    }
}
