//! Draws a graph in layers. Pure: boxes and links in, places and lines out, the same for the same.
//!
//! ```text
//!  layers.rs   who stands above whom (longest path; what closes a cycle goes back up)
//!  order.rs    who stands left of whom: fewest crossings found by barycentres
//!  place.rs    where exactly: rows, columns as straight as their order allows, lines
//! ```
//!
//! A layer is two rows: one of boxes, and below it one in which every link that leaves them has a *bend*. It carries the
//! link's label, so labels take part in the order and never lie upon each other. Links that go down bend once in every row
//! that they pass; those that go up, and those so long that they would bend in too many rows, leave the rows below their
//! first bend and go *around* on the right.

mod layers;
mod order;
mod place;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use order::{Link, Rows};

/// More than this is not drawn: nobody could read it, and everybody would wait for it.
pub(super) const MOST_BOXES: usize = 300;
pub(super) const MOST_LINKS: usize = 1500;
/// Bends of all links together, beyond which the longest go around.
const MOST_BENDS: usize = 6000;

/// A graph to be drawn.
#[derive(Debug, Clone, Default)]
pub(super) struct Graph {
    /// How wide each box has to be.
    pub(super) widths: Vec<f64>,
    pub(super) arrows: Vec<Arrow>,
}

/// A link from box to box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    /// How wide its label is; 0 without one.
    pub(super) label: f64,
}

/// Where everything is.
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

/// How an arrow runs, from the lower edge of its first box to the upper edge of its last.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Line {
    pub(super) start: Point,
    pub(super) steps: Vec<Step>,
    /// The place of its label.
    pub(super) label: Option<Rect>,
    /// Whether it goes around the rows.
    pub(super) around: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    /// Straight on.
    To(Point),
    /// Leaving and arriving downwards.
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

/// Draws it, unless it is too large or says something of boxes that are not there.
pub(super) fn draw(graph: &Graph) -> Option<Drawing> {
    let boxes = graph.widths.len();
    let known = graph.arrows.iter().all(|arrow| arrow.from < boxes && arrow.to < boxes);
    if boxes == 0 || boxes > MOST_BOXES || graph.arrows.len() > MOST_LINKS || !known {
        return None;
    }
    let layers = layers::of(graph);
    let links = links(graph, &layers);
    let mut rows = Rows::new(graph, &layers, &links);
    rows.uncross();
    Some(place::place(graph, &rows, &links))
}

/// Which arrows go through the rows: all that go down, as long as the bends are not too many.
fn links(graph: &Graph, layers: &[usize]) -> Vec<Link> {
    let span = |arrow: &Arrow| layers[arrow.to].saturating_sub(layers[arrow.from]);
    let mut longest = graph.arrows.iter().map(span).max().unwrap_or(0);
    let bends = |longest: usize| -> usize {
        let spans = graph.arrows.iter().map(span);
        spans.map(|span| if (1..=longest).contains(&span) { 2 * span - 1 } else { 1 }).sum()
    };
    while longest > 1 && bends(longest) > MOST_BENDS {
        longest /= 2;
    }
    let link = |arrow: &Arrow| Link { arrow: *arrow, around: !(1..=longest).contains(&span(arrow)) };
    graph.arrows.iter().map(link).collect()
}
