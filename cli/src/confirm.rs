//! The confirmation of commands that cannot be undone: `--yes`, or a question on a terminal.
//!
//! One rule for all nouns: a command that destroys what no other command restores has [`Sure`]. If something with contents
//! is destroyed with them, such as a queue with its messages, the question asks for its name; otherwise for `y`.

use std::io::{self, BufRead, IsTerminal as _, Write};

use crate::exit::Failure;

/// The flag of every command whose effect cannot be undone.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Sure {
    /// Confirm; this cannot be undone. Without it, the command asks on a terminal, and fails elsewhere
    #[arg(short, long)]
    yes: bool,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
enum Answer<'a> {
    Yes,
    Name(&'a str),
}

impl Sure {
    /// Asks whether to do `what`, which begins with a verb.
    pub(crate) fn confirm(&self, what: &str) -> Result<(), Failure> {
        self.ask(what, Answer::Yes)
    }

    /// Asks for the name of what is destroyed with its contents.
    pub(crate) fn confirm_name(&self, what: &str, name: &str) -> Result<(), Failure> {
        self.ask(what, Answer::Name(name))
    }

    fn ask(&self, what: &str, wanted: Answer<'_>) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            let detail = format!("this would {what}, which cannot be undone; add --yes to confirm");
            return Err(Failure::configuration(detail));
        }
        match confirmed(what, wanted, &mut io::stdin().lock(), &mut io::stderr()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::configuration("not confirmed; nothing was changed")),
            Err(error) => Err(Failure::internal(format!("cannot ask for a confirmation: {error}"))),
        }
    }
}

fn confirmed(
    what: &str,
    wanted: Answer<'_>,
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> io::Result<bool> {
    let question = match wanted {
        Answer::Yes => "Continue? [y/N]".to_owned(),
        Answer::Name(name) => format!("Type {name} to confirm:"),
    };
    write!(to, "This will {what}. It cannot be undone.\n{question} ")?;
    to.flush()?;
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        // The end of the input leaves the cursor behind the question.
        writeln!(to)?;
    }
    let line = line.trim();
    Ok(match wanted {
        Answer::Yes => line.eq_ignore_ascii_case("y") || line.eq_ignore_ascii_case("yes"),
        Answer::Name(name) => line == name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(wanted: Answer<'_>, line: &str) -> (bool, String) {
        let mut shown = Vec::new();
        let sure = confirmed("delete the queue mail", wanted, &mut line.as_bytes(), &mut shown).unwrap();
        (sure, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn a_question_names_the_effect_and_only_a_clear_answer_confirms() {
        let (sure, shown) = answered(Answer::Yes, "y\n");
        assert!(
            sure && shown.starts_with("This will delete the queue mail. It cannot be undone.\n"),
            "{shown}"
        );
        assert!(answered(Answer::Yes, "YES\n").0);
        for line in ["", "\n", "n\n", "mail\n", "yo\n"] {
            assert!(!answered(Answer::Yes, line).0, "{line:?}");
        }
        let (sure, shown) = answered(Answer::Name("mail"), "mail\n");
        assert!(sure && shown.ends_with("Type mail to confirm: "), "{shown}");
        for line in ["", "\n", "y\n", "yes\n", "mail2\n", "Mail\n"] {
            assert!(!answered(Answer::Name("mail"), line).0, "{line:?}");
        }
    }
}
