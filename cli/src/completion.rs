//! `signalbox completions SHELL` prints a script that asks `signalbox complete` for what can follow on the command line:
//! commands, flags, values, and names that the running system knows.
//!
//! Names are read with the flags and variables of the command that is being typed, so a token is sent only where this command
//! would send it. If the system does not answer within [`PATIENCE`], or rejects the request, there are no names, and nothing is
//! printed. Names that a shell would interpret are left out, because others choose them.

mod names;

use std::{collections::BTreeMap, time::Duration};

use clap::{Arg, Command, CommandFactory as _, Parser, ValueEnum};

use crate::{Cli, exit::Failure, remote::System, terminal};
use names::Names;

/// How long names are waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// Candidates that are printed.
const MAX_CANDIDATES: usize = 200;

const BASH: &str = r#"_signalbox() {
    local line=${COMP_LINE:0:COMP_POINT} words current stem IFS=$' \t\n'
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[-1]}
    # bash replaces only what follows the last of these characters.
    stem=${current%"${current##*[:=]}"}
    IFS=$'\n'
    COMPREPLY=($("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null | cut -f1))
    COMPREPLY=("${COMPREPLY[@]#"$stem"}")
}
complete -o default -F _signalbox signalbox
"#;

const ZSH: &str = r#"#compdef signalbox
_signalbox() {
    local line
    local -a values shown
    for line in "${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        values+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  -- }")
    done
    if (( $#values )); then
        compadd -l -d shown -a values
    else
        _files
    fi
}
compdef _signalbox signalbox
"#;

const FISH: &str = r#"function __signalbox_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] complete -- $words[2..-1] 2>/dev/null)
    if test (count $found) -eq 0
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
complete -c signalbox -f -a '(__signalbox_complete)'
"#;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Prints the script of a shell.
pub(crate) fn script(shell: Shell) -> Result<(), Failure> {
    let script = match shell {
        Shell::Bash => BASH,
        Shell::Fish => FISH,
        Shell::Zsh => ZSH,
    };
    // A reader that stops after the first lines is not a failure.
    let _unread = terminal::text(script);
    Ok(())
}

/// Prints a candidate per line, with its description behind a tab.
pub(crate) async fn run(words: &[String]) -> Result<(), Failure> {
    let mut root = Cli::command();
    root.build();
    let (typed, last) = match words.split_last() {
        Some((last, typed)) => (typed, last.as_str()),
        None => (&[][..], ""),
    };
    let wanted = Wanted::find(&root, typed, last);
    let mut candidates = wanted.fixed;
    if let Some((names, stem)) = wanted.names {
        let prefix = last.strip_prefix(&*stem).unwrap_or(last);
        let known = names::read(&names, prefix, &wanted.system, PATIENCE).await;
        candidates.extend(
            known
                .into_iter()
                .filter(|name| !is_flag(name))
                .map(|name| (format!("{stem}{name}"), String::new())),
        );
    }
    candidates.retain(|(text, _)| text.starts_with(last) && text.chars().all(is_plain));
    candidates.truncate(MAX_CANDIDATES);
    for (text, help) in candidates {
        terminal::line(format!("{text}\t{help}").trim_end());
    }
    Ok(())
}

/// Whether the command would read a name as a flag. Others choose names, and `--url=…` would send the token somewhere else.
fn is_flag(name: &str) -> bool {
    name.starts_with('-')
}

/// Whether no shell gives the character a meaning of its own.
fn is_plain(char: char) -> bool {
    char.is_ascii_alphanumeric() || "._-:@/+,=%*".contains(char)
}

/// What can follow on the command line.
#[derive(Debug, Default)]
struct Wanted {
    /// Commands, flags or values, with their descriptions.
    fixed: Vec<(String, String)>,
    /// Names of a running system, and the part of the word before the name.
    names: Option<(Names, String)>,
    /// The flags that select the system.
    system: Vec<String>,
}

impl Wanted {
    fn find(root: &Command, typed: &[String], last: &str) -> Self {
        let mut position = Position::new(root);
        typed.iter().for_each(|word| position.read(word));
        let mut wanted = Self { system: std::mem::take(&mut position.system), ..Self::default() };
        if let Some(option) = position.option {
            wanted.value_of(option, &position, String::new());
        } else if let Some((flag, option)) =
            last.split_once('=').and_then(|(flag, _)| Some((flag, position.long(flag.strip_prefix("--")?)?)))
        {
            wanted.value_of(option, &position, format!("{flag}="));
        } else if last.starts_with('-') && !position.escaped {
            wanted.fixed = flags(position.command);
        } else {
            wanted.fixed = commands(position.command);
            if let Some(argument) = position.argument() {
                wanted.value_of(argument, &position, String::new());
            }
        }
        wanted
    }

    fn value_of(&mut self, argument: &Arg, position: &Position<'_>, stem: String) {
        let values = argument.get_possible_values();
        self.fixed.extend(values.iter().filter(|value| !value.is_hide_set()).map(|value| {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            (format!("{stem}{}", value.get_name()), help)
        }));
        if values.is_empty() {
            self.names = Names::of(&position.path, argument.get_id().as_str(), &position.values)
                .map(|names| (names, stem));
        }
    }
}

fn commands(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let help = |sub: &Command| sub.get_about().map(ToString::to_string).unwrap_or_default();
    shown.map(|sub| (sub.get_name().to_owned(), help(sub))).collect()
}

fn flags(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let help = |arg: &Arg| arg.get_help().map(ToString::to_string).unwrap_or_default();
    shown.filter_map(|arg| Some((format!("--{}", arg.get_long()?), help(arg)))).collect()
}

/// The state after some words.
struct Position<'a> {
    command: &'a Command,
    path: Vec<&'a str>,
    /// An option whose value is next.
    option: Option<&'a Arg>,
    /// The number of positional arguments so far.
    arguments: usize,
    escaped: bool,
    /// The values of arguments and options.
    values: BTreeMap<String, String>,
    system: Vec<String>,
}

impl<'a> Position<'a> {
    fn new(root: &'a Command) -> Self {
        Self {
            command: root,
            path: Vec::new(),
            option: None,
            arguments: 0,
            escaped: false,
            values: BTreeMap::new(),
            system: Vec::new(),
        }
    }

    fn read(&mut self, word: &str) {
        if let Some(option) = self.option.take() {
            self.set(option, word);
        } else if self.escaped {
            self.arguments += 1;
        } else if word == "--" {
            self.escaped = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            match (self.long(name), value) {
                (Some(option), Some(value)) => self.set(option, value),
                (Some(option), None) => self.expect_value(option),
                (None, _) => {}
            }
        } else if let Some(short) = word.strip_prefix('-').and_then(|short| short.chars().last()) {
            if let Some(option) = self.command.get_arguments().find(|arg| arg.get_short() == Some(short)) {
                self.expect_value(option);
            }
        } else if let Some(sub) = self.command.find_subcommand(word) {
            self.command = sub;
            self.path.push(sub.get_name());
        } else if let Some(argument) = self.argument() {
            self.set(argument, word);
            self.arguments += 1;
        }
    }

    fn long(&self, name: &str) -> Option<&'a Arg> {
        self.command.get_arguments().find(|arg| arg.get_long() == Some(name))
    }

    fn expect_value(&mut self, option: &'a Arg) {
        let optional = option.get_num_args().is_some_and(|number| number.min_values() == 0);
        if option.get_action().takes_values() && !optional {
            self.option = Some(option);
        } else if option.get_id() == "insecure" {
            self.system.push("--insecure".to_owned());
        }
    }

    fn set(&mut self, argument: &Arg, value: &str) {
        let id = argument.get_id().as_str();
        if ["context", "url", "data_dir", "token_file", "ca_file"].contains(&id)
            && argument.get_long().is_some()
        {
            self.system.push(format!("--{}={value}", id.replace('_', "-")));
        }
        self.values.insert(id.to_owned(), value.to_owned());
    }

    /// The next positional argument. The last one may take all remaining words.
    fn argument(&self) -> Option<&'a Arg> {
        let all: Vec<&Arg> = self.command.get_positionals().filter(|arg| !arg.is_last_set()).collect();
        let many = |arg: &&&Arg| arg.get_num_args().is_some_and(|number| number.max_values() > 1);
        all.get(self.arguments).or_else(|| all.last().filter(many)).copied()
    }
}

/// The flags that select a system, alone.
#[derive(Debug, Parser)]
struct Selected {
    #[command(flatten)]
    system: System,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(line: &str) -> (Vec<String>, Option<(Names, String)>, Vec<String>) {
        let mut root = Cli::command();
        root.build();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (last, typed) = words.split_last().unwrap();
        let wanted = Wanted::find(&root, typed, last);
        let texts =
            wanted.fixed.into_iter().map(|(text, _)| text).filter(|text| text.starts_with(&**last)).collect();
        (texts, wanted.names, wanted.system)
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        assert_eq!(find("cert").0, ["certificates"]);
        assert_eq!(find("routes dr").0, ["drain", "drain-node"]);
        assert_eq!(find("route add --node n --address").0, ["--address"]);
        assert_eq!(find("routes list -o y").0, ["yaml"]);
        assert_eq!(find("routes list --output=w").0, ["--output=wide"]);
        assert_eq!(find("events publish orders up").0, ["update"]);
        assert_eq!(find("routes list --watch --fil").0, ["--filter"]);
        assert!(
            find("complete").0.iter().all(|text| text == "completions"),
            "a hidden command is not completed"
        );
    }

    #[test]
    fn names_are_completed_where_a_name_is_expected() {
        let names = |line: &str| {
            let shown = |names| match names {
                Names::List { path, member, .. } => format!("{path} {member}"),
                local => format!("{local:?}"),
            };
            find(line).1.map(|(names, stem)| (shown(names), stem))
        };
        let plain = |name: &str| Some((name.to_owned(), String::new()));
        assert_eq!(names("routes show "), plain("/instances id"));
        assert_eq!(names("routes list --host "), plain("/hosts hostname"));
        assert_eq!(names("routes list --host=a"), Some(("/hosts hostname".to_owned(), "--host=".to_owned())));
        assert_eq!(names("hosts split a.test --context "), plain("Contexts"));
        assert_eq!(names("queues pause mail "), plain("/queues/mail/tenants?limit=1000 tenant"));
        assert_eq!(names("queues pull mail "), plain("/queues name"));
        assert_eq!(names("labels show "), plain("/state-machines name"));
        assert_eq!(names("labels show orders "), plain("/state-machines/orders/labels?limit=1000 name"));
        assert_eq!(names("labels list orders --state "), plain("/state-machines/orders name"));
        assert_eq!(names("tokens revoke "), plain("/tokens name"));
        assert_eq!(names("tokens create "), None);
        assert_eq!(names("subscribers show "), plain("/subscriptions subscriber"));
        assert_eq!(names("subscribers skip billing "), None);
        assert_eq!(names("certificates renew "), plain("/acme/names server_name"));
    }

    #[test]
    fn names_that_a_shell_or_the_command_would_interpret_are_left_out() {
        for bad in ["$(id)", "a b", "a;b", "`id`", "a\tb", "~", "a\u{1b}[0m"] {
            assert!(!bad.chars().all(is_plain), "{bad}");
        }
        assert!(is_flag("--url=https://a.test") && !is_flag("a-b"));
    }

    #[test]
    fn the_flags_of_the_system_are_those_of_the_line() {
        let (.., system) = find("--url x routes show --url http://a.test --insecure --token-file=/t ");
        assert_eq!(system, ["--url=http://a.test", "--insecure", "--token-file=/t"]);
    }

    #[test]
    fn a_name_that_a_shell_would_interpret_is_not_plain() {
        assert!("*.shop-1.test:80/a@b_c=d+e,f%g".chars().all(is_plain));
        for bad in ["$", "`", " ", ";", "'", "\n", "é"] {
            assert!(!bad.chars().all(is_plain), "{bad}");
        }
    }
}
