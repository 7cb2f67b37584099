//! Lists: one mechanism for the format, the order and the selection of what every `list` command prints.
//!
//! A command passes its items, the heads of the columns, and a function that makes a row of an item. A head that begins with `+` is
//! shown only by `-o wide`. The first column is the name of an item.

use std::{cmp::Ordering, ops::Deref, time::Duration};

use clap::ArgAction;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use signalbox_client::{Client, Time};
use tokio::{signal, time};

use crate::{
    exit::Failure,
    remote::{Format, Remote, duration},
    terminal,
};

/// No column is cut below this width.
const MIN_WIDTH: usize = 8;
/// Maximum items that are read of a list that may be long, such as labels.
const MAX_READ: usize = 1000;

/// Flags of every command that prints a table.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "List")]
pub(crate) struct Table {
    /// Only rows with this text: TEXT in any column, COLUMN=TEXT or COLUMN!=TEXT; can be repeated
    #[arg(long, value_name = "FILTER", action = ArgAction::Append)]
    filter: Vec<String>,
    /// Sort by this column; -COLUMN reverses the order
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Maximum number of rows [default: all; 1000 of labels, messages, dead letters and parked objects; 100 of logs]
    #[arg(long, value_name = "COUNT")]
    max: Option<usize>,
    /// Omit the head of the table
    #[arg(long)]
    no_headers: bool,
}

/// Flags of every command that prints a list.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "List")]
pub(crate) struct Listing {
    /// Repeat the list until Ctrl-C [default interval: 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    watch: Option<Duration>,
    #[command(flatten)]
    table: Table,
}

impl Deref for Listing {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

/// A cell of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    /// Unix milliseconds: shown as the time from or until now, by `-o wide` as a timestamp.
    Time(u64),
}

/// A value that can be in a table: a text, a number, names, or nothing of these, which is shown as `-`.
pub(crate) trait Shown {
    fn cell(&self) -> Cell;
}

impl Shown for Cell {
    fn cell(&self) -> Cell {
        self.clone()
    }
}

impl Shown for Time {
    fn cell(&self) -> Cell {
        Cell::Time(self.ms())
    }
}

impl<T: Shown + ?Sized> Shown for &T {
    fn cell(&self) -> Cell {
        (**self).cell()
    }
}

impl<T: Shown> Shown for Option<T> {
    fn cell(&self) -> Cell {
        self.as_ref().map_or_else(|| "-".cell(), T::cell)
    }
}

impl Shown for Vec<String> {
    fn cell(&self) -> Cell {
        Cell::Text(terminal::list(self))
    }
}

macro_rules! shown {
    ($($type:ty),+) => {
        $(impl Shown for $type {
            fn cell(&self) -> Cell {
                Cell::Text(self.to_string())
            }
        })+
    };
}

shown!(str, String, u16, u32, u64, usize);

impl Shown for Value {
    fn cell(&self) -> Cell {
        match self {
            Self::Null => "-".cell(),
            Self::String(text) => text.cell(),
            other => other.to_string().cell(),
        }
    }
}

/// A row: each value as a cell.
macro_rules! cells {
    ($($value:expr),+ $(,)?) => {
        [$($crate::listing::Shown::cell(&$value)),+]
    };
}

pub(crate) use cells;

impl Cell {
    /// A time that was `ms` milliseconds ago.
    pub(crate) fn ago(ms: u64) -> Self {
        Self::Time(now_ms().saturating_sub(ms))
    }

    fn shown(&self, wide: bool, now_ms: u64) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Time(ms) if wide => timestamp(*ms),
            Self::Time(ms) => relative(*ms, now_ms),
        }
    }

    /// Numbers by their value, everything else as text.
    fn compare(&self, other: &Self) -> Ordering {
        let number = |cell: &Self| match cell {
            #[expect(clippy::cast_precision_loss, reason = "an order of times")]
            Self::Time(ms) => Some(*ms as f64),
            Self::Text(text) => text.split(' ').next().and_then(|word| word.parse::<f64>().ok()),
        };
        match (self, other, number(self), number(other)) {
            (_, _, Some(one), Some(other)) => one.total_cmp(&other),
            (Self::Text(one), Self::Text(other), _, _) => one.cmp(other),
            (Self::Time(_), ..) => Ordering::Less,
            _ => Ordering::Greater,
        }
    }
}

pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// How long ago, or in how long: `3m ago`, `in 12d`.
pub(crate) fn relative(ms: u64, now_ms: u64) -> String {
    let seconds = ms.abs_diff(now_ms) / 1000;
    let span = match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    };
    if ms > now_ms { format!("in {span}") } else { format!("{span} ago") }
}

pub(crate) fn timestamp(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| ms.to_string(), |at| format!("{at:.0}"))
}

impl Listing {
    /// Reads and prints the list; with `--watch`, again and again.
    pub(crate) async fn run(
        &self,
        mut print: impl AsyncFnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(interval) = self.watch else { return print().await };
        let repeat = async {
            loop {
                terminal::clear();
                print().await?;
                if terminal::reader_is_gone() {
                    return Ok(());
                }
                time::sleep(interval.max(Duration::from_millis(200))).await;
            }
        };
        tokio::select! {
            failed = repeat => failed,
            _ = signal::ctrl_c() => Err(Failure::interrupted()),
        }
    }

    /// Reads all items of a list and prints them; with `--watch`, again and again.
    pub(crate) async fn list<T: Serialize, const N: usize>(
        &self,
        remote: &Remote,
        read: impl AsyncFn(Client) -> Result<Vec<T>, Failure>,
        heads: [&str; N],
        row: impl Fn(&T) -> [Cell; N],
    ) -> Result<(), Failure> {
        self.select::<T, N>(&[], &heads, &row)?;
        self.run(async || {
            let items = read(remote.client()?).await?;
            self.show(remote, &items, heads, &row)
        })
        .await
    }

    /// As [`Listing::list`], for a list that may be long. `read` gets the number of items to read: one more than are shown, so
    /// that the command knows whether there are more.
    pub(crate) async fn list_first<T: Serialize, const N: usize>(
        &self,
        remote: &Remote,
        read: impl AsyncFn(Client, usize) -> Result<Vec<T>, Failure>,
        heads: [&str; N],
        row: impl Fn(&T) -> [Cell; N],
    ) -> Result<(), Failure> {
        self.select::<T, N>(&[], &heads, &row)?;
        self.run(async || {
            let max = self.max_or(MAX_READ);
            let items = read(remote.client()?, max.saturating_add(1)).await?;
            self.show(remote, items.get(..max).unwrap_or(&items), heads, &row)?;
            if items.len() > max {
                terminal::error(&format!("the first {max} are shown; --max shows more"));
            }
            Ok(())
        })
        .await
    }
}

impl Table {
    /// The number of rows that the user chose, or `default`.
    pub(crate) fn max_or(&self, default: usize) -> usize {
        self.max.unwrap_or(default)
    }

    /// Prints the items in the selected format.
    pub(crate) fn show<T: Serialize, const N: usize>(
        &self,
        remote: &Remote,
        items: &[T],
        heads: [&str; N],
        row: impl Fn(&T) -> [Cell; N],
    ) -> Result<(), Failure> {
        let mut rows = self.select(items, &heads, row)?;
        let max = self.max_or(usize::MAX);
        let more = rows.len().saturating_sub(max);
        rows.truncate(max);
        self.print(remote, &rows, heads)?;
        if more > 0 {
            terminal::error(&format!("{more} more rows; --max shows more"));
        }
        Ok(())
    }

    /// The rows that the filters accept, in the selected order. Without items, it only checks the names of columns: an operator
    /// learns of a wrong one before anything is read.
    pub(crate) fn select<'a, T, const N: usize>(
        &self,
        items: &'a [T],
        heads: &[&str; N],
        row: impl Fn(&T) -> [Cell; N],
    ) -> Result<Vec<(&'a T, [Cell; N])>, Failure> {
        let mut rows: Vec<(&T, [Cell; N])> = items.iter().map(|item| (item, row(item))).collect();
        let now_ms = now_ms();
        let filters =
            self.filter.iter().map(|text| Filter::parse(text, heads)).collect::<Result<Vec<_>, _>>()?;
        rows.retain(|(_, cells)| filters.iter().all(|filter| filter.accepts(cells, now_ms)));
        if let Some(sort) = &self.sort {
            let (column, reverse) = match sort.strip_prefix('-') {
                Some(column) => (place(column, heads)?, true),
                None => (place(sort, heads)?, false),
            };
            rows.sort_by(|(_, one), (_, other)| {
                let order = one[column].compare(&other[column]);
                if reverse { order.reverse() } else { order }
            });
        }
        Ok(rows)
    }

    /// Prints rows in the selected format.
    pub(crate) fn print<T: Serialize, const N: usize>(
        &self,
        remote: &Remote,
        rows: &[(&T, [Cell; N])],
        heads: [&str; N],
    ) -> Result<(), Failure> {
        let now_ms = now_ms();
        let wide = match remote.format() {
            Format::Json | Format::Yaml => {
                let items: Vec<&T> = rows.iter().map(|(item, _)| *item).collect();
                return remote.show(&items, |_| ());
            }
            Format::Name => {
                rows.iter().for_each(|(_, cells)| terminal::line(&printable(&cells[0].shown(false, now_ms))));
                return Ok(());
            }
            Format::Table => false,
            Format::Wide => true,
        };
        let columns: Vec<usize> = (0..N).filter(|column| wide || !heads[*column].starts_with('+')).collect();
        let head = columns.iter().map(|column| heads[*column].trim_start_matches('+').to_owned()).collect();
        let cells =
            rows.iter().map(|(_, cells)| columns.iter().map(|at| cells[*at].shown(wide, now_ms)).collect());
        let table: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
        let width = if wide { None } else { terminal::width() };
        let lines = laid_out(&table, width, terminal::is_colored());
        for line in lines.iter().skip(usize::from(self.no_headers)) {
            terminal::line(line);
        }
        Ok(())
    }
}

/// A head as it is typed: `version-type`.
fn typed(head: &str) -> String {
    head.trim_start_matches('+').to_lowercase().replace(' ', "-")
}

fn place(column: &str, heads: &[&str]) -> Result<usize, Failure> {
    heads.iter().position(|head| typed(head) == column.to_lowercase()).ok_or_else(|| {
        let known: Vec<String> = heads.iter().map(|head| typed(head)).collect();
        Failure::configuration(format!("unknown column `{column}`; the columns are {}", known.join(", ")))
    })
}

struct Filter {
    column: Option<usize>,
    text: String,
    negated: bool,
}

impl Filter {
    fn parse(filter: &str, heads: &[&str]) -> Result<Self, Failure> {
        let Some((column, text)) = filter.split_once('=') else {
            return Ok(Self { column: None, text: filter.to_lowercase(), negated: false });
        };
        let (column, negated) = column.strip_suffix('!').map_or((column, false), |column| (column, true));
        Ok(Self { column: Some(place(column, heads)?), text: text.to_lowercase(), negated })
    }

    fn accepts(&self, cells: &[Cell], now_ms: u64) -> bool {
        let contains = |cell: &Cell| cell.shown(false, now_ms).to_lowercase().contains(&self.text);
        match self.column {
            Some(column) => contains(&cells[column]) != self.negated,
            None => cells.iter().any(contains),
        }
    }
}

/// Prints a table that is a part of an answer.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) {
    let head = heads.map(str::to_owned).to_vec();
    let table: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(|row| row.to_vec())).collect();
    laid_out(&table, terminal::width(), terminal::is_colored()).iter().for_each(|line| terminal::line(line));
}

/// The lines of a table. If it is wider than `width`, columns without values are left out. If that is not enough, the widest
/// columns are cut, and then the last ones are left out.
fn laid_out(table: &[Vec<String>], width: Option<usize>, colored: bool) -> Vec<String> {
    let columns = table.first().map_or(0, Vec::len);
    let mut widths: Vec<usize> =
        (0..columns).map(|at| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let mut reduced = Vec::new();
    let mut table = table;
    if let Some(width) = width
        && total(&widths) > width
    {
        let (head, rows) = table.split_first().map_or((&[][..], &[][..]), |(head, rows)| (head, rows));
        let has_values = |at: usize| at == 0 || rows.is_empty() || rows.iter().any(|row| row[at] != "-");
        let shown: Vec<usize> = (0..head.len()).filter(|at| has_values(*at)).collect();
        let reduce = |row: &Vec<String>| shown.iter().map(|at| row[*at].clone()).collect();
        reduced.extend(table.iter().map(reduce));
        table = &reduced;
        widths = shown.iter().map(|at| widths[*at]).collect();
        fit(&mut widths, width);
    }
    let line = |(number, row): (usize, &Vec<String>)| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let text = cut(cell, *width);
            let color = if number == 0 { Some(HEAD) } else { color(cell) };
            match color.filter(|_| colored) {
                Some(color) => {
                    let missing = width.saturating_sub(text.trim_end().chars().count());
                    format!("\x1b[{color}m{}\x1b[0m{}", text.trim_end(), " ".repeat(missing))
                }
                None => text,
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    table.iter().enumerate().map(line).collect()
}

/// The width of a line: the columns and the gaps between them.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// Reduces the widths of columns until a line has at most `width`.
fn fit(widths: &mut Vec<usize>, width: usize) {
    let least: Vec<usize> = widths.iter().map(|width| MIN_WIDTH.min(*width)).collect();
    while widths.len() > 1 && total(&least[..widths.len()]) > width {
        widths.pop();
    }
    while total(widths) > width {
        // The last one of the widest, because names are first.
        let Some(widest) = widths.iter_mut().max_by_key(|width| **width).filter(|widest| **widest > 1) else {
            return;
        };
        *widest -= 1;
    }
}

/// A cell with exactly this width. Control characters (which come from names that others chose) would move the cursor.
fn cut(cell: &str, width: usize) -> String {
    let mut text = printable(cell);
    let length = text.chars().count();
    if length > width {
        text = text.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect();
    }
    text + &" ".repeat(width.saturating_sub(length))
}

fn printable(cell: &str) -> String {
    cell.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// Bold.
const HEAD: u8 = 1;

/// The color of a word that reports a state: green, yellow or red.
fn color(cell: &str) -> Option<u8> {
    match cell {
        "active" | "healthy" | "issued" | "live" | "ok" | "delivered" => Some(32),
        "standby" | "draining" | "ordering" | "paused" | "silent" | "waiting" => Some(33),
        "unhealthy" | "failing" | "errored" | "disabled" | "expired" | "excluded" | "rejected" | "failed" => {
            Some(31)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let rows = table(&[&["ID", "HOSTS", "STATE"], &["i-7", "one.test,two.test,three.test", "active"]]);
        assert_eq!(laid_out(&rows, None, false)[1], "i-7  one.test,two.test,three.test  active");
        let cut = laid_out(&rows, Some(30), false);
        assert_eq!(cut[1], "i-7  one.test,two.tes\u{2026}  active");
        assert!(cut.iter().all(|line| line.chars().count() <= 30));
        // No column is cut below eight characters. The last ones are left out.
        assert_eq!(laid_out(&rows, Some(21), false)[1], "i-7  one.tes\u{2026}  active");
        assert_eq!(laid_out(&rows, Some(18), false)[1], "i-7  one.test,two\u{2026}");
        assert_eq!(laid_out(&rows, Some(2), false)[1], "i\u{2026}");
        // A column without values is left out before another one is cut.
        let rows = table(&[&["ID", "HEALTH", "HOSTS"], &["i-7", "-", "one.test"], &["i-8", "-", "two.test"]]);
        assert_eq!(laid_out(&rows, Some(40), false)[1], "i-7  -       one.test");
        assert_eq!(laid_out(&rows, Some(13), false)[..2], ["ID   HOSTS", "i-7  one.test"]);
    }

    #[test]
    fn states_have_colors_and_control_characters_are_replaced() {
        let rows = table(&[&["ID", "STATE"], &["a\u{1b}[2J", "failing"]]);
        assert_eq!(laid_out(&rows, None, false)[1], "a\u{fffd}[2J  failing");
        assert_eq!(laid_out(&rows, None, true)[1], "a\u{fffd}[2J  \u{1b}[31mfailing\u{1b}[0m");
    }

    #[test]
    fn cells_are_compared_as_numbers_if_they_are_numbers() {
        let cell = |text: &str| text.cell();
        assert_eq!(cell("9").compare(&cell("10")), Ordering::Less);
        assert_eq!(cell("1.5 s").compare(&cell("1.2 s")), Ordering::Greater);
        assert_eq!(cell("b").compare(&cell("a")), Ordering::Greater);
        assert_eq!(Cell::Time(5).compare(&Cell::Time(7)), Ordering::Less);
        assert_eq!(Cell::Time(5).compare(&cell("-")), Ordering::Less);
    }

    #[test]
    fn a_filter_names_a_column_or_none() {
        let heads = ["ID", "VERSION TYPE"];
        let cells = cells!["i-7", "Shop"];
        let accepts = |text: &str| Filter::parse(text, &heads).unwrap().accepts(&cells, 0);
        assert!(accepts("shop") && accepts("version-type=sho") && accepts("ID!=8"));
        assert!(!accepts("id=shop") && !accepts("id!=7") && !accepts("bank"));
        let error = Filter::parse("color=red", &heads).map(drop).unwrap_err();
        assert_eq!(error.message(), "unknown column `color`; the columns are id, version-type");
    }

    #[test]
    fn times_are_relative_to_now() {
        let now = 1_801_353_600_000;
        let texts = [now - 59_000, now - 60_000, now + 90 * 86_400_000].map(|ms| relative(ms, now));
        assert_eq!(texts, ["59s ago", "1m ago", "in 90d"]);
        assert_eq!(Cell::Time(now).shown(true, now), "2027-01-31T00:00:00Z");
    }
}
