//! Hosts in a file: on each line a host list; `#` begins a comment.

use std::{collections::HashMap, fs::File, io::Read, path::PathBuf};

use async_trait::async_trait;
use model::host_list::{HostListError, MOST_HOSTS};

use super::{HostAddress, HostProvider, HostsError, listed};

/// The largest file, bytes.
const LARGEST: u64 = 4 << 20;

/// A file of hosts. `-` is standard input.
#[derive(Debug, Clone)]
pub struct HostsFile(pub PathBuf);

#[async_trait]
impl HostProvider for HostsFile {
    async fn hosts(&self) -> Result<Vec<HostAddress>, HostsError> {
        let file = self.clone();
        // A file system may hang.
        let text = tokio::task::spawn_blocking(move || file.text()).await;
        let text = text.map_err(|error| HostsError::File { file: self.name(), error: error.into() })??;
        let mut hosts: Vec<HostAddress> = Vec::new();
        let mut lines: HashMap<HostAddress, usize> = HashMap::new();
        // Editors of Windows put it at the begin.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong =
                |reason| HostsError::Line { file: self.name(), line: number, reason: Box::new(reason) };
            for host in listed(line).map_err(wrong)? {
                if hosts.len() == MOST_HOSTS {
                    return Err(wrong(HostListError::TooMany.into()));
                }
                if let Some(first) = lines.insert(host.clone(), number) {
                    return Err(wrong(match first {
                        first if first == number => HostsError::Twice(host),
                        first => HostsError::TwiceInFile { host, first },
                    }));
                }
                hosts.push(host);
            }
        }
        if hosts.is_empty() { Err(HostsError::EmptyFile(self.name())) } else { Ok(hosts) }
    }
}

impl HostsFile {
    /// As errors call it.
    fn name(&self) -> String {
        if self.0.as_os_str() == "-" { "standard input".to_owned() } else { self.0.display().to_string() }
    }

    fn text(&self) -> Result<String, HostsError> {
        let failed = |error| HostsError::File { file: self.name(), error };
        let mut text = String::new();
        let mut read = |source: &mut dyn Read| source.take(LARGEST + 1).read_to_string(&mut text);
        if self.0.as_os_str() == "-" {
            read(&mut std::io::stdin().lock()).map_err(failed)?;
        } else {
            read(&mut File::open(&self.0).map_err(failed)?).map_err(failed)?;
        }
        if text.len() as u64 > LARGEST {
            return Err(HostsError::LargeFile { file: self.name(), limit: LARGEST });
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, text).unwrap();
        let hosts = HostsFile(path).hosts().await.map_err(|error| error.to_string())?;
        Ok(hosts.iter().map(ToString::to_string).collect())
    }

    #[tokio::test]
    async fn lines_comments_and_lists_are_read() {
        let hosts = read("# mine\n tpu-[1-2]  # two\r\n\nb:4393\n").await.unwrap();
        assert_eq!(hosts, ["tpu-1", "tpu-2", "b:4393"]);
        let of_windows = read("\u{feff}tpu-1\r\n# two\r\n[fd00::7]:4393\r\n").await.unwrap();
        assert_eq!(of_windows, ["tpu-1", "[fd00::7]:4393"]);
    }

    #[tokio::test]
    async fn a_bad_line_is_named() {
        let refused = read("a\nb c\n").await.unwrap_err();
        assert!(
            refused.ends_with("hosts, line 2: the host list has white space or a control character"),
            "{refused}"
        );
        let twice = read("a\n\nb,a\n").await.unwrap_err();
        assert!(twice.ends_with("hosts, line 3: the host a is named twice, first in line 1"), "{twice}");
        let twice = read("a\nb,b\n").await.unwrap_err();
        assert!(twice.ends_with("hosts, line 2: the host b is named twice"), "{twice}");
        let many = read("x[1-65000]\n# more\ny[1-1000]\n").await.unwrap_err();
        assert!(many.contains("hosts, line 3: "), "{many}");
        let nothing = read("# nothing\n").await.unwrap_err();
        assert!(nothing.ends_with("hosts names no host"), "{nothing}");
        let large = read(&"a".repeat(5 << 20)).await.unwrap_err();
        assert!(large.ends_with("hosts has more than 4194304 bytes"), "{large}");
        let none = HostsFile("/nonexistent/hosts".into()).hosts().await.unwrap_err();
        assert!(matches!(none, HostsError::File { .. }), "{none}");
    }
}
