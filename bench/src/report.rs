//! The results of the measurements, as a table for people and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    compare::{Comparison, Measure, Ratio},
    machine::Facts,
};

/// One figure that is not compared with others.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    /// The measured quantity.
    pub(crate) what: String,
    /// How many times.
    pub(crate) samples: u64,
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
    /// The largest.
    pub(crate) max: f64,
    /// The target for p99, as an upper limit.
    pub(crate) target: Option<f64>,
    /// Of all of them.
    pub(crate) unit: &'static str,
}

/// A group of figures.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Figures {
    /// The title of the figures.
    pub(crate) title: String,
    /// In the order they were measured.
    pub(crate) figures: Vec<Figure>,
    /// Notes for the reader.
    pub(crate) notes: Vec<String>,
}

/// Anything that is neither: printed as Markdown, to be taken into the documentation as it is.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Table {
    /// The title of the table.
    pub(crate) title: String,
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// The same number of cells each.
    pub(crate) rows: Vec<Vec<String>>,
    /// Notes for the reader.
    pub(crate) notes: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.to_owned(), columns, ..Self::default() }
    }

    /// As Markdown: words to the left, figures to the right.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<&str> =
            (0..self.columns.len()).map(|index| if index == 0 { "---" } else { "--:" }).collect();
        let mut text = format!("\n{}\n\n{}|{}|\n", self.title, line(&self.columns), rule.join("|"));
        for row in &self.rows {
            text.push_str(&line(row));
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}.\n");
        }
        text
    }
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// Where it was measured.
    pub(crate) machine: Facts,
    /// Side by side.
    pub(crate) comparisons: Vec<Comparison>,
    /// Alone.
    pub(crate) figures: Vec<Figures>,
    /// The rest.
    pub(crate) tables: Vec<Table>,
    /// Skipped measurements, with the reason.
    pub(crate) skipped: Vec<String>,
}

impl Report {
    /// The facts of the machine, in a few lines.
    pub(crate) fn heading(&self) -> String {
        let machine = &self.machine;
        let programs: Vec<_> = machine
            .programs
            .iter()
            .map(|(name, version)| format!("{name} {}", version.as_deref().unwrap_or("absent")))
            .collect();
        format!(
            "{} cores, {}, {} MiB, Linux {}\n{}\n",
            machine.cores,
            machine.cpu,
            machine.memory_mib,
            machine.kernel,
            programs.join(", ")
        )
    }
}

/// A comparison as a table.
pub(crate) fn comparison_table(comparison: &Comparison, unit: &str) -> String {
    let mut rows = vec![
        [
            "",
            "per second",
            "p50 ms",
            "p99 ms",
            "CPU µs",
            "busy",
            "gen.",
            "CPU ÷ ours",
            "ours ÷ rate",
            "target",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    if comparison.measure == Measure::P99 {
        rows[0][8] = "ours ÷ p99".to_owned();
    }
    for (index, contender) in comparison.contenders.iter().enumerate() {
        let second = if comparison.measure == Measure::P99 { Measure::P99 } else { Measure::Rate };
        rows.push(vec![
            contender.name.clone(),
            grouped(contender.median(|sample| sample.rate)),
            format!("{:.3}", contender.median(|sample| sample.p50_ms)),
            format!("{:.3}", contender.median(|sample| sample.p99_ms)),
            format!("{:.2}", contender.median(|sample| sample.cpu_us)),
            percent(contender.median(|sample| sample.busy)),
            percent(contender.median(|sample| sample.generator_busy)),
            ratio(comparison.ratio(index, Measure::Cpu)),
            ratio(comparison.ratio(index, second)),
            target(comparison, index),
        ]);
    }
    let mut text = format!("\n{} (by {unit})\n{}", comparison.title, aligned(&rows));
    for note in &comparison.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// Figures as a table.
pub(crate) fn figures_table(figures: &Figures) -> String {
    let mut rows =
        vec![["", "samples", "p50", "p99", "max", "unit", "target (p99)"].map(str::to_owned).to_vec()];
    for figure in &figures.figures {
        let target = figure
            .target
            .map(|target| format!("< {target} {}", if figure.p99 < target { "met" } else { "MISSED" }));
        rows.push(vec![
            figure.what.clone(),
            figure.samples.to_string(),
            format!("{:.3}", figure.p50),
            format!("{:.3}", figure.p99),
            format!("{:.3}", figure.max),
            figure.unit.to_owned(),
            target.unwrap_or_default(),
        ]);
    }
    let mut text = format!("\n{}\n{}", figures.title, aligned(&rows));
    for note in &figures.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// The target of the contender at `index`, and whether it was met.
pub(crate) fn target(comparison: &Comparison, index: usize) -> String {
    let Some((target, met)) = comparison.contenders[index].target.zip(comparison.met(index)) else {
        return String::new();
    };
    let sign = if comparison.measure == Measure::P99 { '≤' } else { '≥' };
    format!("{sign} {target:.2} {}", if met { "met" } else { "MISSED" })
}

/// A ratio with its range; 1 for what everything is compared with.
pub(crate) fn ratio(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(
        || "1".to_owned(),
        |ratio| format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max),
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Columns below each other: the first to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from("  ");
        for (index, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[index] - cell.chars().count());
            line.push_str(&if index == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") });
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Contender, Sample};

    #[test]
    fn thousands_are_separated() {
        let texts: Vec<_> = [0.0, 999.0, 1000.0, 123_456.7, 1e6].into_iter().map(grouped).collect();
        assert_eq!(texts, ["0", "999", "1,000", "123,457", "1,000,000"]);
    }

    #[test]
    fn a_table_shows_whether_a_target_is_met() {
        let sample = |cpu_us| Sample { rate: 1e6 / cpu_us, cpu_us, ..Sample::default() };
        let contender =
            |name: &str, target, cpu| Contender { name: name.to_owned(), target, samples: vec![sample(cpu)] };
        let comparison = Comparison {
            title: "hot".to_owned(),
            measure: Measure::Cpu,
            contenders: vec![
                contender("edge", None, 10.0),
                contender("static", Some(0.9), 9.5),
                contender("other", Some(2.0), 15.0),
            ],
            notes: vec!["careful".to_owned()],
        };
        let text = comparison_table(&comparison, "requests");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[4].contains("0.95 (0.95–0.95)") && lines[4].ends_with("≥ 0.90 met"), "{text}");
        assert!(lines[5].ends_with("≥ 2.00 MISSED"), "{text}");
        assert!(lines[6].contains("careful"), "{text}");
        let width = |line: &str| line.chars().count();
        assert!(width(lines[4]) <= width(lines[5]), "columns are aligned\n{text}");
    }
}
