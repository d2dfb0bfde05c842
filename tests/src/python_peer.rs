//! The Python of a venv of the real peers, for users and containers that may not walk the folders in which it lies here.

use std::{path::PathBuf, process::Command};

use crate::harness::peer;

/// Where its interpreter and its packages lie here, and the name of its program.
#[derive(Debug)]
pub struct PythonPeer {
    prefix: PathBuf,
    packages: PathBuf,
    program: String,
}

/// Where the folders are to be shown.
const PREFIX: &str = "/opt/python";
const PACKAGES: &str = "/opt/packages";

impl PythonPeer {
    /// The one with JAX.
    ///
    /// # Panics
    /// If it is missing.
    pub fn with_jax() -> Self {
        let script = "import sys, os, jax; print(sys.base_prefix); print(os.path.dirname(os.path.dirname(jax.__file__))); \
                      print('python3.%d' % sys.version_info.minor)";
        let output =
            Command::new(peer("xprof/bin/python")).args(["-c", script]).output().expect("python runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let [prefix, packages, program] = text.lines().collect::<Vec<_>>().try_into().expect("three lines");
        Self { prefix: prefix.into(), packages: packages.into(), program: program.to_owned() }
    }

    /// The folders here, each with where it is to be shown.
    pub fn folders(&self) -> [(PathBuf, &'static str); 2] {
        [(self.prefix.clone(), PREFIX), (self.packages.clone(), PACKAGES)]
    }

    /// The variables that it needs there.
    pub fn variables() -> [(&'static str, String); 3] {
        [
            ("PYTHONPATH", PACKAGES.to_owned()),
            ("LD_LIBRARY_PATH", format!("{PREFIX}/lib")),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ]
    }

    /// Its program there.
    pub fn program(&self) -> String {
        format!("{PREFIX}/bin/{}", self.program)
    }
}
