//! Files: valid ones, and rejected ones with their messages.

use signalbox_machine::{
    definition::{Kind, Next, Trigger},
    load,
};

const DRIP: &str = r#"
state_machines:
  drip:
    timezone: {metadata: timezone, default: Europe/London}
    feeds:
      - {name: split_tests, url: "http://localhost:8001/user/<label>", on_error: {default: {}}}
    states:
      - gate: start
        exit_condition: |
          metadata.has_recommendations and   # pushed by the recommender
          12h has passed since system.entered_state and
          system.time >= 18:30
        triggers:
          - time: 18:30
          - metadata: has_recommendations
        next: send
      - action: send
        webhook: http://localhost:8002/send/<label>
        next:
          type: context
          path: feeds.split_tests.mail
          destinations: [{value: daily, state: start}, {value: 1, state: done}]
          default: done
      - gate: done
"#;

#[test]
fn a_machine_is_read() {
    let file = load("drip.yaml", DRIP).unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!(file.warnings, []);
    let [machine] = &*file.machines else { panic!("{:?}", file.machines) };
    assert_eq!((machine.name(), machine.states().len()), ("drip", 3));
    assert_eq!(&**machine.source(), DRIP);
    let gate = machine.initial().gate().unwrap();
    assert!(matches!(&*gate.triggers, [Trigger::Time(_), Trigger::Metadata(_)]));
    assert!(matches!(machine.state("send").unwrap().next(), Some(Next::Context { .. })));
    assert!(matches!(machine.state("done").unwrap().kind(), Kind::End));
}
