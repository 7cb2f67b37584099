//! `signalbox man`: generated from the definition of the command line.

use std::{fs, path::Path};

use clap::{Command, CommandFactory as _};

use crate::{Cli, exit::Failure, terminal};

/// The command with the parts that clap adds, which the pages contain, too.
fn command() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

pub(crate) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    let Some(dir) = dir else { return print(page(command())?) };
    fs::create_dir_all(dir)
        .map_err(|error| Failure::configuration(format!("cannot create {}: {error}", dir.display())))?;
    let mut commands = vec![("signalbox".to_owned(), command())];
    while let Some((name, command)) = commands.pop() {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            commands.push((format!("{name}-{}", sub.get_name()), sub.clone()));
        }
        let file = dir.join(format!("{name}.1"));
        // A page has the name that `man signalbox-routes` opens.
        let title: &'static str = Box::leak(name.into_boxed_str());
        fs::write(&file, page(command.name(title).display_name(title))?)
            .map_err(|error| Failure::configuration(format!("cannot write {}: {error}", file.display())))?;
    }
    Ok(())
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::internal(format!("cannot generate the page: {error}")))?;
    Ok(page)
}

fn print(text: Vec<u8>) -> Result<(), Failure> {
    let text = String::from_utf8(text).map_err(|error| Failure::internal(error.to_string()))?;
    // A reader that stops after the first lines is not a failure.
    let _unread = terminal::text(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        man(Some(folder.path())).unwrap();
        let page = fs::read_to_string(folder.path().join("signalbox-routes-add.1")).unwrap();
        assert!(page.contains("Register or update an instance"), "{page}");
        assert!(folder.path().join("signalbox.1").exists());
        assert!(!folder.path().join("signalbox-guard.1").exists(), "a hidden command has no page");
    }
}
