//! The files and folders that settings of exporters and of `api.xprof` name, as the user of this command finds them.
//!
//! An agent starts without them, and reads them when it needs them: what is wrong is a warning.

use std::{fs, path::Path, time::Duration};

use store::destinations::{GoogleAccount, SendRate, Transport};

use crate::settings::Config;

/// Nothing is sent: no wait comes to it.
const NO_WAIT: Duration = Duration::from_secs(1);

/// What is wrong with them. Blocks.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut add = |setting: &str, why: Option<String>| {
        warnings.extend(why.map(|why| format!("{setting}: {why}")));
    };
    let cloud = &config.export_cloud_monitoring;
    if cloud.enabled && !cloud.credentials.as_os_str().is_empty() {
        let transport = Transport::new(NO_WAIT, SendRate::default());
        let opened = GoogleAccount::open(Some(&cloud.credentials), transport);
        add("export.cloud_monitoring.credentials", opened.err().map(|error| error.to_string()));
    }
    if config.export_otlp.endpoint.url().is_some() {
        add("export.otlp", export::otlp::check_files(&config.export_otlp).err());
    }
    let directory = &config.export_tensorboard.directory;
    if !directory.as_os_str().is_empty() {
        add("export.tensorboard.directory", no_folder(directory));
    }
    if config.api.xprof.address().is_some() {
        config.api.xprof_roots.iter().for_each(|root| add("api.xprof_roots", no_folder(root)));
    }
    warnings
}

fn no_folder(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(format!("{} is not a folder", path.display())),
        Err(error) => Some(format!("{} cannot be used: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_named_and_cannot_be_used_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let of = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            warnings(&config)
        };
        assert_eq!(of(&|_| {}), [""; 0]);
        let missing = of(&|config| {
            config.export_cloud_monitoring.enabled = true;
            config.export_cloud_monitoring.credentials = path("key.json");
            config.export_tensorboard.directory = path("boards");
            config.api.xprof = "127.0.0.1:4392".parse().unwrap();
            config.api.xprof_roots = vec![folder.path().to_owned(), path("roots")];
        });
        for (warning, setting) in missing.iter().zip([
            "export.cloud_monitoring.credentials: ",
            "export.tensorboard.directory: ",
            "api.xprof_roots: ",
        ]) {
            assert!(warning.starts_with(setting), "{warning}");
        }
        assert_eq!(missing.len(), 3, "{missing:?}");
        let headers = |text: &str, mode| {
            fs::write(path("headers"), text).unwrap();
            fs::set_permissions(path("headers"), fs::Permissions::from_mode(mode)).unwrap();
            of(&|config| {
                config.export_otlp.endpoint = serde_json::from_value("http://127.0.0.1:4317".into()).unwrap();
                config.export_otlp.headers_file = path("headers");
            })
        };
        assert_eq!(headers("a: b\n", 0o600), [""; 0]);
        assert!(headers("a: b\n", 0o644)[0].starts_with("export.otlp: "));
        assert!(headers("no colon\n", 0o600)[0].contains("headers:1: it has no colon"));
        // What is off needs no files.
        assert_eq!(of(&|config| config.export_otlp.headers_file = path("none")), [""; 0]);
    }
}
