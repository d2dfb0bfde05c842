//! The flags that say where settings come from, shared by the commands that need them.

use std::{
    env,
    path::{Path, PathBuf},
};

use nix::unistd::Group;
use server::{scrape, socket::SocketError};

use super::exit::{Exit, Failure};
use crate::settings::{self, Config, ConfigError, Layers};

/// Where settings come from.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// File of settings [default: /etc/tpuscope/tpuscope.toml, where it exists]
    #[arg(long, value_name = "FILE", env = "TPUSCOPE_CONFIG")]
    config: Option<PathBuf>,
    /// One setting, as in `--set sampler.interval=2s`; wins over the environment and the file
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl Args {
    /// The settings of file, environment and flags.
    pub fn load(&self) -> Result<Config, Failure> {
        load(self.config.as_deref(), &self.set)
    }
}

/// The settings of this file (or of the one at the usual place, if there is one), the environment, and `flags`.
pub(super) fn load(named: Option<&Path>, flags: &[String]) -> Result<Config, Failure> {
    let file = named.unwrap_or(Path::new(settings::FILE));
    let text = settings::read(file)?;
    if text.is_none() && named.is_some() {
        return Err(Failure::new(Exit::NotFound, format!("there is no file {}", file.display()))
            .remedy("write one with `tpuscope config default`, or leave --config out"));
    }
    // A variable that is not UTF-8 cannot be one of ours.
    let environment = env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.to_string_lossy().into_owned()))
    });
    let layers =
        Layers { text: text.as_deref().map(|text| (file, text)), environment: environment.collect(), flags };
    Ok(settings::load(&layers)?)
}

/// What only this host can say about settings: whether it has the group of the socket, and whether the web
/// configuration of the metrics listener can be used.
pub(super) fn check_here(config: &Config) -> Result<(), Failure> {
    let group = &config.api.socket_group;
    let missing = !group.is_empty() && matches!(Group::from_name(group), Ok(None));
    if missing {
        return Err(no_group(&SocketError::NoGroup(group.clone())));
    }
    let api = &config.api;
    let Some(address) = api.metrics.address() else { return Ok(()) };
    let plaintext = api.metrics_plaintext || address.ip().to_canonical().is_loopback();
    scrape::check(api.web_config().map(Path::to_owned), plaintext)
        .map_err(|error| crate::agent::failure::web_config(&error))
}

pub(super) fn no_group(error: &SocketError) -> Failure {
    Failure::new(Exit::Config, error)
        .remedy("make the group (`groupadd --system`), or leave api.socket_group empty")
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let unreadable = match &error {
            ConfigError::Unreadable { error, .. } => Some(error.kind()),
            _ => None,
        };
        match unreadable {
            Some(std::io::ErrorKind::PermissionDenied) => {
                Failure::new(Exit::Permission, error).remedy("run it as a user who may read the file")
            }
            _ => Failure::new(Exit::Config, error).remedy("`tpuscope config default` prints every setting"),
        }
    }
}
