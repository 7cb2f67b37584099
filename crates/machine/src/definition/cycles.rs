//! Cycles in a graph, in linear time and memory: a megabyte of YAML can contain ten thousand states.

/// The lowest node of each strongly connected component, sorted. A component of one node is included only if
/// the node has an edge to itself.
///
/// Tarjan's strongly connected components (SIAM J. Comput. 1972), with an explicit stack in place of recursion.
pub(super) fn lowest_of_cycles(edges: &[Vec<usize>]) -> Vec<usize> {
    let mut search = Search {
        edges,
        number: vec![None; edges.len()],
        lowest: vec![0; edges.len()],
        open: vec![false; edges.len()],
        stack: Vec::new(),
        met: 0,
        found: Vec::new(),
    };
    for node in 0..edges.len() {
        if search.number[node].is_none() {
            search.from(node);
        }
    }
    search.found.sort_unstable();
    search.found
}

struct Search<'e> {
    edges: &'e [Vec<usize>],
    /// The order in which the search visited the nodes.
    number: Vec<Option<usize>>,
    /// The earliest open node that is known to be reachable from here.
    lowest: Vec<usize>,
    /// Whether the node's component is not complete yet.
    open: Vec<bool>,
    stack: Vec<usize>,
    met: usize,
    found: Vec<usize>,
}

impl Search<'_> {
    fn from(&mut self, root: usize) {
        // The path of the search, with the number of edges that were followed from each node.
        let mut way = Vec::new();
        self.meet(root, &mut way);
        while let Some((node, followed)) = way.last_mut() {
            let node = *node;
            if let Some(&target) = self.edges[node].get(*followed) {
                *followed += 1;
                match self.number[target] {
                    None => self.meet(target, &mut way),
                    Some(number) if self.open[target] => self.lowest[node] = self.lowest[node].min(number),
                    Some(_) => {}
                }
                continue;
            }
            way.pop();
            if let Some((before, _)) = way.last() {
                self.lowest[*before] = self.lowest[*before].min(self.lowest[node]);
            }
            if Some(self.lowest[node]) == self.number[node] {
                self.close(node);
            }
        }
    }

    fn meet(&mut self, node: usize, way: &mut Vec<(usize, usize)>) {
        (self.number[node], self.lowest[node], self.open[node]) = (Some(self.met), self.met, true);
        self.met += 1;
        self.stack.push(node);
        way.push((node, 0));
    }

    /// Completes a component: `first` and the nodes found after it.
    fn close(&mut self, first: usize) {
        let from = self.stack.iter().rposition(|node| *node == first).unwrap_or(0);
        let group = self.stack.split_off(from);
        group.iter().for_each(|node| self.open[*node] = false);
        if group.len() > 1 || self.edges[first].contains(&first) {
            self.found.extend(group.into_iter().min());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// The reference result: reachability is computed for every pair of nodes.
    fn slowly(edges: &[Vec<usize>]) -> Vec<usize> {
        let reached = |from: usize| {
            let (mut seen, mut ahead) = (vec![false; edges.len()], edges[from].clone());
            while let Some(node) = ahead.pop() {
                if !std::mem::replace(&mut seen[node], true) {
                    ahead.extend(&edges[node]);
                }
            }
            seen
        };
        let reached: Vec<_> = (0..edges.len()).map(reached).collect();
        let together = |one: usize, other: usize| reached[one][other] && reached[other][one];
        (0..edges.len())
            .filter(|node| together(*node, *node) && (0..*node).all(|lower| !together(lower, *node)))
            .collect()
    }

    proptest! {
        #[test]
        fn cycles_are_those_of_the_slow_search(edges in vec(vec(0..12_usize, 0..4), 12)) {
            prop_assert_eq!(lowest_of_cycles(&edges), slowly(&edges));
        }
    }

    #[test]
    fn a_long_way_needs_no_deep_stack() {
        let edges: Vec<Vec<usize>> = (0..200_000).map(|node| vec![(node + 1) % 200_000]).collect();
        assert_eq!(lowest_of_cycles(&edges), [0]);
    }
}
