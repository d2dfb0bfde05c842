//! The two text formats of the Prometheus world: 0.0.4, and OpenMetrics 1.0.

use std::fmt::Write;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header prefers; the old one where it has no preference.
    pub fn negotiate(accept: &str) -> Self {
        let (mut open, mut text) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0, "1.0.0");
            for parameter in parts {
                match parameter.split_once('=') {
                    Some(("q", value)) => quality = value.parse().unwrap_or(0.0),
                    Some(("version", value)) => version = value.trim_matches('"'),
                    _ => {}
                }
            }
            match media {
                "application/openmetrics-text" if version == "1.0.0" => open = f64::max(open, quality),
                "text/plain" | "text/*" | "*/*" => text = f64::max(text, quality),
                _ => {}
            }
        }
        if open > 0.0 && open >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The `Content-Type` of a page.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Gauge,
    /// Its name ends in `_total`.
    Counter,
    /// Quantiles of a window; no sum and no count, which would have to rise for ever.
    Summary,
}

impl Type {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Summary => "summary",
        }
    }
}

/// The value of a label.
#[derive(Debug, Clone, Copy)]
pub(super) enum Label<'a> {
    Text(&'a str),
    Number(u32),
}

/// A page under way, in one buffer.
pub(super) struct Page {
    text: String,
    format: Format,
}

// Writing to a String cannot fail, so the results of `write!` are dropped below.
impl Page {
    pub(super) fn new(format: Format, capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), format }
    }

    /// Begins a family; its samples must follow before the next.
    pub(super) fn family(&mut self, name: &str, kind: Type, help: &str) {
        let name = match (self.format, kind) {
            // OpenMetrics names the family without the suffix of its samples.
            (Format::OpenMetrics, Type::Counter) => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let kind = kind.as_str();
        let _ = write!(self.text, "# HELP {name} ");
        self.escaped(help, self.format == Format::OpenMetrics);
        let _ = write!(self.text, "\n# TYPE {name} {kind}\n");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, Label<'_>)], value: f64) {
        self.text.push_str(name);
        self.labels(labels);
        let _ = match value {
            f64::INFINITY => writeln!(self.text, " +Inf"),
            f64::NEG_INFINITY => writeln!(self.text, " -Inf"),
            value if value.is_nan() => writeln!(self.text, " NaN"),
            value => writeln!(self.text, " {value:?}"),
        };
    }

    fn labels(&mut self, labels: &[(&str, Label<'_>)]) {
        for (nth, (name, value)) in labels.iter().enumerate() {
            self.text.push(if nth == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            match value {
                Label::Text(text) => self.escaped(text, true),
                Label::Number(number) => {
                    let _ = write!(self.text, "{number}");
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
    }

    fn escaped(&mut self, text: &str, quotes: bool) {
        for c in text.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '"' if quotes => self.text.push_str("\\\""),
                c => self.text.push(c),
            }
        }
    }

    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Whether `name` can name a series or (without colons, which this refuses too) a label.
pub(super) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_format_is_taken() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                          q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::negotiate(prometheus), Format::OpenMetrics);
        for text in [
            "",
            "*/*",
            "text/plain;version=0.0.4",
            "text/html,*/*;q=0.8",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0.2, text/plain;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            "garbage;;;,,,=",
        ] {
            assert_eq!(Format::negotiate(text), Format::Text, "{text}");
        }
        assert_eq!(Format::negotiate("application/openmetrics-text; version=\"1.0.0\""), Format::OpenMetrics);
    }

    fn page(format: Format) -> String {
        let mut page = Page::new(format, 0);
        page.family("a_total", Type::Counter, "One \\ line\nof \"help\".");
        page.sample("a_total", &[("x", Label::Text("q\"\\\n")), ("chip", Label::Number(3))], 5.0);
        page.family("b", Type::Gauge, "B.");
        page.sample("b", &[], f64::INFINITY);
        page.sample("b", &[], f64::NAN);
        page.sample("b", &[], 1e300);
        page.finish()
    }

    #[test]
    fn both_formats_escape_and_differ_where_they_must() {
        let samples = "b +Inf\nb NaN\nb 1e300\n";
        assert_eq!(
            page(Format::Text),
            format!(
                "# HELP a_total One \\\\ line\\nof \"help\".\n# TYPE a_total counter\n\
                 a_total{{x=\"q\\\"\\\\\\n\",chip=\"3\"}} 5.0\n# HELP b B.\n# TYPE b gauge\n{samples}"
            )
        );
        assert_eq!(
            page(Format::OpenMetrics),
            format!(
                "# HELP a One \\\\ line\\nof \\\"help\\\".\n# TYPE a counter\n\
                 a_total{{x=\"q\\\"\\\\\\n\",chip=\"3\"}} 5.0\n# HELP b B.\n# TYPE b gauge\n{samples}# EOF\n"
            )
        );
    }

    #[test]
    fn names_are_checked() {
        assert!(is_name("tpu_x1") && is_name("_x"));
        assert!(!is_name("") && !is_name("1x") && !is_name("a-b") && !is_name("a b") && !is_name("ä"));
    }
}
