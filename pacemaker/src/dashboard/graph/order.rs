//! Orders the boxes and bends within their rows.

use super::{Arrow, Graph};

/// How often all rows are sorted by the positions of their neighbors.
const SWEEPS: usize = 12;

/// An arrow, and whether it runs through the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) arrow: Arrow,
    /// Around the rows, instead of through them.
    pub(super) around: bool,
}

/// A position in a row: a box or a bend.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) row: usize,
    pub(super) width: f64,
    pub(super) above: Vec<usize>,
    pub(super) below: Vec<usize>,
}

/// Boxes and bends, row by row.
#[derive(Debug)]
pub(super) struct Rows {
    /// First the boxes in their order, then the bends.
    pub(super) spots: Vec<Spot>,
    /// From left to right.
    pub(super) rows: Vec<Vec<usize>>,
    /// The bends of each link from top to bottom, at least one.
    pub(super) bends: Vec<Vec<usize>>,
}

impl Rows {
    pub(super) fn new(graph: &Graph, layers: &[usize], links: &[Link]) -> Self {
        let last = layers.iter().max().copied().unwrap_or(0);
        let spot = |(layer, width): (&usize, &f64)| Spot {
            row: 2 * layer,
            width: *width,
            above: Vec::new(),
            below: Vec::new(),
        };
        let mut new = Self {
            spots: layers.iter().zip(&graph.widths).map(spot).collect(),
            rows: vec![Vec::new(); 2 * last + 2],
            bends: Vec::with_capacity(links.len()),
        };
        for link in links {
            new.bend(link, layers);
        }
        for (spot, Spot { row, .. }) in new.spots.iter().enumerate() {
            new.rows[*row].push(spot);
        }
        new
    }

    fn bend(&mut self, link: &Link, layers: &[usize]) {
        let Arrow { from, to, label } = link.arrow;
        let first = 2 * layers[from] + 1;
        let last = if link.around { first } else { 2 * layers[to] - 1 };
        let mut above = from;
        let mut bends = Vec::with_capacity(last - first + 1);
        for row in first..=last {
            let width = if row == first { label } else { 0.0 };
            let bend = self.spots.len();
            self.spots.push(Spot { row, width, above: vec![above], below: Vec::new() });
            self.spots[above].below.push(bend);
            bends.push(bend);
            above = bend;
        }
        if !link.around {
            self.spots[above].below.push(to);
            self.spots[to].above.push(above);
        }
        self.bends.push(bends);
    }

    /// Searches for an order with few crossings and keeps the best one.
    pub(super) fn uncross(&mut self) {
        let (mut best, mut fewest) = (self.rows.clone(), self.crossings());
        for sweep in 0..SWEEPS {
            if fewest == 0 {
                break;
            }
            if sweep % 2 == 0 {
                (1..self.rows.len()).for_each(|row| self.sort(row, |spot| &spot.above));
            } else {
                (0..self.rows.len()).rev().for_each(|row| self.sort(row, |spot| &spot.below));
            }
            let found = self.crossings();
            if found < fewest {
                (best, fewest) = (self.rows.clone(), found);
            }
        }
        self.rows = best;
    }

    /// Sorts a row by the mean position of each spot's neighbors; a spot without neighbors keeps its position.
    fn sort(&mut self, row: usize, linked: impl Fn(&Spot) -> &Vec<usize>) {
        let places = self.places();
        let middle = |(at, spot): (usize, &usize)| {
            let linked = linked(&self.spots[*spot]);
            let sum: usize = linked.iter().map(|one| places[*one]).sum();
            let middle = if linked.is_empty() { as_f64(at) } else { as_f64(sum) / as_f64(linked.len()) };
            (middle, *spot)
        };
        let mut spots: Vec<(f64, usize)> = self.rows[row].iter().enumerate().map(middle).collect();
        spots.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.rows[row] = spots.into_iter().map(|(_, spot)| spot).collect();
    }

    /// The place of each spot in its row.
    fn places(&self) -> Vec<usize> {
        let mut places = vec![0; self.spots.len()];
        for row in &self.rows {
            row.iter().enumerate().for_each(|(at, spot)| places[*spot] = at);
        }
        places
    }

    /// How many lines cross.
    pub(super) fn crossings(&self) -> usize {
        let places = self.places();
        let between = |row: &Vec<usize>| {
            let mut ends: Vec<(usize, usize)> = row
                .iter()
                .flat_map(|spot| self.spots[*spot].below.iter().map(|below| (places[*spot], places[*below])))
                .collect();
            ends.sort_unstable();
            inversions(ends.into_iter().map(|(_, end)| end))
        };
        self.rows.iter().map(between).sum()
    }
}

/// The number of pairs in the wrong order, counted with a Fenwick tree.
fn inversions(ends: impl Iterator<Item = usize> + Clone) -> usize {
    let size = ends.clone().max().map_or(0, |most| most + 1);
    let mut tree = vec![0_usize; size + 1];
    let mut count = 0;
    for (before, end) in ends.enumerate() {
        let (mut at, mut smaller) = (end + 1, 0);
        while at > 0 {
            smaller += tree[at];
            at &= at - 1;
        }
        count += before - smaller;
        at = end + 1;
        while at <= size {
            tree[at] += 1;
            at += at & at.wrapping_neg();
        }
    }
    count
}

#[allow(clippy::cast_precision_loss, reason = "a few thousand")]
pub(super) fn as_f64(number: usize) -> f64 {
    number as f64
}
