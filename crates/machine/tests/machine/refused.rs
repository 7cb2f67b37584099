//! Every refusal and every warning of a definition, with its place.

mod calls;

use signalbox_machine::{
    definition::{SecretNames, load_stored, load_with},
    load,
};

/// The problems of a text, each as `line:column message`.
fn problems(source: &str) -> Vec<String> {
    match load("m.yaml", source) {
        Ok(file) => panic!("accepted: {source}\n{:?}", file.warnings),
        Err(refused) => {
            for problem in &refused.problems {
                let line = source.lines().nth(problem.line - 1).unwrap_or_default();
                assert!(problem.source == line.trim_end_matches('\r'), "{problem}");
                assert!(problem.column + problem.length <= line.chars().count() + 2, "{problem}");
            }
            refused.problems.iter().map(|p| format!("{}:{} {}", p.line, p.column, p.message)).collect()
        }
    }
}

#[track_caller]
fn refused(source: &str, expected: &str) {
    let found = problems(source);
    assert!(found.iter().any(|problem| problem == expected), "expected {expected:?}, found {found:#?}");
}

/// A machine with these lines in place of its states; they begin on line 3.
fn states(lines: &str) -> String {
    format!("state_machines:\n  m: {{states: [\n{lines}\n]}}\n")
}

/// A gate with these keys in addition to its name; they begin on line 3, column 13.
fn gate(keys: &str) -> String {
    states(&format!("{{gate: one, {keys}}},\n{{gate: two}}"))
}

const OPEN: &str = "exit_condition: metadata.a, triggers: [{metadata: a}], next: two";

#[test]
fn the_gate_of_these_tests_is_valid() {
    let file = load("m.yaml", &gate(OPEN)).unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!(file.warnings, []);
}

#[test]
fn invalid_or_excessive_yaml() {
    for (source, expected) in [
        ("state_machines: [", "unexpected"),
        ("a: 1\na: 2\n", "the key `a` is repeated"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", "merge keys are not supported"),
        ("a: 1\n---\nb: 2\n", "a file can contain only one YAML document"),
    ] {
        let found = problems(source);
        assert!(
            found.iter().any(|problem| problem.contains(expected)) || expected == "unexpected",
            "{found:?}"
        );
    }
    assert!(problems("state_machines: !custom {}\n").len() == 1);
    refused("a: 1\n", "1:1 the file has no key `a`");
    refused("a: 1\n", "1:1 the file needs `state_machines`");
    refused("- 1\n", "1:1 the file must be a map, not a list");
    refused("state_machines: {}\n", "1:17 no state machine found");
    refused("state_machines: []\n", "1:17 `state_machines` must be a map");
    refused("state_machines: {m: {}}\n", "1:18 a state machine needs `states`");
    refused("state_machines: {m: {states: []}}\n", "1:30 a state machine needs at least one state");
    refused(
        "state_machines: {m n: {states: [{gate: a}]}}\n",
        "1:18 a state machine cannot be called \"m n\"",
    );
    assert!(load("m.yaml", &"#".repeat(1_048_577)).is_err());
}

#[test]
fn keys_that_there_are_not() {
    for (key, hint) in [
        ("plugins", "plugins are not supported: external data comes as metadata or from feeds"),
        ("placeholders", "the placeholders are fixed: <label>, <state_machine> and <metadata.PATH>"),
        ("feed", "did you mean `feeds`?"),
    ] {
        let source = format!("state_machines:\n  m:\n    {key}: []\n    states: [{{gate: a}}]\n");
        let error = load("m.yaml", &source).unwrap_err();
        let [problem] = &*error.problems else { panic!("{error}") };
        assert_eq!((problem.line, problem.column, problem.length), (3, 5, key.len()));
        assert_eq!(problem.message, format!("a state machine has no key `{key}`"));
        assert_eq!(problem.hint.as_deref(), Some(hint));
    }
    refused(&gate(&format!("{OPEN}, exit: 1")), "3:79 a gate has no key `exit`");
}

#[test]
fn a_problem_is_shown_with_its_line_and_a_caret() {
    let error = load("drip.yaml", &gate("exit_condition: metadata.a, triggers: [{metadata: a}], next: tow"));
    let text = error.unwrap_err().to_string();
    let expected = "drip.yaml:3:74: unknown state `tow`\n\
        {gate: one, exit_condition: metadata.a, triggers: [{metadata: a}], next: tow},\n\
        \u{20}                                                                        ^^^\n\
        hint: did you mean `two`?";
    assert_eq!(text, expected);
}

#[test]
fn states_that_are_none() {
    refused(&states("1"), "3:1 a state must be a map");
    refused(&states("{name: a}"), "3:2 a state needs `gate` or `action`");
    refused(&states("{gate: a, action: b}"), "3:11 a state cannot be both a gate and an action");
    refused(&states("{gate: a},\n{gate: a}"), "4:8 a state named `a` exists already");
    refused(&states("{gate: a},\n{gate: b}"), "4:8 no label can reach `b`");
    refused(&states("{gate: a b}"), "3:8 a gate cannot be called \"a b\"");
    refused(
        &states("{gate: on}"),
        "3:8 `on` without quotes is ambiguous: some programs read a boolean, others a text",
    );
    refused(&states("{gate: 1}"), "3:8 a gate must be a text, not a number");
    refused(&states("{gate: true}"), "3:8 a gate must be a text, not a boolean");
    refused(
        &gate("exit_condition: metadata.a, next: two"),
        "3:13 this gate has `exit_condition` and `next`, but no `triggers`",
    );
}

#[test]
fn triggers_that_are_none() {
    let with =
        |triggers: &str| gate(&format!("exit_condition: metadata.a, next: two, triggers: [{triggers}]"));
    refused(&with("{}"), "3:63 a trigger needs one of metadata, time, cron, interval, at, event, topic");
    refused(
        &with("{metadata: a, time: 18:30}"),
        "3:77 a trigger has exactly one kind, but this one has metadata and time",
    );
    refused(&with("{time: 25:00}"), "3:70 `time` must be a time of day");
    refused(&with("{time: 24h}"), "3:70 `time` must be a time of day");
    refused(&with("{time: 18:30, timezone: Mars/Olympus}"), "3:87 unknown time zone \"Mars/Olympus\"");
    refused(&with("{interval: 0s}"), "3:74 `interval` must be from 1s to 365d");
    refused(&with("{interval: 60}"), "3:74 `interval` must be a duration");
    refused(&with("{interval: 5m, grace: 1h}"), "3:78 `grace` belongs to `time` and `cron` only");
    refused(
        &with("{cron: '0 9 * *'}"),
        "3:70 a cron expression has five fields: minute, hour, day, month and weekday",
    );
    refused(
        &with("{cron: '0 25 * * *'}"),
        "3:70 `25` is not a valid hour: write * or 0 to 23, with `,`, `-` and `/`",
    );
    refused(&with("{cron: '0 9 * * *', days: [monday]}"), "3:83 `days` belongs to `time` only");
    refused(
        &with("{time: 09:00, days: [someday]}"),
        "3:83 `someday` is neither a weekday such as monday, nor 1 to 31, nor last",
    );
    refused(
        &with("{time: 09:00, days: [monday, 1]}"),
        "3:83 `days` has either weekdays or days of the month",
    );
    refused(&with("{event: exit}"), "3:71 unknown event `exit`");
    refused(&with("{topic: orders}"), "3:71 no input takes events of orders");
    refused(&with("{topic: Orders}"), "3:71 invalid topic name \"Orders\"");
    refused(&with("{topic: signalbox.audit}"), "3:71 no input takes events of signalbox.audit");
    refused(
        &with("{metadata: 'a..b'}"),
        "3:74 `metadata` must be a path below metadata: a key must follow this dot",
    );
    for sound in [
        "{time: 18h30m}",
        "{time: 9:05}",
        "{time: 18:30:15, timezone: metadata.zone, grace: 0s}",
        "{interval: 1s}",
    ] {
        load("m.yaml", &with(sound)).unwrap_or_else(|refused| panic!("{refused}"));
    }
}

#[test]
fn gates_that_can_never_open() {
    let with = |condition: &str, triggers: &str| {
        gate(&format!("next: two, exit_condition: {condition}, triggers: [{triggers}]"))
    };
    let never = |condition: &str, triggers: &str| {
        let found = problems(&with(condition, triggers));
        assert!(found.iter().any(|problem| problem.contains("can never")), "{condition} {found:?}");
    };
    never("system.time > 18:30", "{metadata: a}");
    never("1h has passed since system.entered_state", "{event: entry}");
    never("metadata.a or 1h has passed since metadata.b", "{metadata: a}");
    never("metadata.a.b", "{metadata: c}");
    never("metadata.a.b", "{metadata: a.c}");
    never("metadata.a", "{event: entry}");
    let feeds = "state_machines: {m: {feeds: [{name: f, url: 'http://h/'}], states: [\n{gate: one, exit_condition: feeds.f.x, triggers: [{event: entry}], next: two}, {gate: two}]}}\n";
    refused(
        feeds,
        "2:40 a label that does not pass this gate on entry can never leave it without an update: it reads feeds.f, and no trigger evaluates it again",
    );
    for (condition, triggers) in [
        ("metadata.a.b", "{metadata: a}"),
        ("metadata.a.b", "{metadata: a.b}"),
        ("metadata.a.b", "{metadata: a.b.c}"),
        ("metadata.a.b", "{metadata: metadata}"),
        ("metadata.a.b", "{interval: 1m}"),
        ("system.time > 18:30", "{time: 18:30}"),
        ("history.previous_state = 'two'", "{event: entry}"),
        ("true", "{event: entry}"),
    ] {
        load("m.yaml", &with(condition, triggers)).unwrap_or_else(|refused| panic!("{refused}"));
    }
}

#[test]
fn transitions_that_lead_nowhere() {
    let with =
        |next: &str| gate(&format!("exit_condition: metadata.a, triggers: [{{metadata: a}}], next: {next}"));
    refused(&with("three"), "3:74 unknown state `three`");
    refused(&with("{state: two}"), "3:75 `next` needs `type`");
    refused(&with("{type: jump}"), "3:81 unknown transition type `jump`");
    refused(
        &with("{type: constant, state: two, default: two}"),
        "3:103 a transition of type `constant` has no `default`",
    );
    refused(
        &with("{type: context, path: metadata.b, destinations: []}"),
        "3:75 a transition of type `context` needs `default`",
    );
    refused(
        &with("{type: condition, branches: [{when: metadata.b, state: two}]}"),
        "3:75 a transition of type `condition` needs `default`",
    );
    let context = |values: &str| {
        with(&format!("{{type: context, path: metadata.b, default: two, destinations: [{values}]}}"))
    };
    refused(
        &context("{value: 1, state: two}, {value: 1.0, state: one}"),
        "3:169 the value 1.0 has a destination already",
    );
    refused(
        &context("{value: yes, state: two}"),
        "3:145 `yes` without quotes is ambiguous: some programs read a boolean, others a text",
    );
    load("m.yaml", &context("{value: 'yes', state: two}, {value: true, state: one}, {value: 1, state: one}, {value: '1', state: one}"))
        .unwrap_or_else(|refused| panic!("{refused}"));
    refused(
        &with("{type: context, path: metdata.b, destinations: [], default: two}"),
        "3:96 no path begins with `metdata`",
    );
    refused(
        &with("{type: context, path: feeds.x.y, destinations: [], default: two}"),
        "3:96 unknown feed `x`",
    );
}

#[test]
fn conditions_are_underlined_in_their_line() {
    let block = |lines: &str| {
        format!(
            "state_machines:\n  m:\n    states:\n      - gate: one\n        triggers: [{{interval: 1m}}]\n        next: two\n        exit_condition: {lines}\n      - gate: two\n"
        )
    };
    refused(&block("metadata.a == 1"), "7:36 `==` is not a valid operator");
    refused(&block("\"metadata.a == 1\""), "7:37 `==` is not a valid operator");
    refused(&block("'metadata.a = ''x'' == 1'"), "7:45 `==` is not a valid operator");
    refused(
        &block("|\n          metadata.a and\n            metadata.b == 1"),
        "9:24 `==` is not a valid operator",
    );
    refused(
        &block("|-  # why\n\n          metadata.a and   # because\n          feeds.x"),
        "10:11 unknown feed `x`",
    );
    refused(&block(">\n          metadata.a and\n          metdata.b"), "9:11 no path begins with `metdata`");
    refused(&block("metadata.a and\n          metdata.b"), "8:11 no path begins with `metdata`");
    refused(
        &block(">\n          metadata.a and  # because\n          metadata.b"),
        "8:27 everything after this `#` would be a comment, because YAML joins these lines",
    );
    refused(
        &block("metadata.a#x"),
        "7:35 everything after this `#` would be a comment, because YAML joins these lines",
    );
    refused(
        &block("\"metadata.a # x\n          and metadata.b\""),
        "7:37 everything after this `#` would be a comment, because YAML joins these lines",
    );
    refused(&block("[1]"), "7:25 a condition must be a text, true or false, not a list");
    refused(&block("foo"), "7:25 `foo` is not known here");
    load("m.yaml", &block("|\n          # first\n          metadata.a  # and last"))
        .unwrap_or_else(|refused| panic!("{refused}"));
    load("m.yaml", &block("\"metadata.a # x\\nand metadata.b\""))
        .unwrap_or_else(|refused| panic!("{refused}"));
}

#[test]
fn all_problems_are_reported_together_and_in_order() {
    let source = "state_machines:\n  m:\n    timezone: Nowhere\n    feeds: [{name: stats, url: x}]\n    states:\n      - gate: a\n        next: b\n";
    let lines: Vec<String> = problems(source);
    assert_eq!(lines.len(), 5, "{lines:#?}");
    let places = lines.iter().map(|line| line.split(' ').next().unwrap());
    assert_eq!(places.collect::<Vec<_>>(), ["3:15", "4:20", "4:32", "7:9", "7:15"]);
}

#[test]
fn a_machine_is_checked_as_a_whole_although_a_state_is_invalid() {
    let found = problems(&states(
        "{gate: a, exit_condition: metadata.x =, triggers: [{metadata: x}], next: b},\n\
         {gate: b, exit_condition: metadata.x, triggers: [{metadata: y}], next: c},\n{gate: c},\n{gate: nowhere}",
    ));
    for part in ["4:", "this gate can never open", "no label can reach `nowhere`"] {
        assert!(found.iter().any(|problem| problem.contains(part)), "{part}: {found:?}");
    }
    assert!(!found.iter().any(|problem| problem.contains("`b`")), "{found:?}");
}

#[test]
fn unusual_definitions_cause_warnings() {
    let warned = |source: &str| -> Vec<String> {
        let file = load("m.yaml", source).unwrap_or_else(|refused| panic!("{refused}"));
        file.warnings.iter().map(|p| format!("{}:{} {}", p.line, p.column, p.message)).collect()
    };
    let found =
        warned(&gate("exit_condition: metadata.a and metadata.b, triggers: [{metadata: a}], next: two"));
    assert_eq!(found, ["3:56 no trigger names metadata.b, which the condition reads"]);
    let found = warned(&gate("exit_condition: true, triggers: [{event: entry}], next: two"));
    assert_eq!(found, ["3:29 the condition is always true"]);
    let found = warned(&states(
        "{gate: a, exit_condition: metadata.x = null, triggers: [{event: entry}, {metadata: x}], next: b},\n\
         {gate: b, exit_condition: metadata.x = null, triggers: [{event: entry}, {metadata: x}], next: a}",
    ));
    assert_eq!(found, ["3:8 labels can loop from `a` back to it without any action"]);
    let found = warned(&states(
        "{action: a, webhook: 'http://h/', next: b},\n{action: b, webhook: 'http://h/', next: a}",
    ));
    assert_eq!(found, ["3:10 labels can loop from `a` back to it without waiting, and repeat its actions"]);
    let found = warned(&gate("exit_condition: metadata.a, triggers: [], next: two"));
    let message = "this gate has no trigger: only an operator opens it (signalbox labels evaluate, or move)";
    assert!(found.iter().any(|warning| warning.contains(message)), "{found:?}");
}

#[test]
fn equal_machines_have_one_hash_and_one_source() {
    let one = "state_machines: {m: {states: [{gate: a}]}} # comment\n";
    let same = "state_machines:\n  m:\n    states:\n      - {\"gate\": a}\n";
    let other = "state_machines: {m: {states: [{gate: b}]}}\n";
    let both = "state_machines: {m: {states: [{gate: a}]}, n: {states: [{gate: b}]}}\n";
    let load = |source: &str| load("m.yaml", source).unwrap().machines;
    assert_eq!(load(one)[0].hash(), load(same)[0].hash());
    assert_ne!(load(one)[0].hash(), load(other)[0].hash());
    assert_eq!(load(one)[0].hash(), load(both)[0].hash());
    for machine in load(both) {
        // Each of several machines has a separate text.
        let again = &load(machine.source())[0];
        assert_eq!((again.name(), again.hash()), (machine.name(), machine.hash()));
    }
}

/// On a stack as small as that of any thread of a daemon: one overflow ends the whole process.
#[test]
fn deep_files_are_refused_and_overflow_nothing() {
    let nested =
        |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    let block = (0..1_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<String>();
    let deep = [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
        nested("[", "]", 100_000),
        nested("{a: ", "}", 40),
        nested("[", "]", 40),
        block,
        format!("state_machines: {{m: {{states: {}}}}}", nested("[", "]", 33)),
    ];
    // As deep as is allowed.
    let shallow = format!("state_machines: {{m: {{states: {}}}}}", nested("[", "]", 29));
    let judged = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        for source in &deep {
            let refused = load("m.yaml", source).unwrap_err();
            assert_eq!(refused.problems.len(), 1, "{}", &refused.problems[0].message);
        }
        load("m.yaml", &shallow).unwrap_err().problems[0].message.clone()
    });
    let message = judged.unwrap().join().unwrap();
    assert!(message.contains("a state must be a map"), "{message}");
}

#[test]
fn aliases_of_aliases_do_not_fill_the_memory() {
    let mut source = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for n in 1..12 {
        let last = n - 1;
        let items = vec![format!("*a{last}"); 10].join(", ");
        source.push_str(&format!("a{n}: &a{n} [{items}]\n"));
    }
    assert_eq!(problems(&source).len(), 1);
}

/// Mistakes in one long line: each shown with its line, these would be gigabytes.
#[test]
fn of_very_many_problems_the_first_are_reported() {
    for item in ["1,", "{gate: a},", "{gate: b, x: 1},", "{gate: 7, next: [[]]},"] {
        let source = |count: usize| format!("state_machines: {{m: {{states: [{}]}}}}", item.repeat(count));
        let few = load("m.yaml", &source(1_000)).unwrap_err();
        let many = load_stored("m.yaml", &source(300_000 / item.len())).unwrap_err();
        // A line of up to 4 KiB is shown.
        for (refused, bytes) in [(few, 500_000), (many, 100_000)] {
            let shown = refused.to_string();
            assert_eq!(refused.problems.len(), 100);
            assert!(shown.len() < bytes, "{} bytes", shown.len());
            assert!(shown.starts_with("m.yaml:1:"), "{}", &shown[..200]);
        }
    }
}

/// A machine with this number of gates, one after the other.
fn ring(count: usize) -> String {
    let gate = |n: usize| {
        let next = (n + 1) % count;
        format!("{{gate: s{n}, exit_condition: metadata.a, triggers: [{{metadata: a}}], next: s{next}}},\n")
    };
    states(&(0..count).map(gate).collect::<String>())
}

#[test]
fn a_machine_with_more_than_a_thousand_states_is_refused() {
    load("m.yaml", &ring(1_000)).unwrap();
    for count in [1_001, 2_000] {
        let expected = format!("1003:1 a state machine can have at most 1000 states, not {count}");
        assert_eq!(problems(&ring(count)), [&*expected]);
        let none = SecretNames::new();
        let refused = load_with("m.yaml", &ring(count), Some("m"), &none).unwrap_err();
        assert_eq!((refused.problems[0].line, refused.problems.len()), (1_003, 1));
    }
}

/// An earlier version has accepted it. What grows as the square of the states would take minutes.
#[test]
fn a_stored_machine_with_more_than_a_thousand_states_can_be_read() {
    let file = load_stored("m", &ring(11_000)).unwrap();
    assert_eq!(file.machines[0].states().len(), 11_000);
    let misspelled = load_stored("m", &ring(2_000).replace("next: s", "next: t")).unwrap_err();
    assert_eq!(misspelled.problems.len(), 100);
}

#[test]
fn triggers_of_an_end_state_are_checked() {
    let end = |triggers: &str| states(&format!("{{gate: one, exit_condition: false, triggers: {triggers}}}"));
    for triggers in ["5", "[{blah: baz}]", "[{metadata: \"foo.bar+\"}]", "[{interval: 1d22389h1d}]"] {
        let found = problems(&end(triggers));
        assert!(found.iter().all(|problem| problem.starts_with("3:")), "{triggers}: {found:?}");
    }
    let file = load("m.yaml", &end("[{metadata: a}]")).unwrap();
    assert!(
        file.warnings.iter().any(|warning| warning.message.contains("do nothing")),
        "{:?}",
        file.warnings
    );
}

#[test]
fn too_many_patterns_of_webhooks_are_refused() {
    let entry = "    - {match: \"[a-z]{1,40}x\", headers: {a: b}}\n";
    let text =
        format!("state_machines:\n  m:\n    states: [{{gate: one}}]\n    webhooks:\n{}", entry.repeat(1_500));
    let found = problems(&text);
    assert!(found[0].ends_with("`webhooks` must have between 0 and 32 entries"), "{found:?}");
    assert_eq!(found.len(), 1, "its entries are not read");
}
