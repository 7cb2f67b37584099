//! The shipped files are valid: the examples, and every block of the guide.

use std::{fs, path::Path};

use signalbox_machine::{load, scenario};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_examples_pass_their_scenarios() {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("examples/machines")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".yaml") || name.ends_with(".test.yaml") {
            continue;
        }
        let file =
            load(&name, &fs::read_to_string(&path).unwrap()).unwrap_or_else(|refused| panic!("{refused}"));
        assert!(file.warnings.is_empty(), "{:?}", file.warnings);
        let beside = path.with_extension("test.yaml");
        let test = fs::read_to_string(&beside).unwrap();
        let outcomes = scenario::run(beside.to_str().unwrap(), &test, &file.machines);
        for outcome in outcomes.unwrap_or_else(|refused| panic!("{refused}")) {
            assert!(outcome.failed.is_none(), "{name}: {}: {}", outcome.name, outcome.failed.unwrap());
        }
        names.push(name);
    }
    names.sort();
    let all = ["approval.yaml", "canary.yaml", "drip.yaml", "nightly.yaml", "onboarding.yaml", "order.yaml"];
    assert_eq!(names, all);
}

#[test]
fn every_block_of_the_guide_is_valid_or_has_the_documented_problem() {
    let guide = fs::read_to_string(root().join("docs/machines.md")).unwrap();
    let (mut machines, mut blocks) = (Vec::new(), 0);
    for block in guide.split("\n```yaml").skip(1) {
        let (info, rest) = block.split_once('\n').unwrap();
        let body = rest.split("\n```").next().unwrap();
        blocks += 1;
        match info.trim() {
            "" => {
                let file = load("docs/machines.md", body).unwrap_or_else(|refused| panic!("{refused}"));
                assert!(file.warnings.is_empty(), "{:?}", file.warnings);
                machines = file.machines;
            }
            // Scenarios of the machine above them.
            "test" => {
                let outcomes = scenario::run("docs/machines.md", body, &machines);
                for outcome in outcomes.unwrap_or_else(|refused| panic!("{refused}")) {
                    assert!(outcome.failed.is_none(), "{}: {}", outcome.name, outcome.failed.unwrap());
                }
            }
            // A rejected block, whose first line contains the problem.
            "refused" => {
                let expected = body.lines().next().unwrap().trim_start_matches("# ");
                let refused = load("docs/machines.md", body).unwrap_err();
                assert!(refused.to_string().contains(expected), "{expected}: {refused}");
            }
            other => panic!("a block of kind {other:?}"),
        }
    }
    assert!(blocks >= 6, "{blocks}");
}
