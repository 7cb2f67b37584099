//! Any line: both parsers agree, and nothing that a line contains leads to an invalid record.

use signalbox_sidecar::line::{MAX_ANSWERS, fast, parse, slow};
use signalbox_testkit::Fuzz;

const EXAMPLES: [&[u8]; 5] = [
    br#"{"key":"17","bytes":512,"code":200,"timemsec":1795267331.123,"nginx_response_time":0.005,"upstream_response_time":"0.004","upstream_status":"200","upstream_addr":"127.0.0.1:9001","time":"2026-11-21T13:22:11+00:00","method":"GET","host":"hello.localhost","uri":"/p","request_id":"4d1f"}"#,
    br#"{"key":"shop-1","bytes":0,"code":504,"timemsec":1795267331.000,"nginx_response_time":60.001,"upstream_response_time":"0.001, 60.000 : 0.003","upstream_status":"502, 504 : 200","upstream_addr":"127.0.0.1:9001, [::1]:2 : unix:/run/a.sock","time":"2026-11-21T13:22:11+00:00","method":"POST","host":"a","uri":"/\"\\u00e9","request_id":"0"}"#,
    br#"{"key":null,"bytes":"1","code":"404","timemsec":"1795267331.1234","nginx_response_time":0.0051,"more":[1,{}]}"#,
    br#"{"key":"","bytes":1,"code":0,"timemsec":1.000,"nginx_response_time":0.000,"upstream_response_time":"-","upstream_status":"-","upstream_addr":"-","time":"","method":"","host":"","uri":"","request_id":""}"#,
    // The fast parser accepted invalid UTF-8 in a list that it does not split.
    b"{\"key\":\"\",\"bytes\":1,\"code\":0,\"timemsec\":1.000,\"nginx_response_time\":0.000,\"upstream_response_time\":\"-\",\"upstream_status\":\"-\xcb\",\"upstream_addr\":\"-\",\"time\":\"\",\"method\":\"\",\"host\":\"\",\"uri\":\"\",\"request_id\":\"\"}",
];

const WORDS: [&str; 24] = [
    "\"",
    "\\",
    "\\u0022",
    "\\ud800",
    "{",
    "}",
    "[",
    ",",
    " : ",
    ", ",
    "-",
    "0.004",
    "1e300",
    "-1",
    "007",
    "18446744073709551616",
    "200",
    "502",
    "\"key\":",
    "\"upstream_addr\":\"",
    "\"bytes\":",
    "null",
    "pacemaker",
    "\u{e9}",
];

#[test]
fn fuzz_access_log_lines() {
    let mut fuzz = Fuzz::new("access log lines", EXAMPLES, &WORDS);
    while let Some(line) = fuzz.input() {
        // The follower splits at newlines.
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let shown = String::from_utf8_lossy(line);
        let (fast, slow) = (fast(line), slow(line));
        assert!(fast.is_none() || fast == slow, "{shown}");
        assert_eq!(parse(line), slow, "{shown}");
        let Some(record) = slow else { continue };
        assert!((1..=128).contains(&record.key.len()) && record.code < 1000, "{shown}");
        assert!(record.answers.iter().count() <= MAX_ANSWERS, "{shown}");
        for answer in record.answers.iter() {
            assert!(answer.address.bytes().all(|byte| byte.is_ascii_graphic()), "{shown}");
        }
        fuzz.accepted();
    }
}
