use proptest::prelude::*;

use super::{
    Arrow, Drawing, Graph, MAX_BOXES, Rect, Step, draw,
    order::{Link, Rows},
};

fn graphs(boxes: std::ops::Range<usize>, per_box: usize) -> impl Strategy<Value = Graph> {
    boxes.prop_flat_map(move |boxes| {
        let arrow = (0..boxes, 0..boxes, prop_oneof![Just(0.0), 20.0..160.0])
            .prop_map(|(from, to, label)| Arrow { from, to, label });
        (prop::collection::vec(80.0..240.0, boxes), prop::collection::vec(arrow, 0..boxes * per_box + 1))
            .prop_map(|(widths, arrows)| Graph { widths, arrows })
    })
}

fn disjoint(a: &Rect, b: &Rect) -> bool {
    a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y
}

fn inside(drawing: &Drawing, rect: &Rect) -> bool {
    rect.x >= 0.0
        && rect.y >= 0.0
        && rect.x + rect.width <= drawing.width
        && rect.y + rect.height <= drawing.height
}

/// Checks the invariants of every drawing.
fn check(graph: &Graph, drawing: &Drawing) {
    let labels: Vec<Rect> = drawing.lines.iter().filter_map(|line| line.label).collect();
    let all: Vec<Rect> = drawing.boxes.iter().copied().chain(labels).collect();
    for (n, rect) in all.iter().enumerate() {
        assert!(inside(drawing, rect), "{rect:?} is outside");
        for other in &all[n + 1..] {
            assert!(disjoint(rect, other), "{rect:?} overlaps {other:?}");
        }
    }
    assert_eq!(drawing.lines.len(), graph.arrows.len());
    for (arrow, line) in graph.arrows.iter().zip(&drawing.lines) {
        let (from, to) = (drawing.boxes[arrow.from], drawing.boxes[arrow.to]);
        let end = line.steps.last().expect("a line has a step").end();
        assert!((line.start.y - from.y - from.height).abs() < 0.01 && (end.y - to.y).abs() < 0.01);
        assert!((from.x..=from.x + from.width).contains(&line.start.x), "{line:?} starts outside {from:?}");
        assert!((to.x..=to.x + to.width).contains(&end.x), "{line:?} ends outside {to:?}");
        assert_eq!(line.label.is_some(), arrow.label > 0.0);
        let mut last = line.start;
        for step in &line.steps {
            let end = step.end();
            assert!(inside(drawing, &Rect { x: end.x, y: end.y, ..Rect::default() }), "{line:?} is outside");
            // A curve that leads up would cross the rows above.
            assert!(!matches!(step, Step::Curve(_)) || end.y > last.y, "{line:?} curves upwards");
            // Straight segments run between boxes, never through them.
            if matches!(step, Step::To(_)) {
                let (x, y) = (last.x.min(end.x), last.y.min(end.y));
                let segment = Rect { x, y, width: (last.x - end.x).abs(), height: (last.y - end.y).abs() };
                assert!(
                    drawing.boxes.iter().all(|one| disjoint(one, &segment)),
                    "{segment:?} runs through a box"
                );
            }
            last = end;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_overlaps_and_every_arrow_is_drawn(graph in graphs(1..25, 3)) {
        let drawing = draw(&graph).expect("the graph is small enough");
        check(&graph, &drawing);
        prop_assert_eq!(&draw(&graph).expect("the graph is small enough"), &drawing, "the same graph has the same drawing");
    }

    #[test]
    fn without_cycles_every_arrow_leads_down(graph in graphs(1..25, 3)) {
        let mut graph = graph;
        graph.arrows.retain(|arrow| arrow.from < arrow.to);
        let drawing = draw(&graph).expect("the graph is small enough");
        for (arrow, line) in graph.arrows.iter().zip(&drawing.lines) {
            prop_assert!(!line.around);
            prop_assert!(drawing.boxes[arrow.from].y < drawing.boxes[arrow.to].y);
        }
    }
}

#[test]
fn two_hundred_states_are_drawn_with_bounded_work() {
    // A chain with many long shortcuts.
    let boxes = 200;
    let arrow = |n: usize| Arrow { from: n % boxes, to: (n * 7 + 1) % boxes, label: 30.0 };
    let chain = (1..boxes).map(|to| Arrow { from: to - 1, to, label: 0.0 });
    let graph = Graph { widths: vec![120.0; boxes], arrows: chain.chain((0..1000).map(arrow)).collect() };
    let layers = super::layers::of(&graph);
    let links = super::links(&graph, &layers);
    let rows = Rows::new(&graph, &layers, &links);
    // The number of bends determines the work. Some long links run around, which limits it.
    assert!(rows.spots.len() <= boxes + super::MAX_BENDS, "{} bends", rows.spots.len());
    assert!(links.iter().any(|link| link.around && layers[link.arrow.to] > layers[link.arrow.from]));
    check(&graph, &draw(&graph).expect("the graph is small enough"));
}

#[test]
fn empty_large_and_invalid_graphs_are_not_drawn() {
    let many = Graph { widths: vec![80.0; MAX_BOXES + 1], arrows: Vec::new() };
    assert_eq!(draw(&many), None);
    assert_eq!(draw(&Graph::default()), None);
    let arrow = Arrow { from: 0, to: 1, label: 0.0 };
    assert_eq!(draw(&Graph { widths: vec![80.0], arrows: vec![arrow] }), None);
}

#[test]
fn layers_are_longest_paths_and_crossings_are_removed() {
    // The longest path from 0 to 3 is by 2, and 4 leads back to 0.
    let pairs = [(0, 1), (0, 2), (1, 4), (2, 3), (0, 3), (4, 0)];
    let arrows = pairs.map(|(from, to)| Arrow { from, to, label: 0.0 }).to_vec();
    let graph = Graph { widths: vec![100.0; 5], arrows };
    let layers = super::layers::of(&graph);
    assert_eq!(layers, [0, 1, 1, 2, 2]);
    let links: Vec<Link> = super::links(&graph, &layers);
    assert_eq!(links.iter().filter(|link| link.around).map(|link| link.arrow.from).collect::<Vec<_>>(), [4]);
    let mut rows = Rows::new(&graph, &layers, &links);
    assert!(rows.crossings() > 0);
    rows.uncross();
    assert_eq!(rows.crossings(), 0);
    let drawing = draw(&graph).expect("the graph is small enough");
    assert!(drawing.lines[0].path().starts_with('M') && drawing.lines[5].path().contains('Q'));
}
