//! `tpuscope completions` and `tpuscope man`, generated from the definition of the command line.

use std::{fs, path::PathBuf};

use clap::CommandFactory;

use super::{
    Cli, CommandResult, client, exit::Exit, output, output_path, remedies,
    sessions::outfile::is_a_folder_or_new, settings_args,
};

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell that the script is for
    shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder to write to; it is created if it does not exist
    #[arg(value_parser = output_path::parser())]
    dir: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tpuscope", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

/// The command line as the manual pages have it.
fn manual() -> clap::Command {
    Cli::command().disable_help_subcommand(true)
}

/// Adds the environment variables that each command reads to the end of its page.
fn documented_variables(command: clap::Command) -> clap::Command {
    let variable = |argument: &clap::Arg| argument.get_env().map(|name| name.to_string_lossy().into_owned());
    let has = |id: &str| command.get_arguments().any(|argument| argument.get_id() == id);
    let reads = |name: &str| command.get_arguments().filter_map(variable).any(|variable| variable == name);
    let mut lines = vec!["Environment variables:".to_owned()];
    if has("socket") {
        lines.push(format!("{}: path of the agent's Unix socket", client::VARIABLE));
    }
    if reads(settings_args::FILE_VARIABLE) {
        lines.push(format!("{}: settings file", settings_args::FILE_VARIABLE));
    }
    if has("set") {
        lines.push(
            "TPUSCOPE_<SECTION>__<KEY>: value of a setting, such as TPUSCOPE_SAMPLER__INTERVAL=2s for sampler.interval"
                .to_owned(),
        );
    }
    let command = command.mut_subcommands(documented_variables);
    if lines.len() == 1 { command } else { command.after_long_help(lines.join("\n\n")) }
}

pub(super) fn man(args: &ManArgs) -> CommandResult {
    is_a_folder_or_new(&args.dir)?;
    let written = fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(documented_variables(manual()), &args.dir));
    written.map_err(|error| remedies::manual_pages(&args.dir, &error))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn a_manual_page_has_the_variables_of_its_command() {
        let command = documented_variables(manual());
        let page = |name: &str| {
            let mut page = Vec::new();
            let command = command.find_subcommand(name).expect("a command");
            clap_mangen::Man::new(command.clone()).render(&mut page).expect("memory");
            String::from_utf8(page).expect("text")
        };
        let variables = ["TPUSCOPE_SOCKET: ", "TPUSCOPE_CONFIG: ", "such as TPUSCOPE_SAMPLER__INTERVAL=2s "];
        let has = |name: &str| {
            let page = page(name);
            variables.map(|variable| page.contains(variable))
        };
        // The variable of the example sets what the page says.
        let environment = vec![("TPUSCOPE_SAMPLER__INTERVAL".to_owned(), "2s".to_owned())];
        let loaded =
            settings::load(&settings::Layers { environment, ..settings::Layers::default() }).unwrap();
        assert!(loaded.sources.contains_key("sampler.interval"));
        assert_eq!(has("status"), [true, false, false]);
        assert_eq!(has("agent"), [true, true, true]);
        assert_eq!(has("capture"), [true, true, true]);
        assert_eq!(has("goodput"), [true, false, false]);
        assert_eq!(has("version"), [false; 3]);
    }
}
