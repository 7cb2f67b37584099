//! A page of the documentation, as a list of what can be typed.
//!
//! | fence | meaning |
//! |---|---|
//! | `sh` | lines for a shell; a comment behind them that begins like an answer (`# 201 {…`) is what they print |
//! | `console` | `$ command`, and below it what it prints |
//! | anything else | not to be typed; commands in a fence without a language are refused |
//!
//! HTML comments, which readers do not see, hold the rest: `<!-- not run: why -->` before a fence
//! whose commands need something that a test does not have; `<!-- first: … -->` with commands that
//! readers of the page have run earlier, or need not run.

/// Commands and the output that the page shows for them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// From 1.
    pub(super) line: usize,
    pub(super) commands: String,
    /// Nothing when the page shows nothing.
    pub(super) shown: String,
}

/// Line starts that a reader could take for a command.
const COMMANDS: [&str; 12] = [
    "$ ",
    "signalbox ",
    "curl ",
    "make ",
    "docker ",
    "redis-cli ",
    "cargo ",
    "apt ",
    "systemctl ",
    "openssl ",
    "redis-check-aof ",
    "key=",
];

/// All steps of a page, in order.
///
/// # Panics
/// When a fence has commands and is neither `sh`, `console` nor excused, or an excuse has no reason.
pub(super) fn steps(page: &str, text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let mut excused = false;
    while let Some((at, line)) = lines.next() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("<!--") {
            let mut comment = comment.to_owned();
            while !comment.contains("-->") {
                let (_, more) =
                    lines.next().unwrap_or_else(|| panic!("{page}:{at}: a comment without an end"));
                comment = format!("{comment}\n{more}");
            }
            let comment = comment.trim().trim_end_matches("-->").trim();
            if let Some(why) = comment.strip_prefix("not run:") {
                assert!(why.trim().len() > 5, "{page}:{at}: why is it not run?");
                excused = true;
            } else if let Some(commands) = comment.strip_prefix("first:") {
                steps.push(Step { line: at, commands: commands.trim().to_owned(), shown: String::new() });
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let body: Vec<(usize, &str)> =
                lines.by_ref().take_while(|(_, line)| !line.trim_start().starts_with("```")).collect();
            match language.trim() {
                "sh" if !excused => steps.extend(script(&body)),
                "console" if !excused => steps.extend(console(&body)),
                "" if !excused => {
                    let typed = body.iter().find(|(_, line)| {
                        COMMANDS.iter().any(|command| line.trim_start().starts_with(command))
                    });
                    assert!(
                        typed.is_none(),
                        "{page}: a command in a fence that is neither sh nor console: {typed:?}"
                    );
                }
                _ => {}
            }
            excused = false;
        }
    }
    steps
}

fn is_answer(comment: &str) -> bool {
    let begins = |text: &str| text.starts_with(['{', '[']) || text.starts_with("HTTP/");
    let digits = comment.bytes().take_while(u8::is_ascii_digit).count();
    begins(comment) || (digits == 3 && begins(comment[3..].trim_start()))
}

fn script(body: &[(usize, &str)]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut open = false;
    let mut answering = false;
    for &(at, line) in body {
        match line.strip_prefix("# ") {
            Some(comment) if open && (answering || is_answer(comment)) => {
                answering = true;
                if let Some(step) = steps.last_mut() {
                    step.shown += &format!("{comment}\n");
                }
            }
            _ => {
                if !open || answering {
                    steps.push(Step { line: at, commands: String::new(), shown: String::new() });
                }
                (open, answering) = (true, false);
                if let Some(step) = steps.last_mut() {
                    step.commands += &format!("{line}\n");
                }
            }
        }
    }
    steps
}

fn console(body: &[(usize, &str)]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for &(at, line) in body {
        if let Some(command) = line.trim_start().strip_prefix("$ ") {
            steps.push(Step { line: at, commands: format!("{command}\n"), shown: String::new() });
        } else if let Some(step) = steps.last_mut() {
            if step.shown.is_empty() && step.commands.ends_with("\\\n") {
                step.commands += &format!("{line}\n");
            } else {
                step.shown += &format!("{line}\n");
            }
        }
    }
    steps
}

#[test]
fn the_commands_of_a_page_are_found() {
    let page = "text\n```sh\nA=1\ncurl a\n# 201 {\"a\":1,\n#  \"b\":2}\n# prose\ncurl b   # in line\n```\n\
        <!-- first:\nmkdir x\n-->\n```console\n$ curl c \\\n  -d d\nout\n\n$ e\n```\n<!-- not run: it needs docker -->\n\
        ```sh\ndocker compose up\n```\n```json\n{}\n```\n";
    let step =
        |line, commands: &str, shown: &str| Step { line, commands: commands.into(), shown: shown.into() };
    assert_eq!(
        steps("p", page),
        [
            step(3, "A=1\ncurl a\n", "201 {\"a\":1,\n \"b\":2}\nprose\n"),
            step(8, "curl b   # in line\n", ""),
            step(10, "mkdir x", ""),
            step(14, "curl c \\\n  -d d\n", "out\n\n"),
            step(18, "e\n", ""),
        ]
    );
}

#[test]
#[should_panic(expected = "neither sh nor console")]
fn a_command_that_is_never_run_is_rejected() {
    steps("p", "```\nsignalbox doctor\n```\n");
}
