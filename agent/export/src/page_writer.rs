//! The two text formats of the Prometheus world: 0.0.4, and OpenMetrics 1.0.

use std::fmt::{Display, Write};

use model::metric::MetricKind;

use super::families::LabelText;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl TextFormat {
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

/// A page under way, in one buffer.
pub(super) struct PageWriter {
    text: String,
    format: TextFormat,
    /// The labels of the series under way, without braces.
    labels: String,
}

// Writing to a String cannot fail, so the results of `write!` are dropped below.
impl PageWriter {
    pub(super) fn new(format: TextFormat, capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), format, labels: String::new() }
    }

    /// Begins a family; its series must follow before the next.
    pub(super) fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        let name = match (self.format, kind) {
            // OpenMetrics names the family without the suffix of its samples.
            (TextFormat::OpenMetrics, MetricKind::Counter) => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let kind = match kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
            MetricKind::Histogram => "histogram",
        };
        let _ = write!(self.text, "# HELP {name} ");
        escape(&mut self.text, help, self.format == TextFormat::OpenMetrics);
        let _ = write!(self.text, "\n# TYPE {name} {kind}\n");
    }

    /// Begins a series; the labels hold for all lines until the next.
    pub(super) fn series(&mut self) {
        self.labels.clear();
    }

    /// Adds a label.
    pub(super) fn label(&mut self, name: &str, value: LabelText<'_>) {
        if !self.labels.is_empty() {
            self.labels.push(',');
        }
        let _ = write!(self.labels, "{name}=\"");
        match value {
            LabelText::Text(text) => escape(&mut self.labels, text, true),
            LabelText::Number(number) => {
                let _ = write!(self.labels, "{number}");
            }
        }
        self.labels.push('"');
    }

    /// One line of the series.
    pub(super) fn line(&mut self, name: &str, suffix: &str, value: impl Display) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        if !self.labels.is_empty() {
            let _ = write!(self.text, "{{{}}}", self.labels);
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// One bucket of the series.
    pub(super) fn bucket(&mut self, name: &str, upper: f64, count: u64) {
        let comma = if self.labels.is_empty() { "" } else { "," };
        let _ =
            writeln!(self.text, "{name}_bucket{{{}{comma}le=\"{}\"}} {count}", self.labels, Number(upper));
    }

    pub(super) fn finish(mut self) -> String {
        if self.format == TextFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// A number as both formats write it.
pub(super) struct Number(pub(super) f64);

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number if number.is_nan() => f.write_str("NaN"),
            number => write!(f, "{number:?}"),
        }
    }
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_format_is_taken() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                          q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(TextFormat::negotiate(prometheus), TextFormat::OpenMetrics);
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
            assert_eq!(TextFormat::negotiate(text), TextFormat::Text, "{text}");
        }
        assert_eq!(
            TextFormat::negotiate("application/openmetrics-text; version=\"1.0.0\""),
            TextFormat::OpenMetrics
        );
    }

    fn page(format: TextFormat) -> String {
        let mut page = PageWriter::new(format, 0);
        page.family("a_total", MetricKind::Counter, "One \\ line\nof \"help\".");
        page.series();
        page.label("x", LabelText::Text("q\"\\\n"));
        page.label("chip", LabelText::Number(3));
        page.line("a_total", "", Number(5.0));
        page.family("b", MetricKind::Gauge, "B.");
        page.series();
        for number in [f64::INFINITY, f64::NAN, 1e300] {
            page.line("b", "", Number(number));
        }
        page.finish()
    }

    #[test]
    fn both_formats_escape_and_differ_where_they_must() {
        let samples = "b +Inf\nb NaN\nb 1e300\n";
        assert_eq!(
            page(TextFormat::Text),
            format!(
                "# HELP a_total One \\\\ line\\nof \"help\".\n# TYPE a_total counter\n\
                 a_total{{x=\"q\\\"\\\\\\n\",chip=\"3\"}} 5.0\n# HELP b B.\n# TYPE b gauge\n{samples}"
            )
        );
        assert_eq!(
            page(TextFormat::OpenMetrics),
            format!(
                "# HELP a One \\\\ line\\nof \\\"help\\\".\n# TYPE a counter\n\
                 a_total{{x=\"q\\\"\\\\\\n\",chip=\"3\"}} 5.0\n# HELP b B.\n# TYPE b gauge\n{samples}# EOF\n"
            )
        );
    }
}
