//! Names that become file names: checked once, then safe to join to a path.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// The longest session or host name.
const MAX_NAME: usize = 128;
/// The longest host in a part's name: there is room for `_65535-4294967295`.
const LONGEST_HOST: usize = MAX_NAME - 17;

/// Why a text cannot be a session's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No character at all.
    #[error("the name is empty")]
    Empty,
    /// Longer than a name may be.
    #[error("the name has {0} characters, at most {MAX_NAME} are allowed")]
    TooLong(usize),
    /// A character outside the allowed set.
    #[error("the name contains {0:?}; allowed are letters, digits, '.', '_' and '-'")]
    Character(char),
    /// Hidden files are not sessions.
    #[error("the name begins with a dot")]
    LeadingDot,
    /// Could be mistaken for a step up.
    #[error("the name contains '..'")]
    DoubleDot,
}

fn allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn check(text: &str) -> Result<(), NameError> {
    let length = text.chars().count();
    if length == 0 {
        return Err(NameError::Empty);
    }
    if length > MAX_NAME {
        return Err(NameError::TooLong(length));
    }
    if let Some(bad) = text.chars().find(|&c| !allowed(c)) {
        return Err(NameError::Character(bad));
    }
    if text.starts_with('.') {
        return Err(NameError::LeadingDot);
    }
    if text.contains("..") {
        return Err(NameError::DoubleDot);
    }
    Ok(())
}

/// Any text as a valid name: what is not allowed becomes `_`, what is too long is cut.
fn sanitise(text: &str, longest: usize) -> String {
    let mut name: String = text.chars().take(longest).map(|c| if allowed(c) { c } else { '_' }).collect();
    if name.starts_with('.') {
        name.replace_range(0..1, "_");
    }
    // After this no two dots stand together: each pair loses its second one.
    while let Some(at) = name.find("..") {
        name.replace_range(at + 1..at + 2, "_");
    }
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Whether a part's name ends so after its host: `_<port>`, `-<count>`, both or neither.
fn is_ending(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (port, count) = text.split_once('-').map_or((text, None), |(port, count)| (port, Some(count)));
    let has_port = port.is_empty() || port.strip_prefix('_').is_some_and(is_number);
    has_port && text.len() <= MAX_NAME - LONGEST_HOST && count.is_none_or(is_number)
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                check(text)?;
                Ok(Self(text.to_owned()))
            }
        }
    };
}

name! {
    /// A session's name, which is its folder's: 1 to 128 of `[A-Za-z0-9._-]`, no dot first, no two dots together.
    SessionName
}

name! {
    /// A host's name, by the same rules as a session's.
    HostName
}

name! {
    /// A part's name: its file is `<name>.xplane.pb`.
    PartName
}

impl SessionName {
    /// The default name: the time to the second, in UTC. It has the form of XProf's default name, which is a local time.
    pub fn of_time(now: jiff::Timestamp) -> Self {
        Self(now.strftime("%Y_%m_%d_%H_%M_%S").to_string())
    }
}

impl HostName {
    /// A valid name made of any text, such as `[::1]` or what `gethostname` said.
    pub fn sanitised(text: &str) -> Self {
        Self(sanitise(text, MAX_NAME))
    }
}

impl PartName {
    /// The names of one host's parts, in the order of `ports`.
    ///
    /// One process: `<host>`. Several: `<host>_<port>`, as XProf's own client has it. Where that is not
    /// unique (two processes behind one port, or none) a count is added: `<host>_<port>-2`.
    pub fn of_host(host: &HostName, ports: &[Option<u16>]) -> Vec<Self> {
        let host = sanitise(host.as_str(), LONGEST_HOST);
        let mut taken = BTreeSet::new();
        ports
            .iter()
            .map(|port| {
                let base = match port {
                    Some(port) if ports.len() > 1 => format!("{host}_{port}"),
                    _ => host.clone(),
                };
                let unique = (2u32..)
                    .map(|n| format!("{base}-{n}"))
                    .find(|name| !taken.contains(name))
                    .filter(|_| taken.contains(&base))
                    .unwrap_or(base);
                taken.insert(unique.clone());
                Self(unique)
            })
            .collect()
    }

    /// The same part of a host that is called `to`; none if it is not named after `from` as [`of_host`](Self::of_host)
    /// names parts.
    pub fn renamed(&self, from: &HostName, to: &HostName) -> Option<Self> {
        let stem = |host: &HostName| sanitise(host.as_str(), LONGEST_HOST);
        let ending = self.0.strip_prefix(&stem(from)).filter(|ending| is_ending(ending))?;
        Some(Self(stem(to) + ending))
    }

    /// The name of the part's file.
    pub fn file_name(&self) -> String {
        format!("{}{}", self.0, super::PART_SUFFIX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bad_session_names_are_refused_with_the_reason() {
        let error = |text: &str| text.parse::<SessionName>().unwrap_err();
        assert_eq!(error(""), NameError::Empty);
        assert_eq!(error(&"x".repeat(300)), NameError::TooLong(300));
        assert_eq!(error("a/b"), NameError::Character('/'));
        assert_eq!(error("a\nb"), NameError::Character('\n'));
        assert_eq!(error(".."), NameError::LeadingDot);
        assert_eq!(error("a..b"), NameError::DoubleDot);
        assert_eq!("2026_01_02-x.y".parse::<SessionName>().unwrap().as_str(), "2026_01_02-x.y");
        assert!("x".repeat(128).parse::<SessionName>().is_ok());
    }

    #[test]
    fn the_default_name_is_the_time_in_utc() {
        let now = "2026-03-04T05:06:07.89+02:00".parse().unwrap();
        assert_eq!(SessionName::of_time(now).as_str(), "2026_03_04_03_06_07");
        assert!(check(SessionName::of_time(jiff::Timestamp::MIN).as_str()).is_ok());
        assert!(check(SessionName::of_time(jiff::Timestamp::MAX).as_str()).is_ok());
    }

    #[test]
    fn parts_of_a_host_have_names_of_their_own() {
        let names = |host: &str, ports: &[Option<u16>]| {
            PartName::of_host(&HostName::sanitised(host), ports)
                .iter()
                .map(PartName::file_name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("w-0", &[Some(9012)]), ["w-0.xplane.pb"]);
        assert_eq!(names("w-0", &[Some(1), Some(2)]), ["w-0_1.xplane.pb", "w-0_2.xplane.pb"]);
        assert_eq!(
            names("w-0", &[Some(1), Some(1), None, None]),
            ["w-0_1.xplane.pb", "w-0_1-2.xplane.pb", "w-0.xplane.pb", "w-0-2.xplane.pb"]
        );
        assert_eq!(names("[::1]:9012", &[None]), ["___1__9012.xplane.pb"]);
    }

    #[test]
    fn a_part_is_renamed_with_its_host() {
        let (from, to): (HostName, HostName) = ("w".parse().unwrap(), "b-1".parse().unwrap());
        let renamed = |name: &str| {
            let name: PartName = name.parse().unwrap();
            name.renamed(&from, &to).map(|name| name.as_str().to_owned())
        };
        for (name, wanted) in [("w", "b-1"), ("w_9012", "b-1_9012"), ("w-2", "b-1-2"), ("w_1-2", "b-1_1-2")] {
            assert_eq!(renamed(name).as_deref(), Some(wanted));
        }
        for other in ["v", "ww", "w_", "w-", "w_x", "w.1", "w-1-2", "w_1_2", "w_1-", "w_12345678901234567"] {
            assert_eq!(renamed(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn parts_of_any_host_can_be_renamed(
            from in "[a-z0-9._-]{1,200}",
            to in "[a-z0-9._-]{1,200}",
            ports in proptest::collection::vec(proptest::option::of(0u16..3), 1..9),
        ) {
            let (from, to) = (HostName::sanitised(&from), HostName::sanitised(&to));
            let renamed = PartName::of_host(&from, &ports).iter().map(|name| name.renamed(&from, &to)).collect();
            prop_assert_eq!(Some(PartName::of_host(&to, &ports)), renamed);
        }

        #[test]
        fn any_text_becomes_valid_and_unique(
            text in any::<String>(),
            ports in proptest::collection::vec(proptest::option::of(0u16..3), 1..9),
        ) {
            let host = HostName::sanitised(&text);
            prop_assert!(check(host.as_str()).is_ok());
            let names = PartName::of_host(&host, &ports);
            for name in &names {
                prop_assert!(check(name.as_str()).is_ok(), "{name}");
            }
            prop_assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), ports.len());
        }
    }
}
