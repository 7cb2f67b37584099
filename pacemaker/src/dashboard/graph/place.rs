//! Computes the coordinates of rows, columns and lines.

use super::{
    Drawing, Graph, Line, Point, Rect, Step,
    order::{Link, Rows, Spot, as_f64},
};

/// The heights of boxes and labels.
pub(super) const BOX_HEIGHT: f64 = 44.0;
pub(super) const LABEL_HEIGHT: f64 = 18.0;
/// Around the whole drawing.
const MARGIN: f64 = 12.0;
/// Between boxes in a row.
const BOX_GAP: f64 = 20.0;
/// Between a row of boxes and the row of bends below it, and between that row and the next boxes.
const GAP_BELOW: f64 = 14.0;
const GAP_ABOVE: f64 = 24.0;
/// Between parallel lines.
const LINE_GAP: f64 = 9.0;
/// How often columns are moved towards their neighbors.
const PASSES: usize = 14;

struct Placing<'a> {
    graph: &'a Graph,
    rows: &'a Rows,
    links: &'a [Link],
    /// The center of each spot.
    columns: Vec<f64>,
    /// The top of each row.
    tops: Vec<f64>,
    /// The height of each row.
    heights: Vec<f64>,
    /// How many horizontal lines were placed above each row so far.
    across: Vec<usize>,
}

pub(super) fn place(graph: &Graph, rows: &Rows, links: &[Link]) -> Drawing {
    let columns = columns(rows);
    let heights: Vec<f64> = (0..rows.rows.len()).map(|row| height(rows, row)).collect();
    let (tops, end) = tops(graph, rows, links, &heights);
    let mut placing =
        Placing { graph, rows, links, columns, tops, heights, across: vec![0; rows.rows.len() + 1] };
    let boxes: Vec<Rect> = (0..graph.widths.len()).map(|one| placing.rect(one)).collect();
    let spots = rows.spots.iter().zip(&placing.columns);
    let right = spots.map(|(spot, middle)| middle + spot.width / 2.0).fold(0.0, f64::max);
    let (lines, width) = placing.lines(right);
    Drawing { width: width + MARGIN, height: end + MARGIN, boxes, lines }
}

fn height(rows: &Rows, row: usize) -> f64 {
    let labelled = || rows.rows[row].iter().any(|spot| rows.spots[*spot].width > 0.0);
    match row % 2 {
        0 => BOX_HEIGHT,
        _ if labelled() => LABEL_HEIGHT,
        _ => 0.0,
    }
}

/// The top of each row, with space for the horizontal lines between rows, and the end of the last row.
fn tops(graph: &Graph, rows: &Rows, links: &[Link], heights: &[f64]) -> (Vec<f64>, f64) {
    let mut across = vec![0; heights.len() + 1];
    for (link, bends) in links.iter().zip(&rows.bends).filter(|(link, _)| link.around) {
        across[rows.spots[bends[0]].row + 1] += 1;
        across[rows.spots[link.arrow.to].row] += 1;
    }
    debug_assert_eq!(graph.arrows.len(), links.len());
    let mut at = MARGIN;
    let mut tops = Vec::with_capacity(heights.len());
    for (row, height) in heights.iter().enumerate() {
        let space = as_f64(across[row]) * LINE_GAP;
        at += match row {
            0 => space,
            _ if row % 2 == 0 => GAP_ABOVE + space,
            _ => GAP_BELOW,
        };
        tops.push(at);
        at += height;
    }
    (tops, at + as_f64(across[heights.len()]) * LINE_GAP)
}

/// The center of each spot: close to its neighbors, in the order of its row, and without overlaps.
fn columns(rows: &Rows) -> Vec<f64> {
    let mut columns = vec![0.0; rows.spots.len()];
    for row in &rows.rows {
        let wanted = vec![0.0; row.len()];
        settle(rows, row, &wanted, &mut columns);
    }
    for pull in 0..PASSES {
        let down = pull % 2 == 0;
        for at in 0..rows.rows.len() {
            let row = &rows.rows[if down { at } else { rows.rows.len() - 1 - at }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|spot| {
                    let one = &rows.spots[*spot];
                    let linked = if down { &one.above } else { &one.below };
                    let sum: f64 = linked.iter().map(|other| columns[*other]).sum();
                    if linked.is_empty() { columns[*spot] } else { sum / as_f64(linked.len()) }
                })
                .collect();
            settle(rows, row, &wanted, &mut columns);
        }
    }
    let left = rows.spots.iter().zip(&columns).map(|(spot, middle)| middle - spot.width / 2.0);
    let left = left.fold(f64::INFINITY, f64::min);
    columns.iter_mut().for_each(|column| *column += MARGIN - left);
    columns
}

/// Moves the spots of a row as close to the wanted positions as their order and widths allow: least squares, by pooling
/// neighbors that would overlap.
fn settle(rows: &Rows, row: &[usize], wanted: &[f64], columns: &mut [f64]) {
    let mut offsets = Vec::with_capacity(row.len());
    let mut offset = 0.0;
    for (at, spot) in row.iter().enumerate() {
        if let Some(before) = at.checked_sub(1) {
            let half = |spot: usize| rows.spots[spot].width / 2.0;
            offset += half(row[before]) + half(*spot) + BOX_GAP;
        }
        offsets.push(offset);
    }
    // Sum and count of the spots that move together.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (wanted, offset) in wanted.iter().zip(&offsets) {
        let mut pool = (wanted - offset, 1);
        while let Some(last) = pools.last().copied() {
            if last.0 / as_f64(last.1) <= pool.0 / as_f64(pool.1) {
                break;
            }
            pool = (pool.0 + last.0, pool.1 + last.1);
            pools.pop();
        }
        pools.push(pool);
    }
    let middles = pools.iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / as_f64(*count), *count));
    for ((spot, middle), offset) in row.iter().zip(middles).zip(offsets) {
        columns[*spot] = middle + offset;
    }
}

impl Placing<'_> {
    fn rect(&self, spot: usize) -> Rect {
        let Spot { row, width, .. } = self.rows.spots[spot];
        Rect { x: self.columns[spot] - width / 2.0, y: self.tops[row], width, height: self.heights[row] }
    }

    /// All lines, and the rightmost coordinate of the drawing.
    fn lines(&mut self, right: f64) -> (Vec<Line>, f64) {
        let (leave, arrive) = (self.ports(true), self.ports(false));
        let mut lines: Vec<Line> = Vec::with_capacity(self.links.len());
        let mut around = Vec::new();
        for (n, link) in self.links.iter().enumerate() {
            let mut line = self.begin(n, leave[n]);
            if link.around {
                let row_of = |spot: usize| self.rows.spots[spot].row;
                let (row, to) = (row_of(self.rows.bends[n][0]), row_of(link.arrow.to));
                around.push((n, self.slot(row + 1), self.slot(to)));
                line.around = true;
            } else {
                line.steps.push(Step::Curve(self.entry(link, arrive[n])));
            }
            lines.push(line);
        }
        // Short lines get the inner lanes.
        around.sort_by(|a, b| (a.1 - a.2).abs().total_cmp(&(b.1 - b.2).abs()).then(a.0.cmp(&b.0)));
        let mut lanes: Vec<Vec<(f64, f64)>> = Vec::new();
        for (n, leaves, enters) in around {
            let (from, to) = (leaves.min(enters), leaves.max(enters));
            let free =
                |lane: &Vec<(f64, f64)>| lane.iter().all(|(a, b)| to + LINE_GAP < *a || from - LINE_GAP > *b);
            let lane = lanes.iter().position(free).unwrap_or_else(|| {
                lanes.push(Vec::new());
                lanes.len() - 1
            });
            lanes[lane].push((from, to));
            let x = right + BOX_GAP + as_f64(lane) * LINE_GAP;
            let last = lines[n].steps.last().map_or(lines[n].start, Step::end);
            let entry = self.entry(&self.links[n], arrive[n]);
            let corners = [(last.x, leaves), (x, leaves), (x, enters), (entry.x, enters), (entry.x, entry.y)];
            lines[n].steps.extend(corners.map(|(x, y)| Step::To(Point { x, y })));
        }
        let width =
            if lanes.is_empty() { right } else { right + BOX_GAP + as_f64(lanes.len() - 1) * LINE_GAP };
        (lines, width)
    }

    /// A line down to its last bend.
    fn begin(&self, n: usize, port: f64) -> Line {
        let from = self.rect(self.links[n].arrow.from);
        let start = Point { x: port, y: from.y + from.height };
        let mut line = Line { start, ..Line::default() };
        let bends = &self.rows.bends[n];
        for (at, bend) in bends.iter().enumerate() {
            let rect = self.rect(*bend);
            if at == 0 && self.links[n].arrow.label > 0.0 {
                line.label = Some(rect);
            }
            // A line does not bend in a row without height, unless it leaves the rows there.
            if rect.height == 0.0 && !(self.links[n].around && at + 1 == bends.len()) {
                continue;
            }
            let x = self.columns[*bend];
            line.steps.push(Step::Curve(Point { x, y: rect.y }));
            if rect.height > 0.0 {
                line.steps.push(Step::To(Point { x, y: rect.y + rect.height }));
            }
        }
        line
    }

    fn entry(&self, link: &Link, port: f64) -> Point {
        Point { x: port, y: self.rect(link.arrow.to).y }
    }

    /// The position of another horizontal line above the row.
    fn slot(&mut self, row: usize) -> f64 {
        self.across[row] += 1;
        let above = as_f64(self.across[row]) * LINE_GAP;
        match row {
            0 => MARGIN + above - LINE_GAP,
            // At the top of the space between the rows, so that the arrowheads fit below.
            _ => self.tops[row - 1] + self.heights[row - 1] + above,
        }
    }

    /// The position at which each line leaves its first box or reaches its last: side by side, in the order of the boxes
    /// at their other ends.
    fn ports(&self, leaving: bool) -> Vec<f64> {
        let mut by_box: Vec<Vec<(f64, usize)>> = vec![Vec::new(); self.graph.widths.len()];
        for (n, link) in self.links.iter().enumerate() {
            let bends = &self.rows.bends[n];
            let bend = if leaving { bends.first() } else { bends.last() };
            let enters_from_right = link.around && !leaving;
            let x = bend.filter(|_| !enters_from_right).map_or(f64::INFINITY, |bend| self.columns[*bend]);
            by_box[if leaving { link.arrow.from } else { link.arrow.to }].push((x, n));
        }
        let mut ports = vec![0.0; self.links.len()];
        for (one, mut lines) in by_box.into_iter().enumerate() {
            lines.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let (x, width) = (self.columns[one], self.rows.spots[one].width);
            let count = as_f64(lines.len());
            let distance = ((width - 2.0 * BOX_GAP).max(0.0) / count.max(1.0)).min(2.0 * LINE_GAP);
            for (at, (_, n)) in lines.into_iter().enumerate() {
                ports[n] = x + (as_f64(at) - (count - 1.0) / 2.0) * distance;
            }
        }
        ports
    }
}
