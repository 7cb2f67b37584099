use proptest::prelude::*;

use super::{
    Arrow, Drawing, Graph, MOST_BOXES, Rect, Step, draw,
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

fn apart(a: &Rect, b: &Rect) -> bool {
    a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y
}

fn inside(drawing: &Drawing, rect: &Rect) -> bool {
    rect.x >= 0.0
        && rect.y >= 0.0
        && rect.x + rect.width <= drawing.width
        && rect.y + rect.height <= drawing.height
}

/// What has to be true of every drawing.
fn judge(graph: &Graph, drawing: &Drawing) {
    let labels: Vec<Rect> = drawing.lines.iter().filter_map(|line| line.label).collect();
    let all: Vec<Rect> = drawing.boxes.iter().copied().chain(labels).collect();
    for (n, rect) in all.iter().enumerate() {
        assert!(inside(drawing, rect), "{rect:?} sticks out");
        for other in &all[n + 1..] {
            assert!(apart(rect, other), "{rect:?} lies upon {other:?}");
        }
    }
    assert_eq!(drawing.lines.len(), graph.arrows.len());
    for (arrow, line) in graph.arrows.iter().zip(&drawing.lines) {
        let (from, to) = (drawing.boxes[arrow.from], drawing.boxes[arrow.to]);
        let end = line.steps.last().expect("a line goes somewhere").end();
        assert!((line.start.y - from.y - from.height).abs() < 0.01 && (end.y - to.y).abs() < 0.01);
        assert!((from.x..=from.x + from.width).contains(&line.start.x), "{line:?} leaves beside {from:?}");
        assert!((to.x..=to.x + to.width).contains(&end.x), "{line:?} arrives beside {to:?}");
        assert_eq!(line.label.is_some(), arrow.label > 0.0);
        let mut last = line.start;
        for step in &line.steps {
            let end = step.end();
            assert!(inside(drawing, &Rect { x: end.x, y: end.y, ..Rect::default() }), "{line:?} leaves");
            // A curve that goes up would be drawn over what is above.
            assert!(!matches!(step, Step::Curve(_)) || end.y > last.y, "{line:?} curves upwards");
            // Straight pieces run between boxes, never through them.
            if matches!(step, Step::To(_)) {
                let (x, y) = (last.x.min(end.x), last.y.min(end.y));
                let piece = Rect { x, y, width: (last.x - end.x).abs(), height: (last.y - end.y).abs() };
                assert!(drawing.boxes.iter().all(|one| apart(one, &piece)), "{piece:?} runs through a box");
            }
            last = end;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_overlaps_and_every_arrow_is_drawn(graph in graphs(1..25, 3)) {
        let drawing = draw(&graph).expect("it is small enough");
        judge(&graph, &drawing);
        prop_assert_eq!(&draw(&graph).expect("again"), &drawing, "the same graph looks the same");
    }

    #[test]
    fn without_cycles_every_arrow_goes_down(graph in graphs(1..25, 3)) {
        let mut graph = graph;
        graph.arrows.retain(|arrow| arrow.from < arrow.to);
        let drawing = draw(&graph).expect("it is small enough");
        for (arrow, line) in graph.arrows.iter().zip(&drawing.lines) {
            prop_assert!(!line.around);
            prop_assert!(drawing.boxes[arrow.from].y < drawing.boxes[arrow.to].y);
        }
    }
}

#[test]
fn two_hundred_states_are_drawn_with_bounded_work() {
    // A chain with shortcuts from everywhere to everywhere: as many and as long links as can be.
    let boxes = 200;
    let arrow = |n: usize| Arrow { from: n % boxes, to: (n * 7 + 1) % boxes, label: 30.0 };
    let chain = (1..boxes).map(|to| Arrow { from: to - 1, to, label: 0.0 });
    let graph = Graph { widths: vec![120.0; boxes], arrows: chain.chain((0..1000).map(arrow)).collect() };
    let layers = super::layers::of(&graph);
    let links = super::links(&graph, &layers);
    let rows = Rows::new(&graph, &layers, &links);
    // Work is by bends: some of the long links go around, so these are few.
    assert!(rows.spots.len() <= boxes + super::MOST_BENDS, "{} bends", rows.spots.len());
    assert!(links.iter().any(|link| link.around && layers[link.arrow.to] > layers[link.arrow.from]));
    judge(&graph, &draw(&graph).expect("it is drawn"));
}

#[test]
fn what_cannot_be_drawn_is_not() {
    let many = Graph { widths: vec![80.0; MOST_BOXES + 1], arrows: Vec::new() };
    assert_eq!(draw(&many), None);
    assert_eq!(draw(&Graph::default()), None);
    let arrow = Arrow { from: 0, to: 1, label: 0.0 };
    assert_eq!(draw(&Graph { widths: vec![80.0], arrows: vec![arrow] }), None);
}

#[test]
fn layers_are_longest_paths_and_crossings_are_undone() {
    // 0 leads to 1 and 2; 1 to 4, 2 to 3; 0 to 3 the long way is by 2; 4 leads back to 0.
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
    let drawing = draw(&graph).expect("it is small");
    assert!(drawing.lines[0].path().starts_with('M') && drawing.lines[5].path().contains('Q'));
}
