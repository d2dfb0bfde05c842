//! `tpuscope config`: the default settings, the check of a settings file, and the settings in force.

mod named_files;
mod online;

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    CommandResult, client,
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    settings_args::{self, READ_LIMIT},
};
use crate::{
    remedies,
    settings::{self, DefaultValues, LoadedSettings, SectionValues, SettingSource, setting_name},
};

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a settings file with every setting, its default and its description
    Default {
        /// Print each value commented out, so that the defaults of later versions apply to what is not set
        #[arg(long, conflicts_with = "json")]
        commented_out: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a settings file and the TPUSCOPE_* variables; print all faults, the variables that set nothing, and the files
    /// of exporters that cannot be used
    Check {
        /// Settings file [default: /etc/tpuscope/tpuscope.toml, if it exists]
        #[arg(env = settings_args::FILE_VARIABLE)]
        file: Option<PathBuf>,
        /// Also let the running agent write, read and delete one small object at each destination; for
        /// administrators. Without an agent this command does it, as its own user
        #[arg(long)]
        online: bool,
        #[command(flatten)]
        agent: client::SocketArgs,
        /// Print JSON: all faults, or the effective settings (docs/schemas/config-check.schema.json)
        #[arg(long)]
        json: bool,
    },
    /// Print the settings that an agent with these arguments and this environment uses, and the source of each value
    Show {
        #[command(flatten)]
        settings: settings_args::Args,
        /// Print JSON (docs/schemas/config-show.schema.json)
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.command {
        Command::Default { json: true, .. } => output::json(&settings::Config::default())?,
        Command::Default { commented_out, .. } => {
            let values = if *commented_out { DefaultValues::CommentedOut } else { DefaultValues::Set };
            output::print(&settings::commented(values))?;
        }
        Command::Check { file, json, online: false, .. } => return check(file.as_deref(), *json),
        Command::Check { file, json, online: true, agent } => {
            // JSON is that of the destinations alone, unless the settings have faults.
            if !*json || checked(file.as_deref()).is_err() {
                let exit = check(file.as_deref(), *json)?;
                if exit != Exit::Ok {
                    return Ok(exit);
                }
            }
            return online::check(file.as_deref(), agent, *json);
        }
        Command::Show { settings, json } => show(settings, *json)?,
    }
    Ok(Exit::Ok)
}

/// The settings with what to warn of, or all their faults.
fn checked(file: Option<&Path>) -> Result<(LoadedSettings, Vec<String>), Vec<Failure>> {
    let name = file.unwrap_or(Path::new(settings::FILE));
    let named = file.map(Path::to_owned);
    let read = move || {
        settings_args::of_agent(named.as_deref(), &[]).and_then(|loaded| {
            let faults = settings_args::check_here(&loaded.config);
            let ignored = loaded.ignored.iter().map(ToString::to_string);
            let warnings = ignored.chain(named_files::warnings(&loaded.config)).collect();
            if faults.is_empty() { Ok((loaded, warnings)) } else { Err(faults) }
        })
    };
    settings_args::within(READ_LIMIT, name, read).unwrap_or_else(|failure| Err(vec![failure]))
}

fn check(file: Option<&Path>, json: bool) -> CommandResult {
    let name = file.unwrap_or(Path::new(settings::FILE));
    match checked(file) {
        Ok((loaded, warnings)) => print_checked(&loaded, &warnings, name, json)?,
        Err(faults) if json => {
            let all: Vec<_> = faults.iter().map(fault_json).collect();
            let first = remedies::first_of_all(faults);
            output::json(&json!({
                "ok": false, "error": first.what, "remedy": first.remedy, "faults": all,
            }))?;
            return Ok(first.exit);
        }
        Err(faults) => return Err(print_all_but_last(faults)),
    }
    Ok(Exit::Ok)
}

/// Prints that the settings have no fault, and the warnings.
fn print_checked(
    loaded: &LoadedSettings,
    warnings: &[String],
    name: &Path,
    json: bool,
) -> Result<(), Failure> {
    let warnings: Vec<_> = warnings.iter().map(|warning| one_line(warning)).collect();
    if json {
        return output::json(&json!({ "ok": true, "settings": loaded.config, "warnings": warnings }));
    }
    warnings.iter().for_each(|warning| output::print_error(&format!("warning: {warning}")));
    let shown = one_line(&name.display().to_string());
    match name.exists() {
        true => output::print(&format!("{shown}: ok\n")),
        false => output::print(&format!("{shown} does not exist; the defaults apply\n")),
    }
}

fn fault_json(fault: &Failure) -> Value {
    json!({ "error": fault.what, "remedy": fault.remedy })
}

/// Prints the faults. The last one is returned, with the remedy, which the faults usually share.
fn print_all_but_last(mut faults: Vec<Failure>) -> Failure {
    let Some(last) = faults.pop() else { return Failure::internal("the settings have no fault") };
    for mut fault in faults {
        if fault.remedy == last.remedy {
            fault.remedy.clear();
        }
        output::print_error(&fault.to_string());
    }
    last
}

fn show(settings: &settings_args::Args, json: bool) -> Result<(), Failure> {
    let loaded = settings.of_agent()?;
    let sections = settings::values(&loaded.config).map_err(Failure::internal)?;
    if json {
        output::json(&shown_json(sections, &loaded.sources))
    } else {
        output::print(&shown_text(sections, &loaded.sources))
    }
}

type Sections = Vec<(&'static str, SectionValues)>;
type Sources = BTreeMap<String, SettingSource>;

/// Each setting with its value and its source.
fn shown_json(sections: Sections, sources: &Sources) -> Value {
    let sections = sections.into_iter().map(|(section, values)| {
        let setting = |(key, value): (&str, Option<toml::Value>)| {
            let source = source_json(sources.get(&setting_name(section, key)));
            (key.to_owned(), json!({ "value": value, "source": source }))
        };
        if let [("", list)] = &values[..] {
            let source = source_json(sources.get(section));
            return (section.to_owned(), json!({ "value": list, "source": source }));
        }
        (section.to_owned(), Value::Object(values.into_iter().map(setting).collect()))
    });
    json!({ "settings": sections.collect::<Map<_, _>>() })
}

fn source_json(source: Option<&SettingSource>) -> Value {
    match source {
        None => json!({ "kind": "default" }),
        Some(SettingSource::Line(file, line)) => {
            json!({ "kind": "file", "file": file.to_string_lossy(), "line": line })
        }
        Some(SettingSource::Variable(name)) => json!({ "kind": "variable", "name": name }),
        Some(SettingSource::Flag(argument)) => json!({ "kind": "flag", "argument": argument }),
    }
}

/// A settings file with all values; the source of each stands behind it.
fn shown_text(sections: Sections, sources: &Sources) -> String {
    let mut text = String::new();
    for (section, values) in sections {
        let source_of =
            |name: &str| one_line(&sources.get(name).map_or_else(|| "default".into(), ToString::to_string));
        if let [("", list)] = &values[..] {
            shown_list(section, list.as_ref(), &source_of(section), &mut text);
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}[{section}]", if text.is_empty() { "" } else { "\n" });
        for (key, value) in values {
            let source = source_of(&setting_name(section, key));
            let setting = match value {
                None => format!("# {key} is not set"),
                Some(value) => format!("{key} = {value}"),
            };
            let _ = writeln!(text, "{}", one_line(&format!("{setting}  # {source}")));
        }
    }
    text
}

/// The elements of a section that is a list.
fn shown_list(section: &str, list: Option<&toml::Value>, source: &str, text: &mut String) {
    let elements = list.and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    if elements.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n# [[{section}]] is not set  # {source}");
    }
    for element in elements {
        let _ = writeln!(text, "\n[[{section}]]  # {source}");
        for (key, value) in element.as_table().into_iter().flatten() {
            let _ = writeln!(text, "{}", one_line(&format!("{key} = {value}")));
        }
    }
}
