//! A second, simple implementation of the language: a tree that owns its values, and an evaluator without spans,
//! borrowing or optimizations. The crate is compared with it.

use jiff::{SignedDuration, Timestamp, civil};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::setting::Setting;

#[derive(Debug, Clone)]
pub(crate) enum Expr {
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Not(Box<Expr>),
    Compare(&'static str, Box<Expr>, Box<Expr>),
    Defined(&'static str, bool, Box<Expr>),
    In(&'static str, bool, Box<Expr>, Box<Expr>),
    Passed(&'static str, bool, Box<Expr>, Box<Expr>),
    Path(&'static str),
    Text(String),
    Number(Json),
    Duration(u32),
    Time(u32, u32, u32),
    Word(&'static str),
    List(Vec<Expr>),
    Parens(Box<Expr>),
}

/// A value in the model: JSON, plus times and instants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Val {
    Unknown,
    Json(Json),
    List(Vec<Val>),
    Time(civil::Time),
    Instant(Timestamp),
}

const PATHS: [&str; 20] = [
    "metadata",
    "metadata.n",
    "metadata.s",
    "metadata.t",
    "metadata.i",
    "metadata.list",
    "metadata.list.1",
    "metadata.o",
    "metadata.o.k",
    "metadata.missing",
    "metadata.yes",
    "metadata.f",
    "feeds.up.n",
    "feeds.down.x",
    "system.time",
    "system.now",
    "system.entered_state",
    "system.date",
    "system.weekday",
    "history.previous_state",
];

pub(crate) fn setting() -> Setting {
    let mut setting = Setting::with(json!({
        "n": 3, "s": "ab", "t": "18:30", "i": "2026-01-31T06:00:00Z", "list": [1, "ab", null, 18.5], "o": {"k": "a"},
        "yes": true, "f": 0.5,
    }));
    setting.feeds.values.insert("up".into(), json!({"n": 100}));
    setting.feeds.failed.push("down");
    setting
}

fn literal() -> impl Strategy<Value = Expr> {
    prop_oneof![
        prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(Expr::Word),
        prop_oneof![
            (-3_i64..5).prop_map(|n| json!(n)),
            any::<i64>().prop_map(|n| json!(n)),
            any::<u64>().prop_map(|n| json!(n)),
            (-8_i32..8).prop_map(|n| json!(f64::from(n) / 2.0)),
            any::<f64>().prop_filter("JSON has no other", |n| n.is_finite()).prop_map(|n| json!(n)),
        ]
        .prop_map(Expr::Number),
        (0..100_000_u32).prop_map(Expr::Duration),
        (0..24_u32, 0..60_u32, prop_oneof![Just(0), 0..60_u32]).prop_map(|(h, m, s)| Expr::Time(h, m, s)),
        prop_oneof![
            Just("a".to_owned()),
            Just("ab".to_owned()),
            Just(String::new()),
            Just("18:30".to_owned()),
            Just("2026-01-31T06:00:00Z".to_owned()),
            Just("k".to_owned()),
            any::<String>(),
        ]
        .prop_map(Expr::Text),
    ]
}

fn verb() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("is"), Just("has"), Just("was")]
}

/// A side of an operator, given the possible content of parentheses.
fn value(inner: impl Strategy<Value = Expr> + 'static) -> impl Strategy<Value = Expr> {
    prop_oneof![
        4 => proptest::sample::select(&PATHS[..]).prop_map(Expr::Path),
        3 => literal(),
        1 => prop::collection::vec(literal(), 0..4).prop_map(Expr::List),
        2 => inner.prop_map(|inner| Expr::Parens(Box::new(inner))),
    ]
    // Unboxed, the tree of strategies takes more stack than a test has.
    .boxed()
}

fn test(inner: BoxedStrategy<Expr>) -> BoxedStrategy<Expr> {
    let side = move || value(inner.clone()).prop_map(Box::new).boxed();
    let comparison = proptest::sample::select(&["=", "/=", "<", ">", "<=", ">="][..]);
    let bare = prop_oneof![
        2 => side().prop_map(|value| *value),
        3 => (comparison, side(), side()).prop_map(|(op, left, right)| Expr::Compare(op, left, right)),
        1 => (verb(), any::<bool>(), side()).prop_map(|(verb, not, value)| Expr::Defined(verb, not, value)),
        1 => (verb(), any::<bool>(), side(), side()).prop_map(|(verb, not, l, r)| Expr::In(verb, not, l, r)),
        1 => (verb(), any::<bool>(), side(), side()).prop_map(|(verb, not, l, r)| Expr::Passed(verb, not, l, r)),
    ]
    .boxed();
    (bare, 0..3_usize)
        .prop_map(|(test, nots)| (0..nots).fold(test, |test, _| Expr::Not(Box::new(test))))
        .boxed()
}

pub(crate) fn program() -> impl Strategy<Value = Expr> {
    let leaf = test(Just(Expr::Word("true")).boxed());
    leaf.prop_recursive(4, 40, 4, |inner| {
        let tests = prop::collection::vec(test(inner.clone()), 2..4).boxed();
        prop_oneof![test(inner), tests.clone().prop_map(Expr::All), tests.prop_map(Expr::Any)].boxed()
    })
}

/// As text, with whatever `gap` gives between tokens.
pub(crate) fn write(expr: &Expr, gap: &mut impl FnMut() -> &'static str) -> String {
    let mut joined = |exprs: &[Expr], joint: &str| {
        let texts: Vec<String> = exprs.iter().map(|expr| write(expr, gap)).collect();
        let gap = format!("{}{joint}{}", gap(), gap());
        texts.join(&gap)
    };
    let not = |not: &bool| if *not { " not" } else { "" };
    match expr {
        Expr::All(tests) => joined(tests, "and"),
        Expr::Any(tests) => joined(tests, "or"),
        Expr::List(literals) => {
            let texts: Vec<String> = literals.iter().map(|expr| write(expr, gap)).collect();
            format!("[{}]", texts.join(","))
        }
        Expr::Not(test) => format!("not{}{}", gap(), write(test, gap)),
        Expr::Compare(op, left, right) => {
            format!("{}{}{op}{}{}", write(left, gap), gap(), gap(), write(right, gap))
        }
        Expr::Defined(verb, no, value) => format!("{}{}{verb}{} defined", write(value, gap), gap(), not(no)),
        Expr::In(verb, no, left, right) => {
            format!("{}{}{verb}{} in{}{}", write(left, gap), gap(), not(no), gap(), write(right, gap))
        }
        Expr::Passed(verb, no, left, right) => {
            format!(
                "{}{}{verb}{} passed{}since {}",
                write(left, gap),
                gap(),
                not(no),
                gap(),
                write(right, gap)
            )
        }
        Expr::Path(path) => (*path).to_owned(),
        Expr::Text(text) => json!(text).to_string(),
        Expr::Number(number) => number.to_string(),
        Expr::Duration(seconds) => format!("{seconds}s"),
        Expr::Time(h, m, s) if *s == 0 => format!("{h}:{m:02}"),
        Expr::Time(h, m, s) => format!("{h:02}:{m:02}:{s:02}"),
        Expr::Word(word) => (*word).to_owned(),
        Expr::Parens(inner) => format!("({})", write(inner, gap)),
    }
}

/// The value of an expression: the reference, sentence by sentence.
pub(crate) fn eval(expr: &Expr, setting: &Setting) -> Val {
    let truth = |truth: Option<bool>| truth.map_or(Val::Unknown, |truth| Val::Json(json!(truth)));
    match expr {
        Expr::All(tests) => {
            let truths: Vec<_> = tests.iter().map(|test| counts(&eval(test, setting))).collect();
            truth(if truths.contains(&Some(false)) {
                Some(false)
            } else {
                (!truths.contains(&None)).then_some(true)
            })
        }
        Expr::Any(tests) => {
            let truths: Vec<_> = tests.iter().map(|test| counts(&eval(test, setting))).collect();
            truth(if truths.contains(&Some(true)) {
                Some(true)
            } else {
                (!truths.contains(&None)).then_some(false)
            })
        }
        Expr::Not(test) => truth(counts(&eval(test, setting)).map(|truth| !truth)),
        Expr::Parens(inner) => eval(inner, setting),
        Expr::Compare(op, left, right) => {
            let (left, right) = (eval(left, setting), eval(right, setting));
            if left == Val::Unknown || right == Val::Unknown {
                return Val::Unknown;
            }
            truth(match *op {
                "=" => Some(same(&left, &right)),
                "/=" => Some(!same(&left, &right)),
                op => less(&left, &right).zip(less(&right, &left)).map(|(less, more)| match op {
                    "<" => less,
                    ">" => more,
                    "<=" => !more,
                    _ => !less,
                }),
            })
        }
        Expr::Defined(_, not, value) => match eval(value, setting) {
            Val::Unknown => Val::Unknown,
            value => truth(Some((value != Val::Json(Json::Null)) != *not)),
        },
        Expr::In(_, not, left, right) => {
            let within = is_in(&eval(left, setting), &eval(right, setting));
            truth(within.map(|within| within != *not))
        }
        Expr::Passed(_, not, left, right) => {
            let (Val::Json(Json::Number(seconds)), Some(since)) =
                (eval(left, setting), instant(&eval(right, setting)))
            else {
                return Val::Unknown;
            };
            let passed = setting.now.duration_since(since);
            let wanted = seconds.as_i64().map(SignedDuration::from_secs).or_else(|| {
                seconds.as_f64().filter(|seconds| seconds.abs() < 1e12).map(SignedDuration::from_secs_f64)
            });
            let passed = wanted.map_or(seconds.as_f64() < Some(0.0), |wanted| passed >= wanted);
            truth(Some(passed != *not))
        }
        Expr::Path(path) => find(path, setting),
        Expr::Text(text) => Val::Json(json!(text)),
        Expr::Number(number) => Val::Json(number.clone()),
        Expr::Duration(seconds) => Val::Json(json!(seconds)),
        Expr::Time(h, m, s) => Val::Time(civil::time(*h as i8, *m as i8, *s as i8, 0)),
        Expr::Word(word) => Val::Json(serde_json::from_str(word).unwrap()),
        Expr::List(literals) => Val::List(literals.iter().map(|literal| eval(literal, setting)).collect()),
    }
}

fn find(path: &str, setting: &Setting) -> Val {
    let local = setting.now.to_zoned(setting.zone.clone());
    let pointer = |json: &Json, root: &str| {
        let pointer = path[root.len()..].replace('.', "/");
        Val::Json(json.pointer(&pointer).cloned().unwrap_or(Json::Null))
    };
    match path {
        "system.time" => Val::Time(local.time().round(jiff::Unit::Second).unwrap()),
        "system.date" => Val::Json(json!(local.date().to_string())),
        "system.weekday" => Val::Json(json!(local.strftime("%A").to_string().to_lowercase())),
        "system.now" => Val::Instant(setting.now),
        "system.entered_state" => Val::Instant(setting.entered),
        "history.previous_state" => Val::Json(json!(setting.previous)),
        "feeds.down.x" => Val::Unknown,
        "feeds.up.n" => pointer(&setting.feeds.values["up"], "feeds.up"),
        _ => pointer(&setting.metadata, "metadata"),
    }
}

pub(crate) fn counts(value: &Val) -> Option<bool> {
    Some(match value {
        Val::Unknown => return None,
        Val::Json(Json::Null) => false,
        Val::Json(Json::Bool(value)) => *value,
        Val::Json(Json::Number(number)) => number.as_f64() != Some(0.0),
        Val::Json(Json::String(text)) => !text.is_empty(),
        Val::Json(Json::Array(list)) => !list.is_empty(),
        Val::Json(Json::Object(object)) => !object.is_empty(),
        Val::List(list) => !list.is_empty(),
        Val::Time(_) | Val::Instant(_) => true,
    })
}

fn elements(value: &Val) -> Option<Vec<Val>> {
    match value {
        Val::List(list) => Some(list.clone()),
        Val::Json(Json::Array(list)) => Some(list.iter().cloned().map(Val::Json).collect()),
        _ => None,
    }
}

fn same(left: &Val, right: &Val) -> bool {
    if let (Some(left), Some(right)) = (elements(left), elements(right)) {
        return left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| same(left, right));
    }
    match (left, right) {
        (Val::Json(Json::Object(left)), Val::Json(Json::Object(right))) => {
            left.keys().eq(right.keys())
                && left
                    .iter()
                    .all(|(key, value)| same(&Val::Json(value.clone()), &Val::Json(right[key].clone())))
        }
        (Val::Json(Json::Null | Json::Bool(_)), _) => left == right,
        _ => less(left, right) == Some(false) && less(right, left) == Some(false),
    }
}

fn instant(value: &Val) -> Option<Timestamp> {
    match value {
        Val::Instant(instant) => Some(*instant),
        // Enough of RFC 3339 for what this model writes.
        Val::Json(Json::String(text))
            if text.len() == 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T' =>
        {
            text.parse().ok()
        }
        _ => None,
    }
}

fn time(value: &Val) -> Option<civil::Time> {
    match value {
        Val::Time(time) => Some(*time),
        Val::Json(Json::String(text)) if text.len() == 5 && text.as_bytes()[2] == b':' => text.parse().ok(),
        _ => None,
    }
}

/// Whether one comes before the other; none when they have no order.
fn less(left: &Val, right: &Val) -> Option<bool> {
    match (left, right) {
        (Val::Json(Json::Number(left)), Val::Json(Json::Number(right))) => Some(less_number(left, right)),
        (Val::Json(Json::String(left)), Val::Json(Json::String(right))) => {
            Some(left.chars().lt(right.chars()))
        }
        (Val::Instant(_), _) | (_, Val::Instant(_)) => Some(instant(left)? < instant(right)?),
        (Val::Time(_), _) | (_, Val::Time(_)) => Some(time(left)? < time(right)?),
        _ => None,
    }
}

/// By all decimal digits of both: slow, and beyond doubt.
fn less_number(left: &serde_json::Number, right: &serde_json::Number) -> bool {
    let digits = |number: &serde_json::Number| {
        let text = match number.as_f64() {
            // 1,100 places hold every float exactly.
            Some(float) if number.is_f64() => format!("{float:.1100}"),
            _ => format!("{number}.{}", "0".repeat(1100)),
        };
        let negative = text.starts_with('-');
        (negative, format!("{:0>1500}", text.trim_start_matches('-')))
    };
    let ((left_negative, left), (right_negative, right)) = (digits(left), digits(right));
    let zero = |text: &str| text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    match (left_negative && !zero(&left), right_negative && !zero(&right)) {
        (false, false) => left < right,
        (true, true) => left > right,
        (left, right) => left && !right,
    }
}

fn is_in(left: &Val, right: &Val) -> Option<bool> {
    if *left == Val::Unknown {
        return None;
    }
    if let Some(elements) = elements(right) {
        return Some(elements.iter().any(|element| same(left, element)));
    }
    match (left, right) {
        (Val::Json(Json::String(key)), Val::Json(Json::Object(object))) => Some(object.contains_key(key)),
        (Val::Json(Json::String(part)), Val::Json(Json::String(text))) => Some(text.contains(part.as_str())),
        _ => None,
    }
}
