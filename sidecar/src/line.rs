//! Parses one line of the access log.
//!
//! Two parsers return the same result. [`fast`] expects exactly the format of Signalbox's nginx configuration and works on
//! slices without allocating; it returns `None` at the first unexpected byte. [`slow`] uses serde_json and accepts any JSON
//! object with the fields, in any order and with older spellings (numbers in strings, no upstream status). The fast parser
//! never accepts a line that the slow one rejects, so both reject a line that a full disk truncated. A property test compares
//! the two.

use std::borrow::Cow;

use memchr::memchr;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The key of requests without a version type.
pub const UNCAUGHT: &str = "null";

/// A line with a larger value is damaged. The sum of a hundred thousand such lines must fit into the signed 64 bits of a
/// Redis counter.
const MAX_VALUE: u64 = 1 << 44;

/// The maximum length of a log key. It is an ID, and part of many Redis key names.
const MAX_KEY_BYTES: usize = 128;

/// The maximum number of instances that are counted per request.
pub const MAX_ANSWERS: usize = 8;

/// An instance that answered, and its response time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<'a> {
    /// `ip:port` or `unix:/path`.
    pub address: Cow<'a, str>,
    /// Milliseconds from the connection to the end of the answer.
    pub ms: u64,
}

/// The instances that answered one request. One instance, the usual case, needs no allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers<'a> {
    first: Option<Answer<'a>>,
    more: Vec<Answer<'a>>,
}

impl<'a> Answers<'a> {
    /// In the order of the tries; at most [`MAX_ANSWERS`].
    pub fn iter(&self) -> impl Iterator<Item = &Answer<'a>> {
        self.first.iter().chain(&self.more)
    }

    /// Parses three lists of nginx with one element per try. An instance that refused or closed the connection did not
    /// answer: nginx reports 502 for it (the instance's own 502 looks the same). An instance that timed out (504) took at
    /// least that long, so the histogram includes it.
    fn new(addresses: &'a [u8], times: &[u8], statuses: &[u8]) -> Self {
        if statuses.len() == 3 {
            return Self { first: answer(addresses, times, statuses), more: Vec::new() };
        }
        let count = tries(statuses).count();
        if tries(addresses).count() != count || tries(times).count() != count {
            return Self::default();
        }
        let tries = tries(addresses).zip(tries(times)).zip(tries(statuses));
        let mut answered =
            tries.filter_map(|((address, time), status)| answer(address, time, status)).take(MAX_ANSWERS);
        Self { first: answered.next(), more: answered.collect() }
    }

    fn into_owned(self) -> Answers<'static> {
        let owned =
            |answer: Answer<'a>| Answer { address: Cow::Owned(answer.address.into_owned()), ms: answer.ms };
        Answers { first: self.first.map(owned), more: self.more.into_iter().map(owned).collect() }
    }
}

/// The values of one request for the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// The version type id, or [`UNCAUGHT`], or `pacemaker`.
    pub key: Cow<'a, str>,
    /// The end of the request, in unix milliseconds.
    pub at_ms: u64,
    /// Bytes sent to the client.
    pub bytes: u64,
    /// The status code, or 0 if nginx had none.
    pub code: u16,
    /// Milliseconds from the first byte that nginx read to the last byte that it sent.
    pub nginx_ms: u64,
    /// Total milliseconds of all upstreams, or `None` if no upstream answered.
    pub upstream_ms: Option<u64>,
    /// Whether the edge answered without trying an instance: a policy decided, or there was no instance.
    pub by_edge: bool,
    /// The instances that answered.
    pub answers: Answers<'a>,
}

/// Parses a line without its newline. `None` means a bad line.
pub fn parse(line: &[u8]) -> Option<Record<'_>> {
    fast(line).or_else(|| slow(line))
}

/// Parses a line of exactly Signalbox's log format. `None` does not exclude other formats.
pub fn fast(line: &[u8]) -> Option<Record<'_>> {
    if !is_plain(line) {
        return None;
    }
    let (key, rest) = until_quote(line.strip_prefix(br#"{"key":""#)?)?;
    let (bytes, rest) = integer(rest.strip_prefix(br#","bytes":"#)?)?;
    let (code, rest) = integer(rest.strip_prefix(br#","code":"#)?)?;
    let (at_ms, rest) = milliseconds(rest.strip_prefix(br#","timemsec":"#)?)?;
    let (nginx_ms, rest) = milliseconds(rest.strip_prefix(br#","nginx_response_time":"#)?)?;
    let (times, rest) = until_quote(rest.strip_prefix(br#","upstream_response_time":""#)?)?;
    let (statuses, rest) = until_quote(rest.strip_prefix(br#","upstream_status":""#)?)?;
    let (addresses, rest) = until_quote(rest.strip_prefix(br#","upstream_addr":""#)?)?;
    // The slow parser decides about text that may be invalid UTF-8.
    if ![times, statuses, addresses].iter().all(|list| list.is_ascii()) {
        return None;
    }
    // The rest is not counted but must be complete, so that a truncated line is detected.
    let (_, rest) = until_quote(rest.strip_prefix(br#","time":""#)?)?;
    let (_, rest) = until_quote(rest.strip_prefix(br#","method":""#)?)?;
    let (_, rest) = until_quote(rest.strip_prefix(br#","host":""#)?)?;
    let (_, rest) = until_quote(rest.strip_prefix(br#","uri":""#)?)?;
    let (_, rest) = until_quote(rest.strip_prefix(br#","request_id":""#)?)?;
    if rest != b"}" {
        return None;
    }
    let key = std::str::from_utf8(key).ok()?;
    let answers = Answers::new(addresses, times, statuses);
    record(Cow::Borrowed(key), at_ms, bytes, code, nginx_ms, times, answered(statuses), answers)
}

/// Whether a line has no escapes and no control characters, so that every quote in it ends a string. Folding the bytes
/// instead of using `any` lets the compiler use vector instructions.
fn is_plain(line: &[u8]) -> bool {
    line.iter().fold(0u8, |odd, byte| odd | u8::from(*byte < 0x20) | u8::from(*byte == b'\\')) == 0
}

fn until_quote(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b'"', bytes)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// A JSON integer up to the next non-digit.
fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut at = 0;
    while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        value = value * 10 + u64::from(digit);
        at += 1;
        if at > 17 {
            return None;
        }
    }
    // JSON does not permit leading zeros. The slow parser decides about such a line.
    (at == 1 || (at > 1 && bytes[0] != b'0')).then_some((value, &bytes[at..]))
}

/// Seconds with exactly three decimals, as nginx writes them, in milliseconds.
fn milliseconds(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (seconds, rest) = integer(bytes)?;
    let [b'.', a, b, c, rest @ ..] = rest else { return None };
    let decimals = [a, b, c].map(|byte| byte.wrapping_sub(b'0'));
    // A fourth decimal would be dropped here and rounded by the other reader.
    if decimals.iter().any(|digit| *digit > 9) || rest.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let [a, b, c] = decimals.map(u64::from);
    Some((seconds.checked_mul(1000)? + a * 100 + b * 10 + c, rest))
}

#[expect(clippy::too_many_arguments, reason = "the fields of a line, each once")]
fn record<'a>(
    key: Cow<'a, str>,
    at_ms: u64,
    bytes: u64,
    code: u64,
    nginx_ms: u64,
    times: &[u8],
    answered: bool,
    answers: Answers<'a>,
) -> Option<Record<'a>> {
    let tried_ms = sum_of_times(times)?;
    if key.len() > MAX_KEY_BYTES || code > 999 || bytes.max(nginx_ms).max(at_ms) > MAX_VALUE {
        return None;
    }
    let key = if key.is_empty() { Cow::Borrowed(UNCAUGHT) } else { key };
    let (upstream_ms, by_edge) = (tried_ms.filter(|_| answered), tried_ms.is_none());
    Some(Record { key, at_ms, bytes, code: code as u16, nginx_ms, upstream_ms, by_edge, answers })
}

/// Whether any upstream in a `$upstream_status` list returned a status. nginx writes `-` for one that never answered; its
/// response time is then only the waiting time.
fn answered(statuses: &[u8]) -> bool {
    if let [a @ b'1'..=b'9', b, c] = statuses {
        return a.is_ascii_digit() && b.is_ascii_digit() && c.is_ascii_digit();
    }
    elements(statuses).any(|status| status.len() == 3 && status.iter().all(u8::is_ascii_digit))
}

/// The sum of a `$upstream_response_time` list; `Some(None)` when it holds no time, `None` when it is damaged.
fn sum_of_times(times: &[u8]) -> Option<Option<u64>> {
    if times == b"-" {
        return Some(None);
    }
    if let Some((single, b"")) = milliseconds(times) {
        return (single <= MAX_VALUE).then_some(Some(single));
    }
    let mut sum = None;
    for time in elements(times).filter(|time| !time.is_empty() && *time != b"-") {
        let total: u64 = sum.unwrap_or(0) + decimal_ms(std::str::from_utf8(time).ok()?)?;
        if total > MAX_VALUE {
            return None;
        }
        sum = Some(total);
    }
    Some(sum)
}

/// Splits a list of nginx, which separates tries by `, ` and internal redirects by ` : `.
fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b',' | b':')).map(<[u8]>::trim_ascii)
}

/// The elements of such a list, including empty ones (a try without an instance).
fn tries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = list.split(|byte| *byte == b' ').filter(|word| *word != b":");
    words.map(|word| word.strip_suffix(b",").unwrap_or(word))
}

/// The answer of an instance, if the three elements are valid and describe one.
fn answer<'a>(address: &'a [u8], time: &[u8], status: &[u8]) -> Option<Answer<'a>> {
    let (ms, b"") = milliseconds(time)? else { return None };
    let is_status = status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    // Rejects `-` and characters that would make an invalid key.
    let is_address = (3..=MAX_KEY_BYTES).contains(&address.len()) && address.iter().all(u8::is_ascii_graphic);
    if !is_status || status == b"502" || !is_address || ms > MAX_VALUE {
        return None;
    }
    Some(Answer { address: Cow::Borrowed(std::str::from_utf8(address).ok()?), ms })
}

/// Converts seconds in any spelling of a JSON number to milliseconds. A double represents today's unix time to the microsecond.
fn decimal_ms(text: &str) -> Option<u64> {
    if let Some((value, b"")) = milliseconds(text.as_bytes()) {
        return Some(value);
    }
    let value: f64 = text.parse().ok()?;
    let ms = (value * 1000.0).round();
    (0.0..=MAX_VALUE as f64).contains(&ms).then_some(ms as u64)
}

/// The used fields. The rest of the line is skipped and can contain any bytes, because a decoded URI may be invalid UTF-8.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    key: &'a RawValue,
    #[serde(borrow)]
    bytes: &'a RawValue,
    #[serde(borrow)]
    code: &'a RawValue,
    #[serde(borrow)]
    timemsec: &'a RawValue,
    #[serde(borrow)]
    nginx_response_time: &'a RawValue,
    #[serde(borrow, default)]
    upstream_response_time: Option<&'a RawValue>,
    #[serde(borrow, default)]
    upstream_status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    upstream_addr: Option<&'a RawValue>,
    #[serde(borrow, default)]
    upstream_header_time: Option<&'a RawValue>,
}

/// Parses any JSON object that has the fields.
pub fn slow(line: &[u8]) -> Option<Record<'_>> {
    let wire: Wire<'_> = serde_json::from_slice(line).ok()?;
    let times = wire.upstream_response_time.map_or(Some(Cow::Borrowed("-")), text)?;
    // Logs of versions that did not write the status: there, only the time shows whether an instance
    // answered.
    let statuses = wire.upstream_status.map_or(Some(Cow::Borrowed("200")), text)?;
    // When an instance refuses or times out, nginx lists a status of its own, but no time at which headers arrived. Lines of
    // requests that stayed on the hot path lack that list: nginx's own status would have led them off it.
    let headers = wire.upstream_header_time.map(text);
    let answered = match &headers {
        Some(times) => elements(times.as_ref()?.as_bytes()).any(|time| milliseconds(time).is_some()),
        None => answered(statuses.as_bytes()),
    };
    let addresses = wire.upstream_addr.map_or(Some(Cow::Borrowed("-")), text)?;
    let answers = Answers::new(addresses.as_bytes(), times.as_bytes(), statuses.as_bytes()).into_owned();
    record(
        text(wire.key)?,
        decimal_ms(&text(wire.timemsec)?)?,
        text(wire.bytes)?.parse().ok()?,
        text(wire.code)?.parse().ok()?,
        decimal_ms(&text(wire.nginx_response_time)?)?,
        times.as_bytes(),
        answered,
        answers,
    )
}

/// The text of a string, or a number, `null` or boolean as written. Lists and objects are rejected.
fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    match raw.get().as_bytes().first()? {
        b'"' => serde_json::from_str::<String>(raw.get()).ok().map(Cow::Owned),
        b'{' | b'[' => None,
        _ => Some(Cow::Borrowed(raw.get())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: &str = r#"{"key":"17","bytes":512,"code":200,"timemsec":1795267331.123,"nginx_response_time":0.005,"upstream_response_time":"0.004","upstream_status":"200","upstream_addr":"127.0.0.1:9001","time":"2026-11-21T13:22:11+00:00","method":"GET","host":"hello.localhost","uri":"/p","request_id":"4d1f"}"#;

    fn upstream_ms(times: &str, statuses: &str) -> Option<Option<u64>> {
        let line = OURS
            .replace("\"0.004\"", &format!("\"{times}\""))
            .replace("_status\":\"200", &format!("_status\":\"{statuses}"));
        let (fast, slow) = (fast(line.as_bytes()), slow(line.as_bytes()));
        assert!(fast.is_none() || fast == slow, "{line}");
        slow.map(|record| record.upstream_ms)
    }

    #[test]
    fn signalboxs_format_uses_the_fast_parser() {
        let wanted = Record {
            key: "17".into(),
            at_ms: 1_795_267_331_123,
            bytes: 512,
            code: 200,
            nginx_ms: 5,
            upstream_ms: Some(4),
            by_edge: false,
            answers: Answers {
                first: Some(Answer { address: "127.0.0.1:9001".into(), ms: 4 }),
                more: Vec::new(),
            },
        };
        assert_eq!(fast(OURS.as_bytes()), Some(wanted.clone()));
        assert_eq!(slow(OURS.as_bytes()), Some(wanted));
    }

    #[test]
    fn a_request_that_every_instance_refused_records_no_time() {
        for (headers, ms) in [("-", None), ("- : -, -", None), ("- : 0.002", Some(4)), ("0.000", Some(4))] {
            let line = OURS
                .replace("_status\":\"200", "_status\":\"502")
                .replace("\"4d1f\"}", &format!("\"4d1f\",\"upstream_header_time\":\"{headers}\"}}"));
            assert_eq!(fast(line.as_bytes()), None);
            assert_eq!(slow(line.as_bytes()).unwrap().upstream_ms, ms, "{headers}");
        }
    }

    #[test]
    fn the_upstream_status_decides_whether_a_time_counts() {
        for (times, statuses, ms) in [
            ("0.004", "200", Some(4)),
            ("0.000", "-", None),
            ("1.250", "-", None),
            ("-", "-", None),
            ("0.001, 0.002 : 0.003", "502, 504 : 200", Some(6)),
            ("0.001, 0.002", "502, 200", Some(3)),
            ("- : 0.003", "- : 200", Some(3)),
            ("0.000, -", "502, -", Some(0)),
            ("-", "200", None),
            ("", "", None),
        ] {
            assert_eq!(upstream_ms(times, statuses), Some(ms), "{times:?} {statuses:?}");
        }
        assert_eq!(upstream_ms("soon", "200"), None, "a damaged time is a bad line");
    }

    #[test]
    fn each_instance_that_answered_is_listed_with_its_own_time() {
        for (addresses, times, statuses, wanted) in [
            ("a:1, b:2", "0.001, 0.002", "502, 200", vec![("b:2", 2)]),
            ("a:1, b:2", "0.001, 0.002", "503, 200", vec![("a:1", 1), ("b:2", 2)]),
            (
                "a:1, b:2 : unix:/c",
                "0.001, 60.000 : 0.003",
                "502, 504 : 200",
                vec![("b:2", 60_000), ("unix:/c", 3)],
            ),
            ("a:1 :  : b:2", "0.001 : 0.000 : 0.004", "502 : 502 : 200", vec![("b:2", 4)]),
            ("a:1", "-", "-", vec![]),
            ("a:1", "0.010", "-", vec![]),
            ("-", "-", "-", vec![]),
            ("a:1, b:2", "0.001", "200, 200", vec![]),
        ] {
            let line = OURS
                .replace("\"0.004\"", &format!("\"{times}\""))
                .replace("_status\":\"200", &format!("_status\":\"{statuses}"))
                .replace("127.0.0.1:9001", addresses);
            let (fast, slow) = (fast(line.as_bytes()), slow(line.as_bytes()).unwrap());
            assert!(fast.is_none_or(|fast| fast == slow), "{line}");
            let found: Vec<_> = slow.answers.iter().map(|answer| (&*answer.address, answer.ms)).collect();
            assert_eq!(found, wanted, "{line}");
        }
    }

    #[test]
    fn older_and_other_spellings_are_accepted() {
        let seed = br#"{"time":"x","key":17,"bytes":"512","code":"404","upstream_response_time":"0.004","timemsec":"1795267331.123","nginx_response_time":0.0051,"more":[1,{}]}"#;
        let record = slow(seed).unwrap();
        assert_eq!((&*record.key, record.code, record.nginx_ms, record.upstream_ms), ("17", 404, 5, Some(4)));
        let unrouted = OURS.replace("\"17\"", "null");
        assert_eq!(parse(unrouted.as_bytes()).unwrap().key, UNCAUGHT);
    }

    #[test]
    fn a_decoded_uri_can_be_invalid_utf_8() {
        let mut line = OURS.as_bytes().to_vec();
        let at = line.windows(2).position(|pair| pair == b"/p").unwrap();
        line[at + 1] = 0xff;
        assert!(fast(&line).is_some());
        assert_eq!(fast(&line), slow(&line));
    }

    #[test]
    fn a_line_truncated_at_any_byte_is_bad() {
        for cut in 0..OURS.len() {
            assert_eq!(parse(&OURS.as_bytes()[..cut]), None, "{}", &OURS[..cut]);
            // The rest of the line is lost, and another line follows.
            let merged = [&OURS.as_bytes()[..cut], OURS.as_bytes()].concat();
            assert!(cut == 0 || parse(&merged).is_none(), "{}", String::from_utf8_lossy(&merged));
        }
    }

    #[test]
    fn both_parsers_reject_a_raw_control_character() {
        for control in ['\t', '\0', '\u{1f}'] {
            let line = OURS.replace("/p", &format!("/{control}"));
            assert_eq!((fast(line.as_bytes()), slow(line.as_bytes())), (None, None), "{control:?}");
        }
    }

    #[test]
    fn out_of_range_values_are_bad_lines() {
        for (from, to) in [
            ("512", "99999999999999999999"),
            ("512", "-1"),
            ("512", "007"),
            ("512", "99999999999999"),
            (":200,", ":1000,"),
            ("1795267331.123", "99999999999999.000"),
            ("0.005", "1e300"),
            ("\"17\"", "{}"),
            ("\"17\"", &format!("\"{}\"", "k".repeat(129))),
        ] {
            let line = OURS.replacen(from, to, 1);
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    prop_compose! {
        fn list(element: &'static str)(
            elements in proptest::collection::vec(element, 1..4),
            separators in proptest::collection::vec(prop_oneof![Just(", "), Just(" : ")], 3),
        ) -> String {
            elements.iter().enumerate().map(|(at, element)| {
                if at == 0 { element.clone() } else { format!("{}{element}", separators[at - 1]) }
            }).collect()
        }
    }

    prop_compose! {
        /// A line as nginx could write it.
        fn ours()(
            key in prop_oneof!["[0-9]{1,6}", Just("null".to_owned()), "[a-zé\\\\\"]{0,9}"],
            bytes in 0u64..1 << 45,
            code in prop_oneof![Just(0u16), 100u16..600, 600u16..1100],
            at_ms in 0u64..1 << 45,
            nginx_ms in 0u64..100_000,
            times in list("-|[0-9]{1,3}\\.[0-9]{3}"),
            statuses in list("-|[1-5][0-9]{2}"),
            uri in "/[a-z%\"\\\\ é]{0,20}",
        ) -> String {
            let text = |text: &str| serde_json::to_string(text).unwrap();
            format!(
                r#"{{"key":{},"bytes":{bytes},"code":{code},"timemsec":{}.{:03},"nginx_response_time":{}.{:03},"upstream_response_time":"{times}","upstream_status":"{statuses}","upstream_addr":"127.0.0.1:9001","time":"2026-11-21T13:22:11+00:00","method":"GET","host":"h","uri":{},"request_id":"4d1f"}}"#,
                text(&key), at_ms / 1000, at_ms % 1000, nginx_ms / 1000, nginx_ms % 1000, text(&uri),
            )
        }
    }

    proptest! {
        #[test]
        fn both_parsers_agree_on_lines_of_nginx(line in ours()) {
            let plain = !line.contains('\\');
            let (fast, slow) = (fast(line.as_bytes()), slow(line.as_bytes()));
            prop_assert_eq!(plain && slow.is_some(), fast.is_some(), "{}", line);
            prop_assert!(fast.is_none() || fast == slow);
        }

        /// The fast parser never accepts a line that the slow one rejects or parses differently.
        #[test]
        fn the_fast_parser_is_never_more_lenient(
            line in ours(),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 0..4),
        ) {
            let mut line = line.into_bytes();
            for (at, byte, kind) in edits {
                let at = at.index(line.len());
                match kind {
                    0 => line[at] = byte,
                    1 => line.insert(at, byte),
                    _ if line.len() > 1 => { line.remove(at); }
                    _ => {}
                }
            }
            if let Some(record) = fast(&line) {
                prop_assert_eq!(Some(record), slow(&line), "{}", String::from_utf8_lossy(&line));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
