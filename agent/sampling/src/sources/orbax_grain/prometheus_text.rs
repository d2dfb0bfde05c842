//! Prometheus text, as far as Orbax's and Grain's series need it.
//!
//! Lines of others and lines that make no sense are passed over: a page of many libraries must not fail as a whole.
//! Must never keep more than [`MOST_SERIES`].

use std::collections::BTreeMap;

use model::{
    distribution::Histogram,
    label::{Labels, RESERVED, SmolStr},
    metric::MetricKind,
    time::Timestamp,
    untrusted::{LABEL, clean, clean_label},
};

/// The most series of one page.
const MOST_SERIES: usize = 256;
/// The most buckets of one histogram.
const MOST_BUCKETS: usize = 256;
const LONGEST_NAME: usize = 128;

/// A metric of the page.
#[derive(Debug, PartialEq)]
pub(super) struct MetricFamily {
    pub(super) name: String,
    pub(super) series: Vec<(Labels, SeriesValue)>,
}

/// The value of a series.
#[derive(Debug, PartialEq)]
pub(super) enum SeriesValue {
    Gauge(f64),
    Counter(f64),
    /// A histogram, or a summary as one without buckets.
    Histogram(Histogram),
}

impl SeriesValue {
    pub(super) fn kind(&self) -> MetricKind {
        match self {
            Self::Gauge(_) => MetricKind::Gauge,
            Self::Counter(_) => MetricKind::Counter,
            Self::Histogram(_) => MetricKind::Histogram,
        }
    }
}

/// The content of a TYPE line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeclaredType {
    Gauge,
    Counter,
    Histogram,
    Summary,
}

/// The lines of one histogram or summary.
#[derive(Default)]
struct HistogramLines {
    /// Upper bound and the count up to it.
    buckets: Vec<(f64, f64)>,
    sum: f64,
    count: f64,
}

/// The families of Orbax and Grain of a page that was read `at` this time, in order of name.
pub(super) fn parse(page: &str, at: Timestamp) -> Vec<MetricFamily> {
    let mut types: BTreeMap<&str, DeclaredType> = BTreeMap::new();
    let mut plain: BTreeMap<(String, Labels), SeriesValue> = BTreeMap::new();
    let mut parts: BTreeMap<(String, Labels), HistogramLines> = BTreeMap::new();
    for line in page.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            if let Some((name, kind)) = declared.trim().split_once(' ')
                && is_known_library(name)
                && let Some(kind) = type_of(kind.trim())
            {
                types.insert(name, kind);
            }
        } else if is_known_library(line)
            && let Some(sample) = Line::parse(line)
            && plain.len() + parts.len() < MOST_SERIES
        {
            sample.file_into(&types, &mut plain, &mut parts);
        }
    }
    let histograms = parts
        .into_iter()
        .filter_map(|(key, parts)| Some((key, SeriesValue::Histogram(parts.histogram(at)?))));
    let mut families: BTreeMap<String, Vec<(Labels, SeriesValue)>> = BTreeMap::new();
    for ((name, labels), measure) in plain.into_iter().chain(histograms) {
        families.entry(name).or_default().push((labels, measure));
    }
    families.into_iter().map(|(name, series)| MetricFamily { name, series }).collect()
}

fn is_known_library(text: &str) -> bool {
    text.starts_with("jax_") || text.starts_with("grain_")
}

fn type_of(word: &str) -> Option<DeclaredType> {
    match word {
        "gauge" | "untyped" | "unknown" => Some(DeclaredType::Gauge),
        "counter" => Some(DeclaredType::Counter),
        "histogram" => Some(DeclaredType::Histogram),
        "summary" => Some(DeclaredType::Summary),
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

    /// Adds the sample to its family by the family's type.
    fn file_into(
        mut self,
        types: &BTreeMap<&str, DeclaredType>,
        plain: &mut BTreeMap<(String, Labels), SeriesValue>,
        parts: &mut BTreeMap<(String, Labels), HistogramLines>,
    ) {
        let of = |kind: DeclaredType, ending: &str| {
            let family = self.name.strip_suffix(ending)?;
            (types.get(family) == Some(&kind)).then_some(family)
        };
        let either =
            |ending: &str| of(DeclaredType::Histogram, ending).or_else(|| of(DeclaredType::Summary, ending));
        if let Some(family) = of(DeclaredType::Histogram, "_bucket") {
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
        } else if self.name.ends_with("_created") || types.get(self.name) == Some(&DeclaredType::Summary) {
            // When it was made; quantiles since the start.
        } else if let Some(family) = counter(types, self.name) {
            plain.insert((family.to_owned(), self.rest()), SeriesValue::Counter(self.value));
        } else if self.value.is_finite() {
            plain.insert((self.name.to_owned(), self.rest()), SeriesValue::Gauge(self.value));
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let place = self.labels.iter().position(|(known, _)| *known == name)?;
        Some(self.labels.remove(place).1)
    }

    /// One label is kept as it is, several as one.
    fn rest(&self) -> Labels {
        let mut labels = Labels::none();
        match self.labels.as_slice() {
            [] => {}
            [(name, value)] if RESERVED.contains(name) => {
                labels.push(format!("exported_{name}").into(), clean_label(value));
            }
            [(name, value)] => labels.push(SmolStr::new(name), clean_label(value)),
            several => {
                let pairs: Vec<_> = several.iter().map(|(name, value)| format!("{name}={value}")).collect();
                labels.push(SmolStr::new_static("labels"), clean(&pairs.join(","), LABEL));
            }
        }
        labels
    }
}

/// The family of a counter's sample, which may lack the ending or carry it in its own name.
fn counter<'a>(types: &BTreeMap<&str, DeclaredType>, name: &'a str) -> Option<&'a str> {
    let stem = name.strip_suffix("_total").unwrap_or(name);
    let declared = |name: &str| types.get(name) == Some(&DeclaredType::Counter);
    (declared(stem) || declared(name)).then_some(stem)
}

/// The labels after an opening brace, and the text after the closing one.
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

impl HistogramLines {
    /// The counts bucket by bucket; `None` when they make no sense.
    fn histogram(mut self, at: Timestamp) -> Option<Histogram> {
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
        self.sum.is_finite().then_some(Histogram { since: at, bounds, counts, sum: self.sum })
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
        let families = parse(line, Timestamp(0));
        assert_eq!(families[0].series[0].0, Labels::one("labels", r#"a=1"2,b=c\d"#));
        assert_eq!(families[0].series[0].1, SeriesValue::Gauge(7.0));
    }

    #[test]
    fn a_label_cannot_take_the_name_of_ours() {
        let families = parse("grain_x{job=\"theirs\"} 1\n", Timestamp(0));
        let mut wanted = Labels::none();
        wanted.push("exported_job".into(), "theirs");
        assert_eq!(families[0].series[0].0, wanted);
    }

    #[test]
    fn nonsense_hides_nothing() {
        let page =
            "grain_a 1\ngrain_b{x=\"1\n} 2\ngrain_c\ngrain_d zwei\njax_e NaN\nother 1\n\u{0}\njax_f 3\n";
        let names: Vec<_> = parse(page, Timestamp(0)).into_iter().map(|family| family.name).collect();
        assert_eq!(names, ["grain_a", "jax_f"]);
    }

    #[test]
    fn series_are_bounded() {
        let page: String = (0..1000).map(|n| format!("grain_x{{n=\"{n}\"}} 1\n")).collect();
        assert_eq!(parse(&page, Timestamp(0))[0].series.len(), MOST_SERIES);
    }

    proptest! {
        #[test]
        fn any_text_is_read(page in "(# TYPE )?(grain_|jax_)[a-z_{}=\",\\\\ 0-9+.\n]{0,200}") {
            let _ = parse(&page, Timestamp(0));
        }
    }
}
