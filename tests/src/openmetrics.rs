//! A strict reader of OpenMetrics text, after the rules of <https://prometheus.io/docs/specs/om/open_metrics_spec/>: a page
//! that it takes is one that any scraper takes.
//!
//! Of what the format allows, Signalbox writes neither timestamps, exemplars, summaries nor state sets; those are
//! refused here too.

use std::collections::{BTreeMap, BTreeSet};

/// The content type that a page must have.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The series of a page, names with their labels as they are written.
pub type Series = BTreeMap<String, f64>;

/// Names and values.
type Labels = Vec<(String, String)>;

#[derive(Debug, Default)]
struct Histogram {
    /// Bound and count.
    buckets: Vec<(f64, f64)>,
    count: Option<f64>,
}

#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: Option<String>,
    help: bool,
    unit: bool,
    /// Suffix, labels, value.
    samples: Vec<(String, Labels, f64)>,
}

/// Reads a page.
///
/// # Errors
/// Names the line and the rule it breaks.
pub fn read(page: &str) -> Result<Series, String> {
    let body = page.strip_suffix("# EOF\n").ok_or("the page does not end with `# EOF` and a newline")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("`# EOF` does not begin its line".into());
    }
    let (mut family, mut seen, mut series) = (Family::default(), BTreeSet::new(), Series::new());
    for line in body.lines() {
        let step = match line.strip_prefix("# ") {
            Some(described) => describe(described, &mut family, &mut seen),
            None => sample(line, &mut family, &mut series),
        };
        step.map_err(|rule| format!("{rule}: `{line}`"))?;
    }
    finish(&family)?;
    if let Some(name) = seen.iter().find_map(|name| {
        let base = ["_total", "_bucket", "_sum", "_count", "_created", "_info"]
            .iter()
            .find_map(|end| name.strip_suffix(end))?;
        seen.contains(base).then_some(name)
    }) {
        return Err(format!("the family {name} has the name of a sample of another"));
    }
    Ok(series)
}

fn describe(text: &str, family: &mut Family, seen: &mut BTreeSet<String>) -> Result<(), String> {
    let (what, rest) = text.split_once(' ').ok_or("a comment is TYPE, HELP or UNIT")?;
    let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
    if !is_name(name) {
        return Err("no name of a family".into());
    }
    if family.name != name {
        finish(family)?;
        if !seen.insert(name.to_owned()) {
            return Err("a family is repeated, or its lines are not adjacent".into());
        }
        *family = Family { name: name.to_owned(), ..Family::default() };
    }
    if !family.samples.is_empty() {
        return Err("described after its samples".into());
    }
    let twice = match what {
        "TYPE" => {
            if !["counter", "gauge", "histogram", "info", "unknown"].contains(&value) {
                return Err("no type that we write".into());
            }
            if value == "counter" && name.ends_with("_total") {
                return Err("a counter's family is named without _total".into());
            }
            family.kind.replace(value.to_owned()).is_some()
        }
        "HELP" => std::mem::replace(&mut family.help, true),
        "UNIT" => {
            if value.is_empty() || !name.ends_with(&format!("_{value}")) {
                return Err("a family's name ends with its unit".into());
            }
            std::mem::replace(&mut family.unit, true)
        }
        _ => return Err("a comment is TYPE, HELP or UNIT".into()),
    };
    if twice { Err("described twice".into()) } else { Ok(()) }
}

fn sample(line: &str, family: &mut Family, series: &mut Series) -> Result<(), String> {
    let end = line.find(['{', ' ']).ok_or("no sample")?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.strip_prefix(' ').ok_or("expected one space before the value")?;
    // In words, capitals do not matter.
    let number: f64 = match value.to_ascii_lowercase().as_str() {
        "inf" | "+inf" => f64::INFINITY,
        "-inf" => f64::NEG_INFINITY,
        "nan" => f64::NAN,
        _ if value.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            value.parse().map_err(|_| "no number")?
        }
        _ => return Err("no number".into()),
    };
    let kind = family.kind.as_deref().ok_or("a sample of a family without a type")?;
    let suffix = name.strip_prefix(&family.name).ok_or("not of the family that is described above it")?;
    let allowed: &[&str] = match kind {
        "counter" => &["_total", "_created"],
        "histogram" => &["_bucket", "_sum", "_count", "_created"],
        "info" => &["_info"],
        _ => &[""],
    };
    if !allowed.contains(&suffix) {
        return Err(format!("no name for a sample of a {kind}"));
    }
    if kind == "counter" && !(number >= 0.0 && number.is_finite()) {
        return Err("a counter is a number from 0 on".into());
    }
    let whole = &line[..line.len() - value.len() - 1];
    if series.insert(whole.to_owned(), number).is_some() {
        return Err("is repeated".into());
    }
    family.samples.push((suffix.to_owned(), labels, number));
    Ok(())
}

/// Parses the text after the opening brace; returns the labels and the text after the closing
/// brace.
fn labels(mut rest: &str) -> Result<(Labels, &str), String> {
    let mut labels = Labels::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        if !labels.is_empty() {
            rest = rest.strip_prefix(',').ok_or("expected a comma between labels")?;
        }
        let (name, behind) = rest.split_once("=\"").ok_or("no label")?;
        if !is_name(name) || name.contains(':') || labels.iter().any(|(other, _)| other == name) {
            return Err("invalid or repeated label name".into());
        }
        let mut value = String::new();
        let mut letters = behind.char_indices();
        let end = loop {
            match letters.next().ok_or("a label without an end")? {
                (at, '"') => break at,
                (_, '\\') => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, letter @ ('\\' | '"'))) => value.push(letter),
                    _ => return Err("no escape".into()),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &behind[end + 1..];
    }
}

/// Rules that apply to a family as a whole.
fn finish(family: &Family) -> Result<(), String> {
    if family.kind.as_deref() != Some("histogram") {
        return Ok(());
    }
    let mut histograms: BTreeMap<Labels, Histogram> = BTreeMap::new();
    for (suffix, labels, value) in &family.samples {
        let others = labels.iter().filter(|(name, _)| name != "le").cloned().collect();
        let histogram = histograms.entry(others).or_default();
        match suffix.as_str() {
            "_bucket" => {
                let le = labels.iter().find(|(name, _)| name == "le").map(|(_, le)| le.as_str());
                let le: f64 = match le {
                    Some("+Inf") => f64::INFINITY,
                    Some(le) => le.parse().map_err(|_| format!("{}: no bound {le}", family.name))?,
                    None => return Err(format!("{}: a bucket without a bound", family.name)),
                };
                histogram.buckets.push((le, *value));
            }
            "_count" => histogram.count = Some(*value),
            _ => {}
        }
    }
    for (labels, Histogram { buckets, count }) in histograms {
        let rising = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let last = buckets.last().filter(|(le, _)| le.is_infinite()).map(|(_, value)| *value);
        if !rising || last.is_none() || last != count {
            return Err(format!(
                "{} {labels:?}: buckets {buckets:?} are not a histogram of {count:?}",
                family.name
            ));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a_b What.\n# TYPE a_b counter\na_b_total{x=\"1 } \\\" ,\",y=\"\"} 3\na_b_total 4.5\n\
        # TYPE c_seconds histogram\n# UNIT c_seconds seconds\nc_seconds_bucket{le=\"1.0\"} 1\n\
        c_seconds_bucket{le=\"+Inf\"} 2\nc_seconds_sum 9\nc_seconds_count 2\n# TYPE d gauge\nd -1\n# EOF\n";

    #[test]
    fn a_valid_page_is_accepted() {
        let series = read(PAGE).unwrap();
        assert_eq!((series.len(), series["a_b_total"], series["d"]), (7, 4.5, -1.0));
        assert_eq!(read(&PAGE.replace("d -1", "d inf")).unwrap()["d"], f64::INFINITY);
    }

    #[test]
    fn each_rule_rejects_a_page_that_breaks_it() {
        for (from, to, why) in [
            ("# EOF\n", "", "end with"),
            ("# EOF\n", "# EOF", "end with"),
            ("d -1\n", "d -1\n# EOF\n", "TYPE, HELP or UNIT"),
            ("d -1\n", "d -1\n\n", "no sample"),
            ("a_b_total 4.5", "a_b 4.5", "no name for a sample"),
            ("# TYPE a_b counter", "# TYPE a_b_total counter", "without _total"),
            ("a_b_total 4.5", "a_b_total -4.5", "a counter is"),
            ("a_b_total 4.5", "a_b_total inf", "a counter is"),
            ("a_b_total 4.5", "a_b_total many", "no number"),
            ("a_b_total 4.5", "a_b_total  4.5", "no number"),
            ("a_b_total 4.5", "a_b_total 4.5 17", "no number"),
            ("d -1\n", "d -1\nd -1\n", "is repeated"),
            ("d -1\n", "d -1\n# HELP d Late.\n", "after its samples"),
            ("d -1\n", "d -1\n# TYPE a_b counter\n", "is repeated"),
            ("# TYPE d gauge\n", "", "not of the family"),
            ("# TYPE d gauge\n", "# TYPE d gauge\n# TYPE d gauge\n", "described twice"),
            ("# TYPE d gauge\nd", "# TYPE c_seconds_sum gauge\n#", "TYPE, HELP or UNIT"),
            ("# TYPE d gauge\nd", "# TYPE a_b_created gauge\na_b_created", "name of a sample"),
            ("UNIT c_seconds seconds", "UNIT c_seconds bytes", "ends with its unit"),
            ("c_seconds_count 2", "c_seconds_count 3", "are not a histogram"),
            ("c_seconds_bucket{le=\"+Inf\"} 2\n", "", "are not a histogram"),
            (",y=\"\"", ",x=\"\"", "repeated label name"),
            ("\\\" ,", "\\q ,", "no escape"),
        ] {
            assert!(PAGE.contains(from), "{from}");
            let broken = PAGE.replacen(from, to, 1);
            let error = read(&broken).expect_err(why);
            assert!(error.contains(why), "{error} for {to:?}");
        }
    }
}
