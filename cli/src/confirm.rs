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

impl Sure {
    /// Asks whether to do `what`, which begins with a verb.
    pub(crate) fn confirm(&self, what: &str) -> Result<(), Failure> {
        self.ask(what, None)
    }

    /// Asks for the name of what is destroyed with its contents.
    pub(crate) fn confirm_name(&self, what: &str, name: &str) -> Result<(), Failure> {
        self.ask(what, Some(name))
    }

    fn ask(&self, what: &str, name: Option<&str>) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            let detail = format!("this would {what}, which cannot be undone; add --yes to confirm");
            return Err(Failure::configuration(detail));
        }
        match confirmed(what, name, &mut io::stdin().lock(), &mut io::stderr()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::configuration("not confirmed; nothing was changed")),
            Err(error) => Err(Failure::internal(format!("cannot ask for a confirmation: {error}"))),
        }
    }
}

fn confirmed(
    what: &str,
    name: Option<&str>,
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> io::Result<bool> {
    let question =
        name.map_or_else(|| "Continue? [y/N]".to_owned(), |name| format!("Type {name} to confirm:"));
    write!(to, "This will {what}. It cannot be undone.\n{question} ")?;
    to.flush()?;
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        // The end of the input leaves the cursor behind the question.
        writeln!(to)?;
    }
    let line = line.trim();
    Ok(match name {
        Some(name) => line == name,
        None => line.eq_ignore_ascii_case("y") || line.eq_ignore_ascii_case("yes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(name: Option<&str>, line: &str) -> (bool, String) {
        let mut shown = Vec::new();
        let sure = confirmed("delete the queue mail", name, &mut line.as_bytes(), &mut shown).unwrap();
        (sure, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn a_question_names_the_effect_and_only_a_clear_answer_confirms() {
        let (sure, shown) = answered(None, "y\n");
        assert!(
            sure && shown.starts_with("This will delete the queue mail. It cannot be undone.\n"),
            "{shown}"
        );
        assert!(answered(None, "YES\n").0);
        for line in ["", "\n", "n\n", "mail\n", "yo\n"] {
            assert!(!answered(None, line).0, "{line:?}");
        }
        let (sure, shown) = answered(Some("mail"), "mail\n");
        assert!(sure && shown.ends_with("Type mail to confirm: "), "{shown}");
        for line in ["", "\n", "y\n", "yes\n", "mail2\n", "Mail\n"] {
            assert!(!answered(Some("mail"), line).0, "{line:?}");
        }
    }
}
