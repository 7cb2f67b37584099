//! A page of the documentation, as a list of what can be typed.
//!
//! | fence | meaning |
//! |---|---|
//! | `sh` | lines for a shell; a comment behind them that begins like an answer (`# 201 {…`) is what they print |
//! | `console` | `$ command`, and below it what it prints |
//! | `python`, `js`, … | a program, saved as the file that the paragraph before it names last, as in (`worker.py`) |
//! | anything else | not to be typed; commands in a fence without a language are refused |
//!
//! HTML comments, which readers do not see, hold the rest. None of them may prepare what a reader has to prepare:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- not run: why -->` | the commands of the next fence need something that a test does not have |
//! | `<!-- from: other.md file.py -->` | the reader has saved this program of another page, to which this one links |
//! | `<!-- test: … -->` | what a reader has anyway: the repository's folder (`$DOCS`), the demo's usual ports |
//! | `<!-- check: … -->` | further checks. They run in another folder and another shell, so they prepare nothing; `$FOLDER` is the reader's folder |

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

/// Beginnings of commands in a `test:` comment.
const TEST_ONLY: [&str; 5] = [
    "cp -r \"$DOCS/../examples",
    "ln -s \"$DOCS/../examples",
    "mkdir -p examples",
    "export SIGNALBOX_",
    "export ACME_",
];

/// Commands that save a program.
fn saving(name: &str, body: &str) -> String {
    format!("cat >{name} <<'END OF THE PROGRAM'\n{body}END OF THE PROGRAM\n")
}

/// The file that a paragraph names last, in parentheses.
fn named_file(paragraph: &str) -> Option<&str> {
    let (name, _) = paragraph.rsplit_once("(`")?.1.split_once("`)")?;
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    (plain && name.contains('.')).then_some(name)
}

/// The program that a page shows as this file.
fn program(text: &str, file: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("(`{file}`)"))?;
    let (_, fence) = rest.split_once("\n```")?;
    let (_, body) = fence.split_once('\n')?;
    Some(format!("{}\n", body.split_once("\n```")?.0))
}

/// All steps of a page, in order. `other` is the text of another page.
///
/// # Panics
/// When a fence has commands and is neither `sh`, `console` nor excused, an excuse has no reason, or a comment prepares
/// something that a reader has to prepare.
pub(super) fn steps(page: &str, text: &str, other: impl Fn(&str) -> String) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let mut excused = false;
    let mut paragraph = String::new();
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
            } else if let Some(commands) = comment.strip_prefix("test:") {
                for command in commands.trim().lines().flat_map(|line| line.split(" && ")) {
                    let is_known = TEST_ONLY.iter().any(|begin| command.starts_with(begin));
                    assert!(is_known, "{page}:{at}: a reader has to prepare this, so show it: {command}");
                }
                steps.push(Step {
                    line: at,
                    commands: format!("{}\n", commands.trim()),
                    shown: String::new(),
                });
            } else if let Some(commands) = comment.strip_prefix("check:") {
                let commands = format!("(FOLDER=$PWD; cd \"$(mktemp -d)\"\n{}\n)\n", commands.trim());
                steps.push(Step { line: at, commands, shown: String::new() });
            } else if let Some(from) = comment.strip_prefix("from:") {
                let (source, file) = from.trim().split_once(' ').unwrap_or_default();
                assert!(text.contains(&format!("({source}")), "{page}:{at}: there is no link to {source}");
                let body = program(&other(source), file);
                let body = body.unwrap_or_else(|| panic!("{page}:{at}: {source} shows no program {file}"));
                steps.push(Step { line: at, commands: saving(file, &body), shown: String::new() });
            } else {
                assert!(!comment.starts_with("first:"), "{page}:{at}: show what a reader has to prepare");
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let body: Vec<(usize, &str)> =
                lines.by_ref().take_while(|(_, line)| !line.trim_start().starts_with("```")).collect();
            match language.trim() {
                "sh" if !excused => steps.extend(script(&body)),
                "console" if !excused => steps.extend(console(&body)),
                "python" | "js" | "ruby" => {
                    if let Some(file) = named_file(&paragraph) {
                        let body: String = body.iter().map(|(_, line)| format!("{line}\n")).collect();
                        steps.push(Step { line: at, commands: saving(file, &body), shown: String::new() });
                    }
                }
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
            paragraph.clear();
        } else if line.starts_with('#') {
            paragraph.clear();
        } else {
            paragraph = format!("{paragraph} {line}");
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
        <!-- check:\nmkdir x\n-->\nSave it (`a.py`):\n\n```python\nprint(1)\n```\n```console\n$ curl c \\\n  -d d\nout\n\n$ e\n```\n<!-- not run: it needs docker -->\n\
        ```sh\ndocker compose up\n```\n```json\n{}\n```\n";
    let step =
        |line, commands: &str, shown: &str| Step { line, commands: commands.into(), shown: shown.into() };
    assert_eq!(
        steps("p", page, |_| String::new()),
        [
            step(3, "A=1\ncurl a\n", "201 {\"a\":1,\n \"b\":2}\nprose\n"),
            step(8, "curl b   # in line\n", ""),
            step(10, "(FOLDER=$PWD; cd \"$(mktemp -d)\"\nmkdir x\n)\n", ""),
            step(15, &saving("a.py", "print(1)\n"), ""),
            step(19, "curl c \\\n  -d d\n", "out\n\n"),
            step(23, "e\n", ""),
        ]
    );
}

#[test]
#[should_panic(expected = "neither sh nor console")]
fn a_command_that_is_never_run_is_rejected() {
    steps("p", "```\nsignalbox doctor\n```\n", |_| String::new());
}

#[test]
#[should_panic(expected = "show it")]
fn a_hidden_preparation_is_rejected() {
    steps("p", "<!-- test: echo 1 >facts.json -->\n", |_| String::new());
}

#[test]
fn a_program_of_another_page_is_used() {
    let other = |name: &str| {
        assert_eq!(name, "other.md");
        "It (`a.py`):\n\n```python\nprint(1)\n```\n".to_owned()
    };
    let found = steps("p", "See [it](other.md).\n<!-- from: other.md a.py -->\n", other);
    assert_eq!(found[0].commands, saving("a.py", "print(1)\n"));
}
