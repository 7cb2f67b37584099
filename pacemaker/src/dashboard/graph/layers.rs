//! Assigns boxes to layers.

use super::Graph;

/// The layer of each box: one below the lowest box that leads to it, without arrows that close a cycle.
pub(super) fn of(graph: &Graph) -> Vec<usize> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); graph.widths.len()];
    for arrow in &graph.arrows {
        after[arrow.from].push(arrow.to);
    }
    let (order, place) = topological(&after);
    let mut layers = vec![0; after.len()];
    for one in order {
        for next in &after[one] {
            // An arrow to an earlier box closes a cycle.
            if place[*next] > place[one] {
                layers[*next] = layers[*next].max(layers[one] + 1);
            }
        }
    }
    layers
}

/// The boxes in topological order, and the place of each in it. Arrows that close a cycle in a depth-first search from the
/// first box are ignored.
fn topological(after: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let mut seen = vec![false; after.len()];
    let mut left = Vec::with_capacity(after.len());
    for first in 0..after.len() {
        if seen[first] {
            continue;
        }
        seen[first] = true;
        // The path to the current box, with the number of arrows followed from each.
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
