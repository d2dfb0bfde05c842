//! Prometheus text, as far as Orbax's and Grain's series need it.
//!
//! Lines of others and lines that make no sense are passed over: a page of many libraries must not fail as a whole.
//! Must never keep more than [`MOST_SERIES`].

use std::collections::BTreeMap;

use model::{
    sample::Labels,
    untrusted::{LABEL, clean},
};

use crate::sources::window::Total;

/// The most series of one page.
const MOST_SERIES: usize = 256;
/// The most buckets of one histogram.
const MOST_BUCKETS: usize = 256;
const LONGEST_NAME: usize = 128;

/// A metric of the page.
#[derive(Debug, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) series: Vec<(Labels, Measure)>,
}

/// What a series says.
#[derive(Debug, PartialEq)]
pub(super) enum Measure {
    Gauge(f64),
    Counter(f64),
    /// A histogram, or (without buckets) a summary.
    Total(Total),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
    Summary,
}

/// A histogram or summary under way.
#[derive(Default)]
struct Parts {
    /// Upper bound and the count up to it.
    buckets: Vec<(f64, f64)>,
    sum: f64,
    count: f64,
}

/// The families of Orbax and Grain, in order of name.
pub(super) fn parse(page: &str) -> Vec<Family> {
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    let mut plain: BTreeMap<(String, Labels), Measure> = BTreeMap::new();
    let mut parts: BTreeMap<(String, Labels), Parts> = BTreeMap::new();
    for line in page.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            if let Some((name, kind)) = declared.trim().split_once(' ')
                && ours(name)
                && let Some(kind) = kind_of(kind.trim())
            {
                kinds.insert(name, kind);
            }
        } else if ours(line)
            && let Some(sample) = Line::parse(line)
            && plain.len() + parts.len() < MOST_SERIES
        {
            sample.sort_in(&kinds, &mut plain, &mut parts);
        }
    }
    let totals = parts.into_iter().filter_map(|(key, parts)| Some((key, Measure::Total(parts.total()?))));
    let mut families: BTreeMap<String, Vec<(Labels, Measure)>> = BTreeMap::new();
    for ((name, labels), measure) in plain.into_iter().chain(totals) {
        families.entry(name).or_default().push((labels, measure));
    }
    families.into_iter().map(|(name, series)| Family { name, series }).collect()
}

fn ours(text: &str) -> bool {
    text.starts_with("jax_") || text.starts_with("grain_")
}

fn kind_of(word: &str) -> Option<Kind> {
    match word {
        "gauge" | "untyped" | "unknown" => Some(Kind::Gauge),
        "counter" => Some(Kind::Counter),
        "histogram" => Some(Kind::Histogram),
        "summary" => Some(Kind::Summary),
        _ => None,
    }
}

/// One sample line.
struct Line<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let value = number(rest.split_ascii_whitespace().next()?)?;
        (name.len() <= LONGEST_NAME).then_some(Self { name, labels, value })
    }

    /// Puts the sample where its family's kind wants it.
    fn sort_in(
        mut self,
        kinds: &BTreeMap<&str, Kind>,
        plain: &mut BTreeMap<(String, Labels), Measure>,
        parts: &mut BTreeMap<(String, Labels), Parts>,
    ) {
        let of = |kind: Kind, ending: &str| {
            let family = self.name.strip_suffix(ending)?;
            (kinds.get(family) == Some(&kind)).then_some(family)
        };
        let either = |ending: &str| of(Kind::Histogram, ending).or_else(|| of(Kind::Summary, ending));
        if let Some(family) = of(Kind::Histogram, "_bucket") {
            let family = family.to_owned();
            let Some(le) = self.take("le").and_then(|le| number(&le)) else { return };
            let known = parts.entry((family, self.rest())).or_default();
            if known.buckets.len() < MOST_BUCKETS {
                known.buckets.push((le, self.value));
            }
        } else if let Some(family) = either("_sum") {
            parts.entry((family.to_owned(), self.rest())).or_default().sum = self.value;
        } else if let Some(family) = either("_count") {
            parts.entry((family.to_owned(), self.rest())).or_default().count = self.value;
        } else if self.name.ends_with("_created") || kinds.get(self.name) == Some(&Kind::Summary) {
            // When it was made; quantiles since the start.
        } else if let Some(family) = counter(kinds, self.name) {
            plain.insert((family.to_owned(), self.rest()), Measure::Counter(self.value));
        } else if self.value.is_finite() {
            plain.insert((self.name.to_owned(), self.rest()), Measure::Gauge(self.value));
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let place = self.labels.iter().position(|(known, _)| *known == name)?;
        Some(self.labels.remove(place).1)
    }

    /// One label is kept as it is, several as one.
    fn rest(&self) -> Labels {
        let extra = match self.labels.as_slice() {
            [] => None,
            [(name, value)] => Some(((*name).to_owned().into(), clean(value, LABEL))),
            several => {
                let pairs: Vec<_> = several.iter().map(|(name, value)| format!("{name}={value}")).collect();
                Some(("labels".into(), clean(&pairs.join(","), LABEL)))
            }
        };
        Labels { extra, ..Labels::default() }
    }
}

/// The family of a counter's sample, which may lack the ending or carry it in its own name.
fn counter<'a>(kinds: &BTreeMap<&str, Kind>, name: &'a str) -> Option<&'a str> {
    let stem = name.strip_suffix("_total").unwrap_or(name);
    let declared = |name: &str| kinds.get(name) == Some(&Kind::Counter);
    (declared(stem) || declared(name)).then_some(stem)
}

/// The labels behind a brace, and what stands behind the closing one.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once('=')?;
        let (value, behind) = quoted_value(quoted.trim_start().strip_prefix('"')?)?;
        if labels.len() < 16 && name.len() <= LABEL {
            labels.push((name.trim(), value));
        }
        rest = behind;
    }
}

fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((place, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[place + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok(),
    }
}

impl Parts {
    /// The counts bucket by bucket; `None` when they make no sense.
    fn total(mut self) -> Option<Total> {
        self.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.buckets.dedup_by(|a, b| a.0 == b.0);
        self.buckets.retain(|(bound, _)| bound.is_finite());
        let mut counts = Vec::with_capacity(self.buckets.len() + 1);
        let mut below = 0.0;
        for up_to in self.buckets.iter().map(|bucket| bucket.1).chain([self.count]) {
            counts.push(whole(up_to - below)?);
            below = up_to;
        }
        let bounds = self.buckets.into_iter().map(|bucket| bucket.0).collect();
        self.sum.is_finite().then_some(Total { bounds, counts, sum: self.sum })
    }
}

fn whole(count: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
    (0.0..1e15).contains(&count).then_some(count as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_read_with_their_escapes() {
        let line = r#"grain_x{a="1\"2",b="c\\d"} 7 1700000000"#;
        let families = parse(line);
        let extra = families[0].series[0].0.extra.clone().unwrap();
        assert_eq!((extra.0.as_ref(), extra.1.as_str()), ("labels", r#"a=1"2,b=c\d"#));
        assert_eq!(families[0].series[0].1, Measure::Gauge(7.0));
    }

    #[test]
    fn nonsense_hides_nothing() {
        let page =
            "grain_a 1\ngrain_b{x=\"1\n} 2\ngrain_c\ngrain_d zwei\njax_e NaN\nother 1\n\u{0}\njax_f 3\n";
        let names: Vec<_> = parse(page).into_iter().map(|family| family.name).collect();
        assert_eq!(names, ["grain_a", "jax_f"]);
    }

    #[test]
    fn series_are_bounded() {
        let page: String = (0..1000).map(|n| format!("grain_x{{n=\"{n}\"}} 1\n")).collect();
        assert_eq!(parse(&page)[0].series.len(), MOST_SERIES);
    }

    proptest! {
        #[test]
        fn any_text_is_read(page in "(# TYPE )?(grain_|jax_)[a-z_{}=\",\\\\ 0-9+.\n]{0,200}") {
            let _ = parse(&page);
        }
    }
}
