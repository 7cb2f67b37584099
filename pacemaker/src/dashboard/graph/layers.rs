//! Who stands above whom.

use super::Graph;

/// The layer of each box: one more than the lowest of those that lead to it, not counting what leads back up.
pub(super) fn of(graph: &Graph) -> Vec<usize> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); graph.widths.len()];
    for arrow in &graph.arrows {
        after[arrow.from].push(arrow.to);
    }
    let (order, place) = topological(&after);
    let mut layers = vec![0; after.len()];
    for one in order {
        for next in &after[one] {
            // What comes earlier in the order closes a cycle.
            if place[*next] > place[one] {
                layers[*next] = layers[*next].max(layers[one] + 1);
            }
        }
    }
    layers
}

/// The boxes in an order in which all arrows go forward but those that close a cycle in a walk from the first box on,
/// and the place of each in it.
fn topological(after: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let mut seen = vec![false; after.len()];
    let mut left = Vec::with_capacity(after.len());
    for first in 0..after.len() {
        if seen[first] {
            continue;
        }
        seen[first] = true;
        // A box, and how many of its arrows were followed.
        let mut walk = vec![(first, 0)];
        while let Some((one, followed)) = walk.last_mut() {
            match after[*one].get(*followed) {
                Some(next) => {
                    *followed += 1;
                    if !seen[*next] {
                        seen[*next] = true;
                        walk.push((*next, 0));
                    }
                }
                None => {
                    left.push(*one);
                    walk.pop();
                }
            }
        }
    }
    left.reverse();
    let mut place = vec![0; after.len()];
    left.iter().enumerate().for_each(|(at, one)| place[*one] = at);
    (left, place)
}
