//! The arguments that name the sources of settings, for all commands that need settings.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    deadline::{self, Unfinished},
    failure::Failure,
    remedies,
};
use crate::settings::{self, Config, Layers, LoadedSettings};
use model::time::SystemClock;
use nix::unistd::Group;
use server::{remote::OpenedFiles, scrape};

/// The variable that names the settings file.
pub(super) const FILE_VARIABLE: &str = "TPUSCOPE_CONFIG";

/// The longest wait for the settings, and for the files that they name.
pub(super) const READ_LIMIT: Duration = Duration::from_secs(10);

/// The sources of settings.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Settings file [default: /etc/tpuscope/tpuscope.toml, if it exists]
    #[arg(long, value_name = "FILE", env = FILE_VARIABLE)]
    config: Option<PathBuf>,
    /// Value of one setting, such as sampler.interval=2s; overrides the environment and the file; repeatable
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl Args {
    /// Whether a flag sets a setting. The file may be named by the environment of a shell for other commands.
    pub(super) fn named_by_flags(&self) -> bool {
        !self.set.is_empty()
    }

    /// Those of a command without such arguments.
    pub(super) fn of_environment() -> Self {
        Self::of_file(env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from))
    }

    /// With this settings file, if any.
    pub(super) fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, set: Vec::new() }
    }

    /// The path of the socket of an agent with these settings. Faults of a default file that this user did not name are
    /// those of the agent: the path is then the default one.
    ///
    /// # Errors
    /// If the settings file is named and has a fault.
    pub(super) fn socket(&self) -> Result<PathBuf, Failure> {
        match self.of_agent() {
            Ok(loaded) => Ok(loaded.config.api.socket),
            Err(failure) if self.config.is_some() => Err(failure),
            Err(_) => Ok(Config::default().api.socket),
        }
    }

    /// Loads the settings of a command without an agent from the file, the environment and the flags.
    ///
    /// # Errors
    /// If a setting is wrong, or the file cannot be read. The failure has the first fault and the number of the faults.
    pub fn load(&self) -> Result<Config, Failure> {
        // The socket that the environment names is one to connect to.
        let environment = environment().filter(|(name, _)| name != settings::SOCKET_VARIABLE);
        let (this, environment) = (self.clone(), environment.collect());
        let loaded =
            within(READ_LIMIT, self.file(), move || load(this.config.as_deref(), environment, &this.set))?;
        Ok(loaded.map_err(remedies::first_of_all)?.config)
    }

    /// The settings file.
    fn file(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(settings::FILE))
    }

    /// Loads the settings of an agent, with the source of each setting.
    ///
    /// # Errors
    /// As [`Args::load`].
    pub fn of_agent(&self) -> Result<LoadedSettings, Failure> {
        let this = self.clone();
        within(READ_LIMIT, self.file(), move || this.of_agent_unbounded())?
    }

    /// The same, however long a file system needs: the caller has a bound of its own.
    pub(super) fn of_agent_unbounded(&self) -> Result<LoadedSettings, Failure> {
        of_agent(self.config.as_deref(), &self.set).map_err(remedies::first_of_all)
    }
}

/// The result of `read`, which reads the settings in `file` and what they name, if it comes within `limit`.
///
/// # Errors
/// If it does not come.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    file: &Path,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    deadline::within("settings", limit, read).map_err(|unfinished| match unfinished {
        Unfinished::Late => remedies::settings_do_not_answer(file, limit),
        Unfinished::Panicked | Unfinished::NotStarted(_) => {
            Failure::internal(format_args!("the read of the settings: {unfinished}"))
        }
    })
}

/// The settings of an agent with this file (or the default file, if it exists), the environment, and `flags`.
///
/// # Errors
/// All faults.
pub(super) fn of_agent(named: Option<&Path>, flags: &[String]) -> Result<LoadedSettings, Vec<Failure>> {
    load(named, environment().collect(), flags)
}

/// The variables of this process. One whose name is not UTF-8 is not a setting.
fn environment() -> impl Iterator<Item = (String, String)> {
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
}

fn load(
    named: Option<&Path>,
    environment: Vec<(String, String)>,
    flags: &[String],
) -> Result<LoadedSettings, Vec<Failure>> {
    let file = named.unwrap_or(Path::new(settings::FILE));
    let text = settings::read(file).map_err(|error| vec![error.into()])?;
    if text.is_none() && named.is_some() {
        return Err(vec![remedies::no_settings_file(file)]);
    }
    let layers = Layers { text: text.as_deref().map(|text| (file, text)), environment, flags };
    settings::load(&layers).map_err(|errors| {
        let here = errors.rest().map_or_else(Vec::new, |rest| faults_here(rest, |name| errors.refuse(name)));
        errors.into_all().map(Failure::from).chain(here).collect()
    })
}

/// Checks the settings that depend on this host: the group of the socket, the user of Slurm's hooks, the web
/// configuration of the metrics listener, and the files of the remote listener. Returns all faults.
pub(super) fn check_here(config: &Config) -> Vec<Failure> {
    faults_here(config, |_| false)
}

/// [`check_here`], except for what depends on a setting whose value is refused.
fn faults_here(config: &Config, refused: impl Fn(&str) -> bool) -> Vec<Failure> {
    let group = &config.api.socket_group;
    let missing = !group.is_empty() && matches!(Group::from_name(group), Ok(None));
    let mut faults: Vec<_> = missing.then(|| remedies::socket_group(group)).into_iter().collect();
    if !refused("slurm.user") {
        faults.extend(config.slurm.uid().err().map(|error| remedies::slurm_user(&error)));
    }
    let api = &config.api;
    let unknown = ["api.metrics_web_config", "api.metrics_plaintext"].into_iter().any(&refused);
    if api.metrics.address().is_some() && !unknown {
        let (file, plaintext) = (api.web_config().map(Path::to_owned), api.allows_plaintext_metrics());
        let checked = scrape::check(file, plaintext, Arc::new(SystemClock));
        faults.extend(checked.err().map(|error| remedies::web_config(&error)));
    }
    let remote = &config.api_remote;
    let unknown =
        ["cert", "key", "client_ca", "allow"].into_iter().any(|key| refused(&format!("api.remote.{key}")));
    if remote.listen.address().is_some() && remote.files().is_some() && !unknown {
        faults.extend(
            OpenedFiles::open(remote, Arc::new(SystemClock))
                .err()
                .map(|error| remedies::remote_files(&error)),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_read_that_hangs_is_given_up() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            let _ = wait.recv();
        };
        let failure = within(Duration::from_millis(1), Path::new("/etc/x.toml"), hangs).unwrap_err();
        assert_eq!(failure.exit, Exit::Config);
        assert!(failure.what.contains("/etc/x.toml"), "{}", failure.what);
        drop(end);
        assert_eq!(within(READ_LIMIT, Path::new("x"), || 7).unwrap(), 7);
    }
}
