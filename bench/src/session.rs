//! One run of the benchmark: how long, on which cores, in which folder, and where its results go.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    compare::Comparison,
    machine::{Cores, Facts},
    peers::edge::Variant,
    report::{Figures, Report, Table, comparison_table, figures_table},
};

/// The constant parts of a run.
#[derive(Debug)]
pub(crate) struct Session {
    /// Which core does what.
    pub(crate) cores: Cores,
    /// Turns of each contender.
    pub(crate) rounds: usize,
    /// Seconds that were asked for.
    pub(crate) seconds: u32,
    /// How long a turn is measured.
    pub(crate) turn: Duration,
    /// Whether to take smaller tables and shorter logs.
    pub(crate) quick: bool,
    /// A changed copy of the edge, to be measured side by side with this one.
    pub(crate) against: Option<Variant>,
    /// Removed with its content at the end.
    root: tempfile::TempDir,
}

impl Session {
    /// Prepares a run that measures each contender for about `seconds`.
    pub(crate) fn new(seconds: u32, quick: bool, against: Option<Variant>) -> anyhow::Result<Self> {
        let root = tempfile::Builder::new().prefix("signalbox-bench-").tempdir()?;
        let (rounds, turn) = if quick {
            (3, Duration::from_millis(400))
        } else {
            (seconds.max(1) as usize, Duration::from_secs(1))
        };
        Ok(Self { cores: Cores::divide(), rounds, seconds, turn, quick, against, root })
    }

    /// Makes a folder for one part of the run.
    pub(crate) fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.root.path().join(name);
        fs::create_dir_all(&folder).context("creating a folder")?;
        Ok(folder)
    }
}

/// Where results go: to people as soon as they are there, to programs at the end.
#[derive(Debug)]
pub(crate) struct Output {
    report: Report,
}

impl Output {
    /// Prints the facts about the machine.
    pub(crate) fn new(machine: Facts) -> anyhow::Result<Self> {
        let report = Report {
            machine,
            comparisons: Vec::new(),
            figures: Vec::new(),
            tables: Vec::new(),
            skipped: Vec::new(),
        };
        print(&report.heading())?;
        Ok(Self { report })
    }

    /// Prints and keeps a comparison of contenders, which took turns at a unit of work.
    pub(crate) fn comparison(&mut self, comparison: Comparison, unit: &str) -> anyhow::Result<()> {
        print(&comparison_table(&comparison, unit))?;
        self.report.comparisons.push(comparison);
        Ok(())
    }

    /// Prints and keeps figures.
    pub(crate) fn figures(&mut self, figures: Figures) -> anyhow::Result<()> {
        print(&figures_table(&figures))?;
        self.report.figures.push(figures);
        Ok(())
    }

    /// Prints and keeps a table.
    pub(crate) fn table(&mut self, table: Table) -> anyhow::Result<()> {
        print(&table.markdown())?;
        self.report.tables.push(table);
        Ok(())
    }

    /// Prints and keeps the reason why a measurement was skipped.
    pub(crate) fn skipped(&mut self, what: String) -> anyhow::Result<()> {
        print(&format!("skipped: {what}\n"))?;
        self.report.skipped.push(what);
        Ok(())
    }

    /// Writes everything as JSON.
    pub(crate) fn write_json(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.report)?;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
