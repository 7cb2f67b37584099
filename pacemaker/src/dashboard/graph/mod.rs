//! Lays out a graph in layers. Pure and deterministic: boxes and arrows in, positions and lines out.
//!
//! ```text
//!  layers.rs   the layer of each box (longest path; arrows that close a cycle lead back up)
//!  order.rs    the order within each row: few crossings, by the barycenter heuristic
//!  place.rs    coordinates: rows, columns as straight as the order allows, lines
//! ```
//!
//! A layer has two rows: one for boxes, and below it one in which every link that leaves them has a *bend*. The bend holds
//! the link's label, so labels take part in the ordering and never overlap. A link that leads down has a bend in every row
//! that it passes. A link that leads up, or is too long, leaves the rows below its first bend and runs *around* them on
//! the right.

mod layers;
mod order;
mod place;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use order::{Link, Rows};

/// Larger graphs are not drawn: they would be unreadable and slow to lay out.
pub(super) const MAX_BOXES: usize = 300;
pub(super) const MAX_LINKS: usize = 1500;
/// Maximum bends of all links together. Beyond it, the longest links run around.
const MAX_BENDS: usize = 6000;

/// A graph to lay out.
#[derive(Debug, Clone, Default)]
pub(super) struct Graph {
    /// The width of each box.
    pub(super) widths: Vec<f64>,
    pub(super) arrows: Vec<Arrow>,
}

/// A link from box to box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The width of its label; 0 without one.
    pub(super) label: f64,
}

/// The positions of all boxes and lines.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Drawing {
    pub(super) width: f64,
    pub(super) height: f64,
    /// In the order of the boxes.
    pub(super) boxes: Vec<Rect>,
    /// In the order of the arrows.
    pub(super) lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// The course of an arrow, from the lower edge of its first box to the upper edge of its last.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Line {
    pub(super) start: Point,
    pub(super) steps: Vec<Step>,
    /// The position of its label.
    pub(super) label: Option<Rect>,
    /// Whether it runs around the rows.
    pub(super) around: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    /// A straight line.
    To(Point),
    /// A curve that starts and ends vertically.
    Curve(Point),
}

impl Step {
    pub(super) fn end(&self) -> Point {
        match self {
            Self::To(point) | Self::Curve(point) => *point,
        }
    }
}

impl Line {
    /// As the `d` of an SVG path.
    pub(super) fn path(&self) -> String {
        let Point { x, y } = self.start;
        let mut path = format!("M{x:.1} {y:.1}");
        let mut last = self.start;
        for (n, step) in self.steps.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = match (step, self.steps.get(n + 1)) {
                (Step::Curve(to), _) => {
                    let middle = f64::midpoint(last.y, to.y);
                    let Point { x, y } = to;
                    write!(path, "C{:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}", last.x)
                }
                (Step::To(to), Some(Step::To(next))) => {
                    let (before, after) = (towards(*to, last), towards(*to, *next));
                    let Point { x, y } = to;
                    let (bx, by) = (before.x, before.y);
                    write!(path, "L{bx:.1} {by:.1}Q{x:.1} {y:.1} {:.1} {:.1}", after.x, after.y)
                }
                (Step::To(to), _) => write!(path, "L{:.1} {:.1}", to.x, to.y),
            };
            last = step.end();
        }
        path
    }
}

/// A point near `from`, on the way to `to`: where a rounded corner begins.
fn towards(from: Point, to: Point) -> Point {
    const RADIUS: f64 = 5.0;
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    let far = dx.hypot(dy);
    let part = if far > 0.0 { (RADIUS / far).min(0.5) } else { 0.0 };
    Point { x: from.x + dx * part, y: from.y + dy * part }
}

/// Lays out a graph; `None` if it is empty or too large, or an arrow refers to an unknown box.
pub(super) fn draw(graph: &Graph) -> Option<Drawing> {
    let boxes = graph.widths.len();
    let known = graph.arrows.iter().all(|arrow| arrow.from < boxes && arrow.to < boxes);
    if boxes == 0 || boxes > MAX_BOXES || graph.arrows.len() > MAX_LINKS || !known {
        return None;
    }
    let layers = layers::of(graph);
    let links = links(graph, &layers);
    let mut rows = Rows::new(graph, &layers, &links);
    rows.uncross();
    Some(place::place(graph, &rows, &links))
}

/// Decides which arrows run through the rows: those that lead down, as long as there are not too many bends.
fn links(graph: &Graph, layers: &[usize]) -> Vec<Link> {
    let span = |arrow: &Arrow| layers[arrow.to].saturating_sub(layers[arrow.from]);
    let mut longest = graph.arrows.iter().map(span).max().unwrap_or(0);
    let bends = |longest: usize| -> usize {
        let spans = graph.arrows.iter().map(span);
        spans.map(|span| if (1..=longest).contains(&span) { 2 * span - 1 } else { 1 }).sum()
    };
    while longest > 1 && bends(longest) > MAX_BENDS {
        longest /= 2;
    }
    let link = |arrow: &Arrow| Link { arrow: *arrow, around: !(1..=longest).contains(&span(arrow)) };
    graph.arrows.iter().map(link).collect()
}
